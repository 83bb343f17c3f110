"""The code on the pages about shared state, and about work after the locks are released, as it stands."""

import asyncio
import contextlib
import copy
import importlib
import sys

import pytest

from purgatory.aio import AsyncPurgatory
from tests.support.loops import until
from tests.support.served import ROOT, python_files

PAGES = {name: dict(python_files(ROOT / "docs/recipes" / f"{name}.md")) for name in ("after", "state")}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import one of the pages' files, which runs what it asserts."""
    monkeypatch.syspath_prepend(tmp_path)
    loaded = []

    def load(page):
        for name, text in PAGES[page].items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        loaded.append(page)
        return importlib.import_module(page)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


class Log:
    """A log in memory, whose connections can be cut."""

    def __init__(self, state):
        self._state = state
        self._snapshot = (0, state.empty())
        self._changes = []
        self.appended = asyncio.Event()
        self.cut = False

    async def append(self, change):
        self._changes.append(change)
        self.appended.set()
        return len(self._changes)

    async def snapshot(self):
        number, state = copy.deepcopy(self._snapshot)
        for place, change in enumerate(self._changes, 1):
            if place > number:
                self._state.apply(state, place, change)
        return len(self._changes), state

    async def read(self, after):
        while len(self._changes) <= after and not self.cut:
            self.appended.clear()
            await self.appended.wait()
        if self.cut:
            raise ConnectionError
        return list(enumerate(self._changes, 1))[after:]


def test_work_is_done_after_the_lock_is_released(load):
    """The page's own example runs at a deadline on the reaper thread: it takes the lock that the hook held."""
    assert load("after").asked.is_set()


def test_work_that_is_left_is_done_at_the_end(load):
    """Every added call is run before the thread ends, in order, although some raise."""
    after, done = load("after").After(), []
    for number in range(50):
        after.add(done.append, number)
        after.add(done.pop, 1_000)  # raises
    after.close()
    assert list(range(50)) == done


async def test_replicas_agree(load):
    """A change that one worker takes answers a query in another. A worker that starts later has the same state."""
    page = load("state")
    log = Log(page)
    async with AsyncPurgatory("one") as first, AsyncPurgatory("two") as second, AsyncPurgatory("three") as third:
        one, two, three = page.Replica(log, first), page.Replica(log, second), page.Replica(log, third)
        following = [asyncio.create_task(each.follow()) for each in (one, two)]
        query = asyncio.create_task(two.changed("color", 0, 30_000))
        await until(lambda: second.parked)
        number = await one.write({"kind": "put", "key": "color", "value": "blue"})
        assert {"value": "blue", "number": number} == await query
        assert await two.changed("color", number, 5) is None
        following.append(asyncio.create_task(three.follow()))
        assert "blue" == (await three.changed("color", 0, 30_000))["value"]
        for task in following:
            task.cancel()


@contextlib.asynccontextmanager
async def replicated(page, name):
    """A log, a purgatory, a replica in it, and the task that follows the log."""
    log = Log(page)
    async with AsyncPurgatory(name) as purgatory:
        replica = page.Replica(log, purgatory)
        yield log, purgatory, replica, asyncio.create_task(replica.follow())


async def test_worker_that_was_cut_off_finds_out_what_it_missed(load):
    """After a lost connection a worker starts from a snapshot, and a query that waited meanwhile is answered."""
    async with replicated(load("state"), "polls") as (log, purgatory, replica, following):
        query = asyncio.create_task(replica.changed("color", 0, 30_000))
        await until(lambda: purgatory.parked)
        log.cut = True
        await log.append({"kind": "put", "key": "color", "value": "red"})
        with pytest.raises(ConnectionError):
            await following
        assert not query.done()
        log.cut = False
        following = asyncio.create_task(replica.follow())
        assert "red" == (await query)["value"]
        following.cancel()


async def test_leases_are_fenced(load):
    """A lease ends when it is not kept alive. Its next owner's writes count, and those of the former do not."""
    page = load("state")
    async with replicated(page, "leases") as (log, _, replica, following):
        generation, lease = await page.grant(replica, "leader", "ann", 60_000)
        assert await page.grant(replica, "leader", "bob", 60_000) is None
        assert lease.extend(10)
        await until(lambda: "leader" not in replica.state["leases"])
        later, _ = await page.grant(replica, "leader", "bob", 60_000)
        assert later > generation
        put = {"kind": "put", "key": "config", "lease": "leader"}
        await replica.write({**put, "value": "bob's", "generation": later})
        await replica.write({**put, "value": "ann's", "generation": generation})
        assert "bob's" == replica.state["values"]["config"]["value"]
        await log.append({"kind": "release", "key": "leader", "generation": generation})
        await replica.write({**put, "value": "bob's again", "generation": later})
        assert "bob's again" == replica.state["values"]["config"]["value"]
        following.cancel()
