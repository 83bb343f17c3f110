"""The errors of this package: one class per mistake, under `PurgatoryError` and the built-in class that it refines.

They can be pickled, so that they cross a ``multiprocessing.Pool`` with their text and attributes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from timer._errors import reduced

if TYPE_CHECKING:
    from collections.abc import Hashable

ErrorT = TypeVar("ErrorT")


class PurgatoryError(Exception):
    """Base class of the errors that this package raises."""

    __reduce__ = reduced


class PurgatoryClosed(PurgatoryError, RuntimeError):
    """The purgatory ``name`` is shut down and accepts no operations."""

    def __init__(self, name: str, hint: str = "accepts no operations; answer the client yourself") -> None:
        super().__init__(f"purgatory {name!r} is shut down and {hint}")
        self.name = name


class PurgatoryFull(PurgatoryError, RuntimeError):
    """The purgatory ``name`` has no place for an operation, which is unchanged.

    ``limit`` is the limit that was reached: ``max_parked``, or the places that the tenant may hold now. ``tenant`` is
    the operation's tenant, or None if there are no limits by tenant.
    """

    def __init__(self, name: str, limit: int, tenant: Hashable = None, reason: str | None = None) -> None:
        if reason is None:
            text = f"purgatory {name!r} is full: {limit} operations are parked; answer 'busy' or raise max_parked"
        else:
            text = f"purgatory {name!r} has no place for tenant {tenant!r}: {reason}"
        super().__init__(text)
        self.name = name
        self.limit = limit
        self.tenant = tenant


class WaitCancelled(PurgatoryError, RuntimeError):
    """The awaited operation was cancelled in the purgatory ``name``, so there is no result."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the wait in purgatory {name!r} was cancelled by cancel_for_key() or by its own cancel()")
        self.name = name


class WaitDrained(PurgatoryClosed, TimeoutError):
    """The purgatory ``name`` was shut down before the awaited operation's deadline, so there is no result.

    It is a ``TimeoutError`` too, for callers that treat an early end like a timeout.
    """

    if not TYPE_CHECKING:
        __new__ = TimeoutError.__new__  # the other bases have another layout in memory

    def __init__(self, name: str, awaited: str) -> None:
        super().__init__(name)
        self.args: tuple[Any, ...] = (f"purgatory {name!r} was shut down before {awaited}",)


class AlreadyParked(PurgatoryError, RuntimeError):
    """An operation, ``operation``, was parked a second time."""

    def __init__(self, operation: object) -> None:
        super().__init__(f"operation must not have been parked before, got {operation!r}; create a new one")
        self.operation = operation


class NoKeys(PurgatoryError, ValueError):
    """``watch_keys`` is empty, so no event could complete the operation."""

    def __init__(self) -> None:
        super().__init__("watch_keys must hold at least one key, got none; give at least one key")


class WatchKeysType(PurgatoryError, TypeError):
    """The value ``watch_keys`` is not a sequence of keys."""

    def __init__(self, watch_keys: object) -> None:
        if watch_keys is None:
            hint = "give at least one key"
        elif isinstance(watch_keys, Iterable) and not isinstance(watch_keys, (str, bytes, bytearray, tuple)):
            hint = "pass list(keys)"
        else:
            hint = "for a single key, write [key]"
        super().__init__(f"watch keys must be a sequence of keys, got {watch_keys!r}; {hint}")
        self.watch_keys: object = watch_keys


class UnhashableKey(PurgatoryError, TypeError):
    """A watch key, ``key``, is not hashable."""

    def __init__(self, key: object) -> None:
        super().__init__(f"watch key must be hashable, got {type(key).__name__} {key!r}; use a tuple or a frozen value")
        self.key = key


class InvalidOperation(PurgatoryError, TypeError):
    """An object, ``operation``, cannot be parked."""

    def __init__(self, operation: object, why: str) -> None:
        super().__init__(
            why if isinstance(operation, type) else f"{type(operation).__qualname__} cannot be parked: {why}"
        )
        self.operation = operation


class InvalidTenant(PurgatoryError, TypeError):
    """The ``tenant`` function of a purgatory did not return a tenant for ``operation``, which is unchanged."""

    def __init__(self, operation: object, why: str) -> None:
        super().__init__(f"tenant must return a hashable tenant for a {type(operation).__qualname__}: {why}")
        self.operation = operation


class ReservedName(PurgatoryError, AttributeError):
    """An operation type, ``kind``, or an assignment to its instance uses the reserved name ``name``.

    ``kind`` is a mixin of the type if that defines the name.
    """

    def __init__(self, kind: type, name: str, reserved: Iterable[str]) -> None:
        super().__init__(
            f"{kind.__qualname__}.{name} is a reserved name; choose another (reserved are {', '.join(reserved)}, and "
            "names that begin with _op_ or _task_)"
        )
        self.kind = kind
        self.name: str = name


class InvalidSetting(PurgatoryError, ValueError):
    """A class or function was called with an argument that cannot work: the parameter ``setting``, this ``value``."""

    def __init__(self, setting: str, value: object, wanted: str, hint: str = "") -> None:
        super().__init__(f"{setting} must be {wanted}, got {value!r}{'; ' if hint else ''}{hint}")
        self.setting = setting
        self.value = value


def checked_int(setting: str, value: object, least: int, most: int | None = None) -> int:
    """``value`` if it is an ``int`` of at least ``least``, and at most ``most`` if given. Otherwise it raises."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InvalidSetting(setting, value, f"an int, {limits}")
    return value


def unhashable(keys: Iterable[object], error: ErrorT) -> UnhashableKey | ErrorT:
    """The error for the first key that is not hashable. ``error`` if all are, and a key's own code raised it."""
    for key in keys:
        try:
            hash(key)
        except TypeError:
            return UnhashableKey(key)
    return error
