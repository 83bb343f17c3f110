"""The common part of the library's servers: ports, addresses, tokens and access."""

import socket
import urllib.request

import httpx
import pytest
from prometheus_client import CollectorRegistry

from purgatory import (
    DelayedOperationPurgatory,
    InvalidSetting,
    PurgatoryError,
    console,
    journal,
    metrics,
)
from purgatory._serving import AddressUnusable, check_token, hosts_for
from purgatory.journal._serve import MOST_ROWS
from tests.support import park
from timer import SystemTimer


def serve_metrics(folder, port, addr="127.0.0.1"):
    return metrics.serve(port, addr, registry=CollectorRegistry())


def serve_journal(folder, port, addr="127.0.0.1", **token):
    return journal.serve(folder, port, addr, **token)


def serve_console(folder, port, addr="127.0.0.1", **token):
    return console.serve(port, addr, **token)


SERVERS = {"metrics": serve_metrics, "journal": serve_journal, "console": serve_console}
PATHS = {serve_metrics: "/metrics", serve_journal: "/journal/tip", serve_console: "/api/state"}


@pytest.fixture(params=SERVERS.values(), ids=SERVERS.keys())
def serve(request):
    return request.param


def ask(server, path, method="GET", **headers):
    """The status and the body."""
    url = f"http://127.0.0.1:{server.port}{path}"
    answer = httpx.request(method, url, headers=headers, timeout=10, trust_env=False)
    return answer.status_code, answer.content


@pytest.fixture
def written(tmp_path):
    with journal.Journal(tmp_path, when_full="wait") as made:
        with DelayedOperationPurgatory("p", observers=[made.observer("p")], timer_enabled=False) as purgatory:
            park(purgatory, ready=True)
        made.flush()
    return tmp_path


def test_port_that_is_taken_is_named(serve, tmp_path, no_threads_left):
    """The error says which address and port, and what to do. It is an ``OSError`` with its number, too.

    A server that is closed, twice even, leaves no thread.
    """
    with serve(tmp_path, 0) as server, pytest.raises(AddressUnusable) as raised:
        serve(tmp_path, server.port)
    server.close()
    error = raised.value

    assert isinstance(error, OSError)
    assert isinstance(error, PurgatoryError)
    assert ("127.0.0.1", server.port) == (error.addr, error.port)
    assert f"cannot listen on 127.0.0.1 port {server.port}: Address already in use; choose another port" in str(error)


def test_address_that_is_not_of_this_machine_is_named(tmp_path):
    """The error says that the address is wrong, and not the port."""
    with pytest.raises(AddressUnusable, match=r"cannot listen on 192\.0\.2\.1 port 0: .*; choose another addr"):
        serve_metrics(tmp_path, 0, "192.0.2.1")
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert str(AddressUnusable("nowhere", 0, unknown)).endswith(
        "port 0: Name or service not known; choose another addr"
    )
    with pytest.raises(InvalidSetting, match="addr must be a str, got None"):
        serve_metrics(tmp_path, 0, None)


@pytest.mark.parametrize("port", [99_999, -1, "80", None, True])
def test_port_out_of_range_is_named(serve, tmp_path, port):
    """A port is an int from 0 to 65535."""
    with pytest.raises(InvalidSetting, match=rf"port must be an int, from 0 to 65535, got {port!r}"):
        serve(tmp_path, port)


@pytest.mark.parametrize("serve", [serve_journal, serve_console])
def test_address_that_others_reach_needs_a_token(serve, tmp_path):
    """Answers with keys are not given to other machines without a token."""
    with pytest.raises(InvalidSetting, match=r"token must be set for 0\.0\.0\.0.*, got None; pass token="):
        serve(tmp_path, 0, "0.0.0.0")
    with pytest.raises(InvalidSetting, match="token must be a non-empty str"):
        serve(tmp_path, 0, token="")


def test_loopback_is_told_apart():
    """Names and addresses of this machine need no token, and only they are checked against the Host header."""
    for addr in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        check_token(addr, None, "keys")
        assert addr in hosts_for(addr)
    for addr in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        assert hosts_for(addr) is None
        with pytest.raises(InvalidSetting, match="token"):
            check_token(addr, None, "keys")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9100", "", "[", "127.0.0.1.evil.example"])
def test_request_for_another_host_is_rejected_on_loopback(serve, tmp_path, host):
    """A page of another site that gives its own name the address 127.0.0.1 reads nothing."""
    with serve(tmp_path, 0) as server:
        assert 421 == ask(server, PATHS[serve], Host=host)[0]
        assert ask(server, PATHS[serve], Host=f"localhost:{server.port}")[0] in {200, 404}


def test_only_reading_is_allowed(serve, tmp_path):
    """A request that would change something is rejected. HEAD has no body."""
    with serve(tmp_path, 0) as server:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert 405 == ask(server, PATHS[serve], method)[0]
        assert b"" == ask(server, PATHS[serve], "HEAD")[1]


def test_journal_asks_for_its_token(written):
    """With a token, a reader that does not send it gets nothing."""
    with journal.serve(written, 0, token="s3cret") as server:
        assert 401 == ask(server, "/journal")[0]
        assert 401 == ask(server, "/journal", Authorization="Bearer s3cre")[0]
        assert 200 == ask(server, "/journal", Authorization="bearer s3cret")[0]


def test_limit_is_capped(tmp_path, monkeypatch):
    """However much a reader asks for, one answer holds no more rows than the cap."""
    asked = []
    monkeypatch.setattr("purgatory.journal._serve.frames_after", lambda *given: asked.append(given[1:]) or [])
    with journal.serve(tmp_path, 0) as server:
        for limit in ("10", "0", "-5", str(10**30)):
            assert 200 == ask(server, f"/journal?after=3&limit={limit}")[0]

    assert [(3, 10), (3, 1), (3, 1), (3, MOST_ROWS)] == asked
    assert MOST_ROWS <= 100_000


def test_lone_surrogate_does_not_break_a_scrape():
    """A name that has no UTF-8 is exported with an escape, and everything else as ever."""
    registry = CollectorRegistry()
    with (
        SystemTimer("t\udc80") as timer,
        DelayedOperationPurgatory("odd\udc80", timer=timer, reaper_enabled=False),
        DelayedOperationPurgatory("fetch", timer_enabled=False, max_parked=5, tenant=lambda _: "a"),
        metrics.serve(0, registry=registry, types=True, tenants=True) as server,
    ):
        page = urllib.request.urlopen(server.url, timeout=10).read().decode()
    metrics.unregister(registry)

    assert 'purgatory_parked_operations{purgatory="odd\\\\udc80"} 0.0' in page
    assert 'purgatory_parked_operations{purgatory="fetch"} 0.0' in page
    assert 'timer="t\\\\udc80"' in page
