"""The journal's records of the purgatories that need no subclass, attached as the documentation says."""

import asyncio
from concurrent.futures import Future

import pytest

from purgatory import DelayedFuturePurgatory, ThresholdPurgatory, on_start
from purgatory.aio import AsyncPurgatory, AsyncThresholdPurgatory
from purgatory.journal import Journal, read


async def _await_some(timeout_ms):
    async with AsyncPurgatory("polls") as polls, AsyncThresholdPurgatory("versions") as versions:
        await polls.wait_for(lambda: False, keys=["inbox"], timeout_ms=5, name="inbox poll")
        await polls.wait_for(lambda: False, keys=["inbox"], timeout_ms=5)
        with pytest.raises(TimeoutError):
            await polls.wait_for_result(lambda: None, keys=["jobs"], timeout_ms=5)
        waiting = asyncio.create_task(versions.wait(5, timeout_ms, key="page"))
        await asyncio.sleep(0)
        versions.maybe_complete(5, key="page")
        await waiting


def test_ready_made_operations_have_readable_types_and_keys(tmp_path):
    """A journal attached by ``on_start`` names their types and keys without an underscore or an address."""
    with Journal(tmp_path) as journal:
        stop = on_start(lambda purgatory: purgatory.attach(journal.observer(purgatory.name)))
        try:
            with (
                DelayedFuturePurgatory("votes") as votes,
                ThresholdPurgatory("watermark") as watermark,
                ThresholdPurgatory("watermarks") as watermarks,
            ):
                votes.try_complete_else_watch(60_000, [Future()], lambda _: None)
                votes.try_complete_else_watch(60_000, [Future()], lambda _: None)
                watermark.wait(3, 60_000)
                watermark.maybe_complete(3)
                watermarks.wait(3, 60_000, key=("orders", 0))
                watermarks.maybe_complete(3, key=("orders", 0))
            asyncio.run(_await_some(60_000))
        finally:
            stop()
    recorded = {(record.purgatory, record.type, *record.keys) for record in read(tmp_path)}
    assert {
        ("votes", "DelayedFuture", "1"),
        ("votes", "DelayedFuture", "2"),
        ("watermark", "ThresholdWaiter", "3"),
        ("watermarks", "ThresholdWaiter", "((orders, 0), 3)"),
        ("polls", "inbox poll", "inbox"),
        ("polls", "Until", "inbox"),
        ("polls", "Taking", "jobs"),
        ("versions", "AwaitedThreshold", "(page, 5)"),
    } == recorded
