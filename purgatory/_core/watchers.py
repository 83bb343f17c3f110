"""The operations that wait under one key."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Hashable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from purgatory._core.implementation import CORE

if TYPE_CHECKING:
    from purgatory._core.shard import Shard

FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Watchers(dict[Any, None]):
    """The operations that wait under one key, in order of arrival.

    Each step is a single dict operation, which is atomic with and without the global lock.

    Attributes:
        is_queued: whether the key is in the queue of idle keys (``purgatory._core.idle_keys``), or is forgotten.
    """

    __slots__ = ("is_queued", "key", "shard")

    def __init__(self, key: Hashable, shard: Shard) -> None:
        self.key: Hashable = key
        self.shard: Shard = shard
        self.is_queued: bool = False

    def operations(self, most: int | None = None) -> list[Any]:
        """The operations in order of arrival: a copy of all, made in one atomic step, or of the first ``most``."""
        if most is None:
            return [*self.keys()]
        if not FREE_THREADED:  # without a global lock, islice() would leave out entries
            with contextlib.suppress(RuntimeError):  # another thread has changed the dict between the two calls
                return list(islice(self, most))
        return [*self.keys()][:most]


if not TYPE_CHECKING and CORE is not None:
    Watchers = CORE.Watchers
