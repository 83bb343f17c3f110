"""A request about topics that waits until its effect is visible on this node.

- **watched under**: the name of each topic in the request
- **checked when**: the controller has sent metadata of the topic, or the topic has left the tree
- **completes when**: every topic is as requested
- **at expiry**: answers "timed out" for the missing topics, and the controller continues its work

Creating and growing wait until this node knows a leader of every partition. Deleting waits until the topic has left the
tree. Electing waits until the elected leaders are known. The three differ only in what ``done`` looks at. They share
this class, and have one purgatory each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from examples.broker.protocol.errors import ErrorCode
from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

What = TypeVar("What")


class DelayedTopics(DelayedOperation, Generic[What]):
    """Answers once all effects are visible.

    Args:
        delay_ms: the timeout of the client's request.
        done: for each topic or partition, whether its effect is visible.
        respond: called once, with a code for each.
    """

    __slots__ = ("_codes", "_done", "_respond")

    def __init__(
        self,
        delay_ms: int,
        done: Mapping[What, Callable[[], bool]],
        respond: Callable[[Mapping[What, ErrorCode]], None],
    ) -> None:
        super().__init__(delay_ms)
        self._done = done
        self._codes = dict.fromkeys(done, ErrorCode.REQUEST_TIMED_OUT)
        self._respond = respond

    def try_complete(self) -> bool:
        """Note which effects are visible now, and complete if none is missing."""
        for what, is_done in self._done.items():
            if self._codes[what] is not ErrorCode.NONE and is_done():
                self._codes[what] = ErrorCode.NONE
        return all(code is ErrorCode.NONE for code in self._codes.values()) and self.force_complete()

    def on_complete(self) -> None:
        """Answer. An effect that is not visible yet has the code "timed out"."""
        self._respond(self._codes)
