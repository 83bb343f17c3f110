"""Feeds on the console, in ``purgatory top`` and as JSON."""

import json
import types

import pytest

from purgatory.console import _feeds, cli, serve
from purgatory.console._state import Sampler
from purgatory.feeds import MemoryFeed
from tests.support.feeds import Worker
from tests.support.loops import until


def look(sampler, name):
    """What the console shows of one feed."""
    (seen,) = [seen for seen in sampler.look()["feeds"] if seen["id"] == name]
    return seen


async def test_state_has_each_feed(monkeypatch):
    """A worker in good health follows, has a position and no lag, and applies so many events per second."""
    clock = types.SimpleNamespace(s=0.0, monotonic=lambda: clock.s)
    monkeypatch.setattr(_feeds, "time", clock)
    sampler = Sampler()
    async with Worker(MemoryFeed("healthy")) as worker:
        assert {"applied": 0, "published": 0} == look(sampler, "healthy")["rates"]
        position = await worker.publish(*[b"1"] * 10)
        await until(lambda: worker.following.lag_s == 0)
        clock.s = 2.0
        seen = look(sampler, "healthy")
        assert (True, str(position), 0, 0) == tuple(
            seen[name] for name in ("is_following", "position", "lag_events", "lag_ms")
        )
        assert {"applied": 5, "published": 5} == seen["rates"]
        assert (10, 10) == (seen["totals"]["applied"], seen["totals"]["published"])
        worker.feed.disconnect(away=True)
        await until(lambda: not worker.following.is_following)
        assert look(sampler, "healthy")["is_following"] is False
        worker.feed.restore()


async def test_process_that_only_publishes_has_no_position():
    feed = MemoryFeed("publisher")
    await feed.publish("key", b"1")
    seen = look(Sampler(), "publisher")
    assert (None, None, None, 0) == (seen["is_following"], seen["position"], seen["lag_ms"], seen["followings"])
    await feed.aclose()


def test_feeds_of_one_name_are_numbered():
    one, other = MemoryFeed("twin"), MemoryFeed("twin")
    found = [seen["id"] for seen in Sampler().look()["feeds"]]
    assert ["twin", "twin #2"] == [name for name in found if name.startswith("twin")]
    assert one.name == other.name


@pytest.mark.parametrize(("columns", "has_position"), [("80", False), ("140", True)])
async def test_top_has_a_line_per_feed(monkeypatch, capsys, columns, has_position):
    """State, lag and counts are shown at any width, with whole headings. Hostile names are text."""
    monkeypatch.setenv("COLUMNS", columns)
    async with Worker(MemoryFeed("[red]inbox")) as worker, Worker(MemoryFeed("lost")) as lost:
        position = await worker.publish(b"1")
        lost.feed.disconnect(away=True)
        await until(lambda: not lost.following.is_following)
        with serve(0) as server:
            assert 0 == cli.main([server.url, "--once"])
            lines = capsys.readouterr().out.splitlines()
            assert 0 == cli.main([server.url, "--json"])
        lost.feed.restore()
    (heading,) = [line.split() for line in lines if line.startswith("feed ")]
    assert {"feed", "state", "lag", "events", "applied/s", "gaps", "skipped"} <= set(heading)
    (line,) = [line for line in lines if line.startswith("[red]inbox")]
    assert "following" == line.split()[1]
    assert has_position == (str(position) in line)
    assert any(line.startswith("lost") and "NOT FOLLOWING" in line for line in lines)
    assert max(map(len, lines)) <= int(columns)
    assert {"[red]inbox", "lost"} <= {seen["id"] for seen in json.loads(capsys.readouterr().out)["feeds"]}
