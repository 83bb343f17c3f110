"""The operations that wait under one key."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Hashable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from purgatory._core.implementation import CORE
from purgatory._core.outcome import PARKED

if TYPE_CHECKING:
    from purgatory._core.shard import Shard

FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Watchers(dict[Any, None]):
    """The operations that wait under one key, in order of arrival.

    Each step is a single dict operation, which is atomic with and without the global lock.

    Attributes:
        is_noted: whether the key is in the queue of idle keys (``purgatory._core.idle_keys``), or is forgotten.
    """

    __slots__ = ("is_noted", "key", "shard")

    def __init__(self, key: Hashable, shard: Shard) -> None:
        self.key: Hashable = key
        self.shard: Shard = shard
        self.is_noted: bool = False

    def operations(self) -> list[Any]:
        """The operations in order of arrival: a copy, made in one atomic step."""
        return [*self.keys()]

    def with_first_key_here(self, operations: list[Any]) -> list[Any]:
        """Those of ``operations`` that wait, and have their first key here."""
        return [each for each in operations if each._op_state <= PARKED and each._op_watches[0] is self]

    def head(self, most: int) -> list[Any]:
        """The first ``most`` operations in order of arrival."""
        if not FREE_THREADED:  # without a global lock, islice() would leave out entries
            with contextlib.suppress(RuntimeError):  # another thread has changed the dict between the two calls
                return list(islice(self, most))
        return self.operations()[:most]

    def after(self, known: list[Any], most: int) -> list[Any] | None:
        """The operations behind the last of ``known`` that is still here. None if none of them is here.

        If ``known`` is empty, the first ``most``. Otherwise ``most`` is ignored: a dict cannot be read from a position.
        """
        if not known:
            return self.head(most)
        for operation in reversed(known):
            if operation in self:
                operations = self.operations()
                with contextlib.suppress(ValueError):  # it was removed meanwhile
                    return operations[operations.index(operation) + 1 :]
        return None


if not TYPE_CHECKING and CORE is not None:
    Watchers = CORE.Watchers
