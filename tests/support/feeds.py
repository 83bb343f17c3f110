"""A worker that follows a feed, and a feed whose connections follow a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.feeds import Event, MemoryFeed, Position
from purgatory.testing.feeds import _tools

if TYPE_CHECKING:
    from purgatory.feeds.engine import NewEvent

#: What a connection does in a call: what it ought to do, the same after so many seconds, an error, or something else.
Step = float | BaseException | Callable[..., Awaitable[Any]] | None


class Seen(DelayedOperation):
    """Completes at the first check that finds a value in a state."""

    def __init__(self, state: list[bytes], value: bytes) -> None:
        super().__init__(60_000)
        self.state, self.value = state, value

    def try_complete(self) -> bool:
        return self.value in self.state and self.force_complete()


def apply_to(state: list[bytes], keys: Any = None) -> Callable[[Event], Any]:
    """An ``apply`` that adds the value to the state. It returns the event's key, or ``keys``."""

    def apply(event: Event) -> Any:
        state.append(event.value)
        return [event.key] if keys is None else keys

    return apply


class Worker(_tools.Worker):
    """A worker whose state is the list of the values that it has applied. ``apply`` returns ``keys``, if given."""

    def __init__(self, feed: MemoryFeed | None = None, *, keys: Any = None, **settings: Any) -> None:
        self.state: list[bytes] = []
        settings = {"apply": apply_to(self.state, keys), "reload": None, **settings}
        super().__init__(MemoryFeed() if feed is None else feed, **settings)

    def waits(self, value: bytes, *keys: Hashable, kind: type[Seen] = Seen) -> list[Seen]:
        """Start an operation under each key, which waits until this worker has applied a value."""
        operations = [kind(self.state, value) for _ in keys]
        for operation, key in zip(operations, keys, strict=True):
            self.purgatory.start(operation, [key])
        return operations

    async def publish(self, *values: bytes) -> Position:
        """Publish the values, and wait until they are applied. Returns the last position."""
        return await self.publish_and_apply(values)


@contextlib.contextmanager
def followed_on_threads(
    apply: Callable[[Event], Any] = lambda event: [event.key], feed: MemoryFeed | None = None, **settings: Any
) -> Iterator[Any]:
    """Follow a feed in a program on threads."""
    feed = MemoryFeed() if feed is None else feed
    with DelayedOperationPurgatory[Any]("worker") as purgatory, feed.follow(purgatory, apply, **settings) as following:
        yield following


def later(position: Any) -> Any:
    """The position of the next event."""
    return type(position)(position.epoch, position.offset + 1)


def append(feed: MemoryFeed, *values: bytes) -> None:
    """Add events to the history at once, without a turn of the loop."""
    for value in values:
        feed._append(feed._new_event("key", value, None))


class Scripted(MemoryFeed):
    """A feed whose connections do what the test says, a step for each call of ``publish``, ``read`` and so on.

    ``batches`` has the values of each batch that was published, ``asked`` the size of each batch that was read.
    """

    def __init__(self, **settings: Any) -> None:
        calls = ("publish", "end", "resume", "read", "close")
        self.scripts: dict[str, list[Step]] = {name: list(settings.pop(name, ())) for name in calls}
        super().__init__(**settings)
        self.batches: list[list[bytes]] = []
        self.asked: list[int] = []
        self.opened: Counter[str] = Counter()

    async def open_publisher(self) -> Any:
        return self._scripted("publisher", await super().open_publisher(), "publish", "close")

    async def open_reader(self) -> Any:
        return self._scripted("reader", await super().open_reader(), "end", "resume", "read", "close")

    def _scripted(self, kind: str, connection: Any, *names: str) -> Any:
        self.opened[kind] += 1
        for name in names:
            setattr(connection, name, self._steps(name, getattr(connection, name)))
        return connection

    def _steps(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            self._note(name, *args)
            step = self.scripts[name].pop(0) if self.scripts[name] else None
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            return await (step if callable(step) else method)(*args)

        return call

    def _note(self, name: str, asked: Any = None, *_: object) -> None:
        if name == "read":
            self.asked.append(asked)
        elif name == "publish":
            events: list[NewEvent] = asked
            self.batches.append([event.value for event in events])
