"""A request about topics, waiting until this node sees that it was carried out.

- **watched under**: the name of each topic that it is about
- **checked when**: the controller told this node of the topic, or the topic left the tree
- **completes when**: every topic is as was asked for, or was refused
- **at expiry**: answers "timed out" for what is missing; the work goes on

Creating and growing wait until every partition has a leader that this node knows of; deleting, until nothing is left;
electing, until the elected leaders are known. They differ in what is looked at only, so they share this class, and have
a purgatory each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from examples.broker.protocol.errors import ErrorCode
from purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

What = TypeVar("What")


class DelayedTopics(DelayedOperation, Generic[What]):
    """Answers once all that was asked for can be seen.

    Args:
        delay_ms: how long the client wants to wait.
        done: for each thing that was asked for, whether it can be seen.
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
        """Note what can be seen by now; complete when nothing is missing."""
        for what, is_done in self._done.items():
            if self._codes[what] is not ErrorCode.NONE and is_done():
                self._codes[what] = ErrorCode.NONE
        return all(code is ErrorCode.NONE for code in self._codes.values()) and self.force_complete()

    def on_complete(self) -> None:
        """Answer; what can't be seen yet has the code "timed out"."""
        self._respond(self._codes)
