"""``purgatory top``: the state in a terminal."""

import json
import types

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.console import _top, cli, serve
from tests.support import Waiting


@pytest.fixture
def console():
    with DelayedOperationPurgatory("fetch") as fetch, serve(0) as server:
        fetch.try_complete_else_watch(Waiting(), ["orders-3"])
        fetch.try_complete_else_watch(Waiting(), ["[red]\x1b[2Jhostile"])
        yield server


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")


def test_once_prints_a_screen(console, capsys):
    """``--once`` prints purgatories, wheel, reaper and keys, and ends well."""
    assert 0 == cli.main([console.url, "--once"])
    shown = capsys.readouterr().out
    for word in ("fetch", "orders-3", "Waiting", "wheel", "reaper on time", "per bucket"):
        assert word in shown


def test_keys_are_text(console, capsys):
    """A key with markup and control characters is shown as it is, and moves no cursor."""
    cli.main([console.url, "--once"])
    shown = capsys.readouterr().out

    assert "[red]\\x1b[2Jhostile" in shown
    assert "\x1b[2J" not in shown


def test_json_prints_the_state(console, capsys):
    """``--json`` prints the same facts for a script."""
    assert 0 == cli.main([console.url.removeprefix("http://"), "--json"])
    assert 2 == json.loads(capsys.readouterr().out)["purgatories"][0]["parked"]


def test_token_is_sent(capsys, monkeypatch):
    """With a token, from the option or the environment, it looks. Without, it says what is missing."""
    with serve(0, token="s3cret") as server:
        assert 2 == cli.main([server.url, "--once"])
        assert "PURGATORY_TOKEN" in capsys.readouterr().err
        assert 0 == cli.main([server.url, "--once", "--token", "s3cret"])
        monkeypatch.setenv("PURGATORY_TOKEN", "s3cret")
        assert 0 == cli.main([server.url, "--json"])


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9"])
def test_nobody_there(url, capsys):
    """An address where no console answers is an error in one line."""
    assert 2 == cli.main([url, "--once"])
    assert 1 == len(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    "url", ["http://[::1", "127.0.0.1:port", "http://", "ftp://127.0.0.1/", "127.0.0.1/é", "[::1]/a b"]
)
def test_address_is_checked(url, capsys):
    """An address that is not one of HTTP is rejected by name."""
    assert 2 == cli.main([url, "--once"])
    assert f"purgatory top: URL must be an http address, got {url!r}\n" == capsys.readouterr().err


@pytest.mark.parametrize("token", ["é€", "a\nb"])
def test_token_is_checked(console, token, capsys):
    """A token that no header can carry is rejected, and not shown."""
    assert 2 == cli.main([console.url, "--once", "--token", token])
    assert "purgatory top: --token must hold printable ASCII characters only\n" == capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon"])
def test_interval_is_checked(interval, capsys):
    """An interval that can't be kept is rejected."""
    with pytest.raises(SystemExit):
        cli.main(["127.0.0.1:9", "--interval", interval])
    said = capsys.readouterr().err
    assert f"argument --interval: must be a number of seconds from 0.1 to 3600, got {interval!r}" in said


def test_it_watches_until_interrupted(console, capsys, monkeypatch):
    """It looks again and again, and ends well when it is interrupted."""
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli, "time", types.SimpleNamespace(sleep=sleep))

    assert 0 == cli.main([console.url, "--interval", "0.5"])
    assert [0.5] * 3 == looks


def test_headings_are_whole_at_80_columns(console, capsys, monkeypatch):
    """In a terminal of 80 columns no heading and no name of a purgatory is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    assert 0 == cli.main([console.url, "--once"])
    lines = capsys.readouterr().out.splitlines()

    wanted = "purgatory parked keys imm. satis. exp. canc. forced rejected errors"
    assert wanted.split() == lines[2].split()
    assert "fetch" == lines[3].split()[0]
    assert max(map(len, lines)) <= 80


def test_a_long_key_is_shortened_once(console, capsys, monkeypatch):
    """A key wider than its column is shortened in the middle, to the width of the column, so that its end shows."""
    with DelayedOperationPurgatory("produce") as produce:
        key = "/tenants/acme-corporation/eu-central-1/topics/orders.v2/partitions/17"
        produce.try_complete_else_watch(Waiting(), [key])
        monkeypatch.setenv("COLUMNS", "80")
        assert 0 == cli.main([console.url, "--once"])
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ /tenants")]
    assert row.split()[1].endswith("artitions/17")
    assert 1 == row.count("…")


def test_a_long_type_leaves_room_for_the_keys(console, capsys, monkeypatch):
    """In a terminal of 80 columns a type with a long name is cut, and the heading of the keys is whole."""

    class DelayedProduceWithAnExtraordinarilyLongName(Waiting):
        pass

    with DelayedOperationPurgatory("produce") as produce:
        produce.try_complete_else_watch(DelayedProduceWithAnExtraordinarilyLongName(), ["orders-of-the-region-3"])
        monkeypatch.setenv("COLUMNS", "80")
        assert 0 == cli.main([console.url, "--once"])
    shown = capsys.readouterr().out
    assert 2 == shown.count("waiting longest under")
    assert "orders-of-the-region-3" in shown


@pytest.mark.parametrize(
    ("expired", "normal", "narrow", "text", "style"),
    [
        (12.0, 0.0, False, "12", ""),
        (12.0, 12.0, False, "12", "bright_black"),
        (12.0, 9.0, False, "12 (9 normal)", ""),
        (12.0, 9.0, True, "12", ""),
    ],
)
def test_normal_ends_are_grey(expired, normal, narrow, text, style):
    """Ends that are all normal are grey. Of others, a wide terminal shows how many are normal."""
    shown = _top._rate({"rates": {"expired": expired}, "normal_rates": {"expired": normal}}, "expired", narrow=narrow)

    assert (text, style) == (shown.plain, str(shown.style))


def test_console_of_an_earlier_version_has_no_normal_ends():
    """A state without ``normal_rates`` is shown as before."""
    assert "12" == _top._rate({"rates": {"expired": 12.0}}, "expired", narrow=False).plain
