"""``purgatory top``: the state in a terminal."""

import json
import types

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.console import _top, cli, serve
from tests.support import Waiting, park, park_one


@pytest.fixture
def console():
    with DelayedOperationPurgatory("fetch") as fetch, serve(0) as server:
        park(fetch, "orders-3")
        park(fetch, "[red]\x1b[2Jhostile")
        yield server


@pytest.fixture
def shown(console, capsys, monkeypatch):
    """The screen of ``--once`` in a terminal of so many columns."""

    def shown(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert 0 == cli.main([console.url, "--once"])
        return capsys.readouterr().out

    return shown


def test_once_prints_a_screen(shown):
    screen = shown(140)
    for word in ("fetch", "orders-3", "Waiting", "wheel", "reaper on time", "per bucket"):
        assert word in screen


def test_json_prints_the_state(console, capsys):
    assert 0 == cli.main([console.url.removeprefix("http://"), "--json"])
    assert 2 == json.loads(capsys.readouterr().out)["purgatories"][0]["parked"]


def test_token_is_sent(capsys, monkeypatch):
    with serve(0, token="s3cret") as server:
        assert 2 == cli.main([server.url, "--once"])
        assert "PURGATORY_TOKEN" in capsys.readouterr().err
        assert 0 == cli.main([server.url, "--once", "--token", "s3cret"])
        monkeypatch.setenv("PURGATORY_TOKEN", "s3cret")
        assert 0 == cli.main([server.url, "--json"])


ADDRESSES = ("http://[::1", "127.0.0.1:port", "http://", "ftp://127.0.0.1/", "127.0.0.1/é", "[::1]/a b")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        *(([url], f"URL must be an http address, got {url!r}\n") for url in ADDRESSES),
        *(
            (["127.0.0.1:9", "--token", token], "--token must hold printable ASCII characters only\n")
            for token in ("é€", "a\nb")
        ),
        *(([url], "Connection refused\n") for url in ("http://127.0.0.1:9", "127.0.0.1:9")),
    ],
)
def test_what_cannot_work_is_one_line(arguments, wanted, capsys):
    """An address or a token that is none, and an address where nobody answers."""
    assert 2 == cli.main([*arguments, "--once"])
    (line,) = capsys.readouterr().err.splitlines(keepends=True)
    assert line.startswith("purgatory top: ")
    assert line.endswith(wanted)


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon"])
def test_interval_is_checked(interval, capsys):
    with pytest.raises(SystemExit):
        cli.main(["127.0.0.1:9", "--interval", interval])
    said = capsys.readouterr().err
    assert f"argument --interval: must be a number of seconds from 0.1 to 3600, got {interval!r}" in said


def test_it_watches_until_interrupted(console, capsys, monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli, "time", types.SimpleNamespace(sleep=sleep))

    assert 0 == cli.main([console.url, "--interval", "0.5"])
    assert [0.5] * 3 == looks


def test_headings_are_whole_at_80_columns(shown):
    lines = shown(80).splitlines()
    wanted = "purgatory parked keys imm. satis. exp. canc. forced rejected errors"
    assert wanted.split() == lines[2].split()
    assert "fetch" == lines[3].split()[0]
    assert max(map(len, lines)) <= 80


def test_a_long_key_is_shortened_once(shown):
    """A key wider than its column is shortened in the middle, to the width of the column, so that its end shows."""
    with DelayedOperationPurgatory("produce") as produce:
        park(produce, "/tenants/acme-corporation/eu-central-1/topics/orders.v2/partitions/17")
        [row] = [line for line in shown(80).splitlines() if line.startswith("│ /tenants")]
    assert row.split()[1].endswith("artitions/17")
    assert 1 == row.count("…")


def test_a_long_type_leaves_room_for_the_keys(shown):
    named = type("DelayedProduceWithAnExtraordinarilyLongName", (Waiting,), {})
    with DelayedOperationPurgatory("produce") as produce:
        park_one(produce, named(), "orders-of-the-region-3")
        screen = shown(80)
    assert 2 == screen.count("waiting longest under")
    assert "orders-of-the-region-3" in screen


@pytest.mark.parametrize(
    ("normal", "narrow", "text", "style"),
    [
        pytest.param({"expired": 0.0}, False, "12", "", id="none normal"),
        pytest.param({"expired": 12.0}, False, "12", "bright_black", id="all normal"),
        pytest.param({"expired": 9.0}, False, "12 (9 normal)", "", id="some normal"),
        pytest.param({"expired": 9.0}, True, "12", "", id="narrow"),
        pytest.param(None, False, "12", "", id="console of an earlier version"),
    ],
)
def test_normal_ends_are_grey(normal, narrow, text, style):
    rates = {"rates": {"expired": 12.0}} | ({} if normal is None else {"normal_rates": normal})
    shown = _top._rate(rates, "expired", narrow=narrow)
    assert (text, style) == (shown.plain, str(shown.style))
