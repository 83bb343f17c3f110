"""``wait_for_result``: a wait that brings what it waited for, to one waiter, or gives it back."""

import asyncio
import contextlib
import threading
from collections import deque

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryClosed, WaitCancelled
from purgatory.aio import AsyncPurgatory
from purgatory.aio._waits import Taking
from tests.support.loops import until


class Shelf:
    """Items, and waiters for them."""

    def __init__(self, purgatory, items=()):
        self.purgatory = purgatory
        self.items = deque(items)

    def take(self):
        return self.items.popleft() if self.items else None

    def put(self, item):
        self.items.append(item)
        return self.purgatory.check_and_complete("shelf")

    def get(self, timeout_ms=60_000, **options):
        return asyncio.create_task(
            self.purgatory.wait_for_result(self.take, keys=["shelf"], timeout_ms=timeout_ms, **options)
        )

    async def all_wait(self, number):
        await until(lambda: number == self.purgatory.waiting == len(self.purgatory.operations_for_key("shelf")))


@pytest.mark.parametrize("item", ["one", 0, ""])
async def test_result_that_is_there_comes_at_once(purgatory, item):
    """What ``find`` gives at once is returned, and nothing is parked. Anything but None is a result."""
    assert item == await Shelf(purgatory, [item]).get()
    assert 1 == purgatory.totals().immediate


async def test_one_item_goes_to_one_waiter_in_order_of_arrival(purgatory):
    """Of those that wait, an item goes to the first. The others go on waiting."""
    shelf = Shelf(purgatory)
    takers = [shelf.get() for _ in range(3)]
    await shelf.all_wait(3)
    assert 1 == shelf.put("one")
    assert "one" == await takers[0]
    assert 2 == purgatory.waiting
    shelf.items.append("two")
    assert 2 == shelf.put("three")
    assert ["two", "three"] == await asyncio.gather(*takers[1:])


async def test_item_whose_taker_is_cancelled_is_given_back(purgatory):
    """A task that is cancelled when its item was found, and not delivered, gives it back, once."""
    shelf = Shelf(purgatory)
    cancelled, other = shelf.get(give_back=shelf.put), shelf.get()
    await shelf.all_wait(2)
    assert 1 == shelf.put("one")
    cancelled.cancel()
    assert "one" == await other
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not shelf.items


async def test_cancelled_before_anything_is_found_gives_nothing_back(purgatory):
    """A task that is cancelled while it waits has nothing to give back."""
    shelf, back = Shelf(purgatory), []
    task = shelf.get(give_back=back.append)
    await shelf.all_wait(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 == shelf.put("one")
    assert ([], ["one"]) == (back, list(shelf.items))


async def test_item_found_while_the_wait_is_taken_out_is_given_back(purgatory):
    """A wait that is taken out at the moment of finding keeps nothing."""
    back, asked = [], []

    def find():
        if not asked:
            return None
        assert 1 == len(purgatory.cancel_for_key("k"))
        return "one"

    task = asyncio.create_task(purgatory.wait_for_result(find, keys=["k"], timeout_ms=60_000, give_back=back.append))
    await until(lambda: purgatory.watching("k"))
    await asyncio.sleep(0)
    asked.append(True)
    purgatory.check_and_complete("k")
    with pytest.raises(WaitCancelled, match="'test'"):
        await task
    assert ["one"] == back


@pytest.mark.parametrize("forced", [False, True])
async def test_item_goes_to_the_task_or_back_but_not_both(run, forced, monkeypatch):
    """A wait that ends from outside, after its item was found, delivers the item or returns it. Cancelled: returns."""
    ended = threading.Event()
    with DelayedOperationPurgatory("threads") as core:
        purgatory = AsyncPurgatory.over(core)
        shelf, back = Shelf(purgatory), []
        task = shelf.get(give_back=back.append)
        await shelf.all_wait(1)

        def too_late(self):
            assert force(self) if forced else purgatory.cancel_for_key("shelf")
            assert ended.wait(30)
            return force(self)

        force = Taking.force_complete
        monkeypatch.setattr(Taking, "force_complete", too_late)
        putting = asyncio.create_task(asyncio.to_thread(shelf.put, "one"))
        received = []
        with contextlib.suppress(WaitCancelled):
            received.append(await task)
        ended.set()
        await putting
        assert ["one"] == received + back
        assert forced == bool(received)


async def take_out(purgatory):
    assert 1 == len(purgatory.cancel_for_key("shelf"))


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (take_out, WaitCancelled),
        (lambda purgatory: purgatory.shutdown("expire"), PurgatoryClosed),
        (lambda purgatory: purgatory.shutdown("cancel"), PurgatoryClosed),
    ],
    ids=["taken out", "drained", "closed"],
)
async def test_wait_that_is_ended_raises_an_error(purgatory, end, error):
    """A wait that ``cancel_for_key`` or a shutdown ends raises an error that is not a timeout's."""
    shelf = Shelf(purgatory)
    task = shelf.get()
    await shelf.all_wait(1)
    await end(purgatory)
    with pytest.raises(error):
        await task


async def test_error_of_find_ends_the_wait(purgatory):
    """What ``find`` raises is raised where the result is awaited."""
    with pytest.raises(ZeroDivisionError):
        await purgatory.wait_for_result(lambda: 1 // 0, keys=["k"], timeout_ms=1000)


async def test_items_of_many_threads_all_arrive(run):
    """Over a thread-based purgatory, items put by threads reach one waiter each, cancelled tasks' ones included."""
    with DelayedOperationPurgatory("threads") as core:
        async with AsyncPurgatory.over(core) as purgatory:
            shelf = Shelf(purgatory)
            tasks = [shelf.get(give_back=lambda item: shelf.put(item)) for _ in range(60)]
            await shelf.all_wait(60)
            putting = [asyncio.to_thread(lambda n=n: [shelf.put((n, i)) for i in range(10)]) for n in range(4)]
            for task in tasks[::3]:
                asyncio.get_running_loop().call_later(0.001, task.cancel)
            await asyncio.gather(*putting)
            # An item that is given back is for a moment neither on the shelf nor anybody's.
            await until(lambda: 40 == sum(task.done() and not task.cancelled() for task in tasks))
            got = [task.result() for task in tasks if task.done() and not task.cancelled()]
            assert len(set(got)) == len(got) == 40
