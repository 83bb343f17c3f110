"""What the tests of the suite share: faults, a worker, and bounded ways to wait."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import pytest

from purgatory.aio import AsyncPurgatory
from purgatory.feeds import Event, Feed, Following, Position, PublishRejected, PublishUncertain

if TYPE_CHECKING:
    from purgatory import DelayedOperation, Outcome

AnswerT = TypeVar("AnswerT")
MakeFeed: TypeAlias = Callable[..., Feed]

#: How long anything may take that should happen soon.
PATIENCE_S: Final = 30.0
PATIENCE_MS: Final = int(PATIENCE_S * 1000)


class Faults:
    """What can happen to a server. Override what can happen to yours. The suite calls these on another thread."""

    def cut(self) -> None:
        """Cut every connection. Others can be made at once."""
        pytest.skip("connections of this engine cannot be cut")

    def stop(self) -> None:
        """Stop the server: connections are lost, and others cannot be made."""
        pytest.skip("the server of this engine cannot be stopped")

    def start(self) -> None:
        """Start it again, with everything that it has accepted. Return when it accepts connections."""
        raise NotImplementedError

    def trim(self, keep: int) -> None:
        """Forget all but the last ``keep`` events. The next one gets the next offset."""
        pytest.skip("this engine does not forget events")

    def lose_last(self, count: int) -> None:
        """Lose the last ``count`` events, and every connection, as a failover to a copy that lags behind does."""
        pytest.skip("this engine does not lose its last events")

    def empty(self) -> None:
        """Lose everything, and begin again."""
        pytest.skip("the server of this engine cannot be emptied")


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, as a plain function that runs it within a bounded time."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * PATIENCE_S):
                await test(*args, **fixtures)

        asyncio.run(bounded())

    return run


class Worker:
    """A worker: a purgatory, its following, and a state that is the list of the events that it has seen."""

    def __init__(self, feed: Feed, **settings: Any) -> None:
        self.purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("worker")
        self.feed = feed
        self.seen: list[Event] = []
        self.reloads = 0
        self.following: Following = feed.follow(
            self.purgatory, **{"apply": self.apply, "reload": self.reload, **settings}
        )

    def apply(self, event: Event) -> list[Hashable]:
        self.seen.append(event)
        return [event.key]

    def reload(self) -> None:
        self.reloads += 1

    @property
    def values(self) -> list[bytes]:
        return [event.value for event in self.seen]

    def poll(self, value: bytes, key: str = "key") -> asyncio.Task[Outcome]:
        """Wait until this worker has seen a value. Parked once the loop runs."""
        wait = self.purgatory.wait_for(lambda: value in self.values, keys=[key], timeout_ms=PATIENCE_MS)
        return asyncio.create_task(wait)

    async def applied(self, position: Position) -> None:
        await self.following.applied(position, timeout_ms=PATIENCE_MS)

    async def publish_and_apply(self, values: Sequence[bytes]) -> Position:
        """Publish values one after the other, and wait until they are applied. Returns the last position."""
        for value in values:
            position = await self.feed.publish("key", value)
        await self.applied(position)
        return position

    async def publish_surely(self, value: bytes, key: str = "key") -> Position:
        """Publish an event until it is accepted, by its id."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.feed.publish(key, value, id=f"id of {value!r}")
            except (PublishRejected, PublishUncertain):
                if time.monotonic() > give_up_s:
                    raise
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> Self:
        await self.purgatory.__aenter__()
        try:
            await self.following.__aenter__()
        except BaseException:
            await self.purgatory.shutdown("cancel")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.following.__aexit__(kind, error, traceback)
        finally:
            await self.purgatory.shutdown("cancel")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.005)


def elsewhere(function: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Run a coroutine on another loop, while this one stands still, as that of a stopped process does."""
    answers: list[AnswerT] = []
    errors: list[BaseException] = []

    def work() -> None:
        async def main() -> None:
            answers.append(await function())

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # a skipped test, too
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert answers, "the other thread did not come back"
    return answers[0]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
