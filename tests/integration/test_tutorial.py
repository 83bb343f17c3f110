"""The tutorial, followed word by word: its files are saved, its tests run, and its service answers real clients."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest

from tests.chaos import tutorial
from tests.support.redis_server import RedisServer
from tests.support.served import free_port, python_files, saved_files, served
from tests.support.threads import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
#: An installation brings the fixture. Where the tests run from the tree alone, pytest is told.
FIXTURE_NOT_INSTALLED = "pytest_purgatory" not in {each.name for each in entry_points(group="pytest11")}
METRICS = re.compile(r"^## 3\. Metrics.*?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A new folder with the files that the tutorial saves, its third section included."""
    folder = tmp_path_factory.mktemp("tutorial")
    page = ROOT / "docs/tutorial.md"
    for name, text in saved_files(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    added, blank, route = METRICS.search(page.read_text(encoding="utf-8"))[1].splitlines()
    assert not blank
    service = (folder / "inbox.py").read_text(encoding="utf-8")
    (folder / "inbox.py").write_text(
        f"{added}\n" + service.replace("    return app\n", f"    {route}\n    return app\n"), encoding="utf-8"
    )
    return folder


def test_tests_of_the_tutorial_pass(folder):
    """The tests that the reader is given pass, and take no time to speak of."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            *(("-p", "pytest_purgatory") if FIXTURE_NOT_INSTALLED else ()),
            "-c",
            "/dev/null",
            "test_inbox.py",
        ],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.fixture
def service(folder):
    """The service of the tutorial behind uvicorn, and its address."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--factory", "inbox:app", "--port", str(port), "--log-level", "warning"],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""},
    )
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            httpx.get(f"{address}/metrics", timeout=PATIENCE_S)
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.05)
    yield server, address
    server.kill()
    server.wait()


def polling(address):
    """A client that waits for a message on a thread of its own. The answer is appended to the list."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/inbox/ann", timeout=60)))
    thread.start()
    one = re.compile(r"^purgatory_parked_operations\{.*\} 1\.0$", re.MULTILINE)
    assert eventually(lambda: one.search(shown(address))), "the client does not wait"
    return thread, answers


def shown(address):
    """The page of metrics."""
    return httpx.get(f"{address}/metrics", timeout=PATIENCE_S).text


def test_message_answers_a_client_that_waits(service):
    """The client of the first section gets the message of the second one."""
    _, address = service
    thread, answers = polling(address)
    httpx.post(f"{address}/inbox/ann", params={"text": "hello"}, timeout=PATIENCE_S)
    thread.join(PATIENCE_S)

    assert [["hello"]] == [answer.json() for answer in answers]


def test_metrics_that_the_tutorial_names_are_there(service):
    """The page of metrics has each metric of the third section's table."""
    _, address = service
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    metrics = shown(address)
    named = re.findall(r"^\| `(purgatory_\w+)` \|", page, re.MULTILINE)

    assert 2 == len(named)
    assert [] == [name for name in named if f"\n{name}{{" not in metrics]


def test_client_that_waits_at_the_shutdown_is_told_to_come_again(service):
    """Ctrl-C answers the client at once, and the server ends."""
    server, address = service
    thread, answers = polling(address)
    server.send_signal(signal.SIGINT)
    thread.join(PATIENCE_S)

    assert [(503, True)] == [(answer.status_code, "retry-after" in answer.headers) for answer in answers]
    server.wait(PATIENCE_S)


@pytest.fixture
def redis(tmp_path):
    """A Redis that keeps what it has accepted."""
    if not shutil.which("redis-server") and os.environ.get("CI") != "true":
        pytest.skip("redis-server is not installed: run `make programs`")
    with RedisServer(tmp_path) as redis:
        yield redis


@pytest.fixture
def worker(folder, redis):
    """Starts a worker of the fifth section."""
    command = ("uvicorn", "workers:app", "--port", "{port}")
    return lambda: served(*command, cwd=folder, ready="/openapi.json", REDIS_URL=redis.url)


def leave(server, text):
    """Leave a message for Ann at a worker. Its position."""
    return httpx.post(f"{server.url}/inbox/ann", params={"text": text}, timeout=PATIENCE_S).json()


def take(server, **asked):
    """What a worker answers Ann."""
    return httpx.get(f"{server.url}/inbox/ann", params={"timeout_ms": 1, **asked}, timeout=PATIENCE_S)


def test_second_worker_answers_the_poll(worker):
    """A message that is left at one worker of the fifth section answers the client that waits at the other."""
    with worker() as one, worker() as other, ThreadPoolExecutor() as pool:
        poll = pool.submit(one.get, "/inbox/ann")
        left = leave(other, "hello")
        assert {left: "hello"} == json.loads(poll.result(2 * PATIENCE_S))
        assert {} == take(other, after=left).json()


def test_worker_that_was_killed_misses_nothing(worker):
    """A worker that starts again answers a position from before with all that followed, and none is left out."""
    with worker() as one:
        positions = [leave(one, text) for text in ("one", "two", "three")]
        one.process.kill()
    with worker() as again:
        assert {positions[1]: "two", positions[2]: "three"} == take(again, after=positions[0]).json()
        fourth = leave(again, "four")
        assert [positions[1], positions[2], fourth] == list(take(again, after=positions[0]).json())


def test_position_that_cannot_be_answered_is_said_to_be_so(worker):
    """A text that is no position gets 400. A position gets 410 if more messages followed than a worker keeps."""
    with worker() as one:
        first = leave(one, "first")
        for number in range(101):
            last = leave(one, str(number))
        assert [400, 410, 200] == [take(one, after=after).status_code for after in ("zzz", first, last)]


def test_service_of_several_processes_runs_as_shown(tmp_path, redis):
    """The service on that page, saved as it stands, carries a message to another worker, and rejects bad positions."""
    ((name, text),) = python_files(ROOT / "docs/processes.md")
    (tmp_path / name).write_text(text, encoding="utf-8")
    command = ("uvicorn", "service:app", "--port", "{port}")
    options = {"cwd": tmp_path, "ready": "/openapi.json", "REDIS_URL": redis.url}
    with served(*command, **options) as one, served(*command, **options) as other, ThreadPoolExecutor() as pool:
        poll = pool.submit(one.get, "/topics/orders")
        sent = {"params": {"body": "hello", "id": "7"}, "timeout": PATIENCE_S}
        position = httpx.post(f"{other.url}/topics/orders", **sent).json()
        assert [{"position": position, "body": "hello"}] == json.loads(poll.result(2 * PATIENCE_S))
        assert position == httpx.post(f"{one.url}/topics/orders", **sent).json()
        asked = {"after": "zzz", "timeout_ms": 1}
        assert 400 == httpx.get(f"{one.url}/topics/orders", params=asked, timeout=PATIENCE_S).status_code
        redis.kill()
        sent["params"]["id"] = "8"
        assert httpx.post(f"{one.url}/topics/orders", **sent).status_code in (503, 504)


@pytest.mark.slow
@pytest.mark.parametrize("part", tutorial.PARTS)
def test_service_under_load(part, folder, tmp_path):
    """With hang-ups, kills and restarts no poll is answered early, and no message is lost or doubled."""
    if part == "workers" and not shutil.which("redis-server") and os.environ.get("CI") != "true":
        pytest.skip("redis-server is not installed: run `make programs`")
    figures = tutorial.run(part, folder, tmp_path, seconds=8, seed=1)

    assert [] == figures.complaints
    assert figures.messages > 50 < figures.hang_ups
