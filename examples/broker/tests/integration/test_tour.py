"""``make run``'s program, with a short load: it ends, finds every record once, and leaves nothing running."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from examples.broker.tour.__main__ import main
from examples.broker.tour.ledger import ACKNOWLEDGED, Ledger
from examples.broker.tour.spark import Installation, what_is_missing
from tests.support import eventually

ROOT = Path(__file__).parents[4]
SHORT = ["--seconds", "12", "--rate", "100", "--stop-at", "1", "--resume-at", "8"]


def start(folder, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "examples.broker.tour", "--folder", str(folder), *SHORT, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts():
    """Of a shell that put the tests into the background a program inherits that it is to ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def still_running(folder):
    """The command lines of processes that were started for this folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


@pytest.fixture
def tour(tmp_path):
    """Start the tour. Whatever a test does, it is ended."""
    started = []

    def run(*arguments, **environment):
        started.append(start(tmp_path, *arguments, **environment))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        process.stdout.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tour_tells_its_story(tour, tmp_path):
    """A leader dies, others lead, it comes back. Nothing acknowledged is lost. Spark's page is there. All ended."""
    if (missing := what_is_missing()) and os.environ.get("CI") != "true":
        pytest.skip(missing)
    process = tour()
    shown, _ = process.communicate(timeout=580)

    assert 0 == process.returncode, shown
    for word in (
        "node 3 is killed",
        "answered REQUEST_TIMED_OUT, and sent again",
        "what node 3 led is led by others now",
        "node 3 is no longer in sync",
        "node 3 is in sync again",
        "of the partitions again",
    ):
        assert word in shown
    assert re.search(r"[1-9]\d* records were acknowledged, and all are in the log, once", shown)
    assert "tables, the same from both" in shown
    (page,) = re.findall(r"^  report +file://(\S+index\.html)$", shown, re.MULTILINE)
    assert "<html" in Path(page).read_text()
    assert ["report", "console", "metrics"] == re.findall(r"^  (\w+) +\w+://\S+$", shown, re.MULTILINE)
    assert [] == still_running(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kept_it_serves_until_interrupted(tour, tmp_path):
    """With --keep the printed addresses answer, the load goes on, and Ctrl-C ends everything."""
    process = tour("--keep", "--no-report")
    shown = ""
    for line in process.stdout:
        shown += line
        if line.startswith("  metrics"):
            break
    urls = dict(re.findall(r"^  (metrics|console) +(http\S+)$", shown, re.MULTILINE))
    assert {"metrics", "console"} == set(urls), shown
    assert "purgatory_parked_operations" in get(urls["metrics"])

    def started():
        state = json.loads(get(f"{urls['console']}api/state"))
        return sum(each["totals"]["started"] for each in state["purgatories"])

    before = started()
    assert eventually(lambda: started() > before, seconds=60)
    process.send_signal(signal.SIGINT)
    assert 0 == process.wait(60)
    assert [] == still_running(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_leaves_nothing_running(tour, tmp_path, number):
    """Interrupted or even killed while a node is dead, it leaves no process."""
    process = tour("--no-report")
    for line in process.stdout:
        if "is killed" in line:
            break
    assert 2 <= len(still_running(tmp_path))
    process.send_signal(number)
    assert (-signal.SIGKILL if number == signal.SIGKILL else 130) == process.wait(60)
    assert eventually(lambda: not still_running(tmp_path), seconds=60), still_running(tmp_path)


def test_a_lost_record_is_noticed():
    """An acknowledged record that isn't in the log breaks the balance, and so does any that is there twice."""
    ledger = Ledger()
    for number, verdict in enumerate([ACKNOWLEDGED, ACKNOWLEDGED, "_MSG_TIMED_OUT"]):
        ledger.answered(number, 0.0, verdict)

    assert (True, 1, 1) == (
        ledger.balance([0, 1, 2]).holds,
        ledger.balance([0, 1, 2]).given_up,
        ledger.balance([0, 1, 2]).given_up_but_there,
    )
    assert (False, 1) == (ledger.balance([0, 2]).holds, ledger.balance([0, 2]).missing)
    assert (False, 1) == (ledger.balance([0, 1, 1]).holds, ledger.balance([0, 1, 1]).doubled)
    assert (False, 1) == (ledger.balance([0, 1, 2, 2]).holds, ledger.balance([0, 1, 2, 2]).doubled)
    assert not Ledger().balance([]).holds


@pytest.mark.slow
def test_installation_runs_beside_the_load(tmp_path):
    """The command is waited for, and it is ended where the tour ends before it."""
    with Installation(f"touch {tmp_path / 'installed'}", tmp_path / "log") as installation:
        installation.wait()
        assert installation.is_over
    assert (tmp_path / "installed").exists()
    with Installation(f"tail -f {tmp_path / 'log'}", tmp_path / "log") as installation:
        assert not installation.is_over
    assert [] == still_running(tmp_path / "log")
    with Installation("", tmp_path / "none") as installation:
        assert installation.is_over


def test_without_java_the_report_says_so(monkeypatch):
    """Where no Java is, one line says what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "openjdk" in what_is_missing()


@pytest.mark.parametrize(
    "arguments", [["--seconds", "0"], ["--rate", "-1"], ["--stop-at", "9", "--resume-at", "8"], ["--resume-at", "99"]]
)
def test_bad_settings_are_refused(arguments, capsys):
    """An impossible time is rejected with the reason."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert 2 == stopped.value.code
    assert "error:" in capsys.readouterr().err
