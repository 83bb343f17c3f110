"""The outcomes of a request that changes several things, each at its own time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Generic, TypeVar

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

K = TypeVar("K")
Results = dict[K, tuple[ErrorCode, str | None]]
"""A code and a text for each key."""
_NO_ERROR: tuple[ErrorCode, str | None] = (ErrorCode.NONE, None)


class Outcomes(Generic[K]):
    """The outcomes of one request, by name or number. The last one completes the answer."""

    def __init__(self, keys: Iterable[K], respond: Callable[[Results[K]], None]) -> None:
        self._results: Results[K] = dict.fromkeys(keys, _NO_ERROR)
        self._missing = set(self._results)
        self._respond = respond
        if not self._missing:
            respond({})

    def settled(self, key: K, error: BrokerError | None = None) -> None:
        """Note an outcome."""
        if error is not None:
            self._results[key] = (error.code, str(error))
        self._missing.discard(key)
        if not self._missing:
            self._respond(self._results)

    @contextlib.contextmanager
    def errors_of(self, key: K) -> Iterator[None]:
        """Note an error of the block as an outcome."""
        try:
            yield
        except BrokerError as error:
            self.settled(key, error)

    def ended(self, key: K, code: ErrorCode) -> None:
        """Note an outcome that is a code."""
        self.settled(key, None if code is ErrorCode.NONE else BrokerError(code))

    def then_wait(
        self, key: K, wait: Callable[[Callable[[ErrorCode], None]], None]
    ) -> Callable[[BrokerError | None], None]:
        """Return the callback for a write to the tree. If that succeeds, ``wait`` parks the request."""

        def written(error: BrokerError | None) -> None:
            if error is None:
                wait(lambda code: self.ended(key, code))
            else:
                self.settled(key, error)

        return written
