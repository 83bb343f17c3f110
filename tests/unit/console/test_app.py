"""The console as an ASGI app: its responses, its access control, and that it is read-only."""

import gc
import json
import socket
import threading

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from purgatory import DelayedOperationPurgatory, InvalidSetting, PurgatoryError
from purgatory.console import _hub, app, serve
from purgatory.console._app import make_app
from tests.support import Waiting, eventually, park, park_all, park_one, run_threads

SECRET = "a payload nobody may see"


class Carrier(Waiting):
    """An operation that carries something."""

    payload = SECRET

    def __repr__(self):
        return f"<Carrier {self.payload}>"


@pytest.fixture
def fetch():
    with DelayedOperationPurgatory("fetch", max_parked=50) as purgatory:
        yield purgatory


@pytest.fixture
def console(hub):
    return make_app(hub, token=None, hosts=None)


def test_state_tells_what_is_parked(fetch, console, get):
    for _ in range(3):
        park(fetch, "k")

    state = get(console, "/api/state").json()

    (seen,), (timer,) = state["purgatories"], state["timers"]
    assert ("fetch", 3, 50, 1) == (seen["id"], seen["parked"], seen["capacity"], seen["keys"])
    assert [{"key": "k", "entries": 3}] == seen["hottest"]
    assert 3 == timer["pending"] == sum(map(sum, timer["buckets"]))
    assert seen["timer"] == timer["id"]
    assert timer["reaper"]["alive"]
    assert timer["now_tick"] >= timer["hand"]


def test_namesakes_are_told_apart(console, get):
    with DelayedOperationPurgatory("fetch"), DelayedOperationPurgatory("fetch"):
        assert ["fetch", "fetch #2"] == [seen["id"] for seen in get(console, "/api/state").json()["purgatories"]]


def test_operations_under_a_key(fetch, console, get):
    """They are shown in order of arrival: type, age, time left, checks. Nothing else."""
    park_all(fetch, [Carrier(60_000), Carrier(90_000)], ("orders", 3))
    answer = get(console, "/api/operations", query="purgatory=fetch&key=%28orders%2C+3%29").json()
    assert 2 == answer["total"]
    assert {"key", "type", "age_ms", "left_ms", "checks"} == set(answer["operations"][0])
    assert 50_000 < answer["operations"][0]["left_ms"] <= 60_000 < answer["operations"][1]["left_ms"]


def test_key_that_nobody_waits_under(fetch, console, get):
    assert [] == get(console, "/api/operations", query="purgatory=fetch&key=none").json()["operations"]
    assert 404 == get(console, "/api/operations", query="purgatory=none&key=k").status_code
    assert 400 == get(console, "/api/operations").status_code


def test_payload_is_never_shown(fetch, console, get):
    park_one(fetch, Carrier())
    for path, query in (("/api/state", ""), ("/api/history", ""), ("/api/operations", "purgatory=fetch&key=k")):
        assert SECRET.encode() not in get(console, path, query=query).content


def test_history_is_kept(fetch, console, get):
    park(fetch)
    get(console, "/api/state")
    assert 1 == get(console, "/api/history").json()["points"][-1][1]["fetch"][0]


def test_history_is_read_while_the_thread_notes(hub):
    """A reader neither waits for a look nor sees half of one. It is of the last ten minutes."""
    over = threading.Event()

    def note():
        while not over.is_set():
            hub._note({"fetch": [1.0]})

    def read():
        try:
            with hub._sampling:  # as while a page is open
                return [len(json.loads(hub.history())["points"]) for _ in range(300)]
        finally:
            over.set()

    _, lengths = run_threads(note, read)
    assert sorted(lengths) == lengths
    assert lengths[-1] <= 600


PAGE = ["/", "/console.js", "/charts.js", "/wheel.js", "/console.css"]


@pytest.mark.parametrize("path", [*PAGE, "/api/state"])
def test_answers_forbid_the_rest_of_the_web(console, get, path):
    answer = get(console, path)
    assert (200, "nosniff") == (answer.status_code, answer.headers["x-content-type-options"])
    for policy in ("default-src 'none'", "frame-ancestors 'none'"):
        assert policy in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", PAGE)
def test_page_needs_nothing_from_outside(console, get, path):
    text = get(console, path).content.decode().replace("http://www.w3.org/2000/svg", "").replace("http%3A", "")
    assert "http:" not in text.replace("xmlns='http://www.w3.org", "")
    assert "https:" not in text
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in text


@pytest.fixture
def guarded(hub):
    return make_app(hub, token="s3cret", hosts=None)


def test_without_the_token_nothing_is_shown(guarded, get):
    for path in ("/", "/api/state", "/events", "/console.js"):
        assert 401 == get(guarded, path).status_code
    assert 401 == get(guarded, "/api/state", headers=[("authorization", "Bearer wrong")]).status_code
    assert 401 == get(guarded, "/", query="token=wrong").status_code
    assert 401 == get(guarded, "/", headers=[("cookie", "purgatory_console=s3cret")]).status_code
    assert 200 == get(guarded, "/api/state", headers=[("authorization", "Bearer s3cret")]).status_code


def test_token_in_the_address_becomes_a_cookie(guarded, get):
    """A browser brings the token in the address once, is sent on without it, and comes back with a cookie."""
    answer = get(guarded, "/", query="token=s3cret&a=b")

    assert 303 == answer.status_code
    assert "/?a=b" == answer.headers["location"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "s3cret" not in cookie
    assert 200 == get(guarded, "/", headers=[("cookie", cookie.split(";")[0])]).status_code


@pytest.mark.parametrize("token", ["", 5])
def test_bad_token_is_an_error(token):
    with pytest.raises(InvalidSetting, match="token must be a non-empty str"):
        app(token=token)


def test_mounted_in_a_service(fetch, console, get):
    service = Starlette(routes=[Mount("/purgatory", console)])
    assert b"console.js" in get(service, "/purgatory/").content
    assert "fetch" == get(service, "/purgatory/api/state").json()["purgatories"][0]["id"]


@pytest.mark.parametrize("problem", [OSError("no loop"), SystemExit(1)])
def test_server_that_does_not_start_is_an_error(no_threads_left, monkeypatch, problem):
    ports = []

    async def fail(_, sockets):
        ports.append(sockets[0].getsockname())
        raise problem

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    with pytest.raises(PurgatoryError, match="the console's server does not start: .*see the log of uvicorn"):
        serve(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(ports[0])


def test_look_that_fails_is_logged_and_repeated(hub, logs, monkeypatch):
    monkeypatch.setattr(_hub, "WATCHED_S", 0.01)
    looks = []

    def fail():
        looks.append(1)
        raise OSError("no look")

    monkeypatch.setattr(hub._sampler, "look", fail)
    hub.note_viewer()

    assert eventually(lambda: len(looks) > 2)
    assert "OSError('no look')" == next(e["error"] for e in logs if e["event"] == "console_look_failed")


def test_forgotten_hub_ends_its_thread(no_threads_left, get):
    assert 200 == get(app(), "/api/state").status_code
    gc.collect()  # an app is made of cycles
