"""The base class of servers, folders and locks that close at the end of a ``with`` block.

A subclass says which threads may call ``close``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing:
    """A context manager that closes on leaving."""

    def close(self) -> object:
        """Close. Harmless twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
