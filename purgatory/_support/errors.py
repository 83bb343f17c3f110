"""What can go wrong with a purgatory: one class per mistake, each refining the built-in that callers already catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

__all__ = [
    "AlreadyParked",
    "InvalidAction",
    "InvalidOperation",
    "InvalidSetting",
    "InvalidTenant",
    "NoKeys",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "ReservedName",
    "UnhashableKey",
    "WaitCancelled",
    "WaitDrained",
    "WatchKeysType",
    "WrongLoop",
    "unhashable",
    "whole",
]


class PurgatoryError(Exception):
    """Everything that this package raises on purpose."""


class PurgatoryClosed(PurgatoryError, RuntimeError):
    """The purgatory was shut down and takes no more operations.

    Attributes:
        name: the purgatory's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"purgatory {name!r} is shut down and takes no more operations; answer the client yourself")
        self.name = name


class PurgatoryFull(PurgatoryError, RuntimeError):
    """The purgatory holds as many operations as it was allowed to. The operation was not touched.

    Attributes:
        name: the purgatory's name.
        limit: its ``max_parked``.
        tenant: whose operation it was, if places are divided by tenant; None otherwise.
    """

    def __init__(self, name: str, limit: int, tenant: Hashable = None, reason: str | None = None) -> None:
        if reason is None:
            text = (
                f"purgatory {name!r} holds its limit of {limit} parked operations; answer 'busy', or raise max_parked"
            )
        else:
            text = f"purgatory {name!r} has no place for tenant {tenant!r}: {reason}"
        super().__init__(text)
        self.name = name
        self.limit = limit
        self.tenant = tenant


class WaitCancelled(PurgatoryError, RuntimeError):
    """Whoever awaited a result gets none: somebody took the wait out of the purgatory.

    Attributes:
        name: the purgatory's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the wait was taken out of purgatory {name!r}, by cancel_for_key() or its own cancel()")
        self.name = name


class WaitDrained(PurgatoryClosed, TimeoutError):
    """Whoever awaited a result gets none: its purgatory was shut down, before the time was up.

    A ``TimeoutError`` as well, for whoever makes no difference between an end that is early and one that is due.

    Attributes:
        name: the purgatory's name.
    """

    def __init__(self, name: str, awaited: str) -> None:
        super().__init__(name)
        self.args = (f"purgatory {name!r} was shut down before {awaited}",)


class AlreadyParked(PurgatoryError, RuntimeError):
    """An operation was given to a purgatory for the second time.

    Attributes:
        operation: the operation.
    """

    def __init__(self, operation: object) -> None:
        super().__init__(f"{operation!r} was parked before; an operation is good for one stay, make a new one")
        self.operation = operation


class NoKeys(PurgatoryError, ValueError):
    """An operation was to be watched under no key at all: no event could ever complete it."""

    def __init__(self) -> None:
        super().__init__("watch_keys is empty, so no check could ever reach the operation; give at least one key")


class WatchKeysType(PurgatoryError, TypeError):
    """``watch_keys`` is not a sequence of keys.

    Attributes:
        watch_keys: what was given.
    """

    def __init__(self, watch_keys: object) -> None:
        super().__init__(f"watch_keys must be a sequence of keys, not {watch_keys!r}; for a single key write [key]")
        self.watch_keys = watch_keys


class UnhashableKey(PurgatoryError, TypeError):
    """A watch key has no hash, so that nothing could be found under it.

    Attributes:
        key: the key.
    """

    def __init__(self, key: object) -> None:
        super().__init__(f"watch key {key!r} is unhashable ({type(key).__name__}); use a tuple or a frozen value")
        self.key = key


class InvalidOperation(PurgatoryError, TypeError):
    """What was to be parked cannot be.

    Attributes:
        operation: what was given.
    """

    def __init__(self, operation: object, why: str) -> None:
        super().__init__(f"{type(operation).__qualname__} cannot be parked: {why}")
        self.operation = operation


class InvalidTenant(PurgatoryError, TypeError):
    """The ``tenant`` function of a purgatory doesn't say whose an operation is. The operation was not touched.

    Attributes:
        operation: the operation.
    """

    def __init__(self, operation: object, why: str) -> None:
        super().__init__(f"the tenant of a {type(operation).__qualname__} can't be told: {why}")
        self.operation = operation


class ReservedName(PurgatoryError, AttributeError):
    """A subclass, or an assignment, uses a name that is the library's own.

    Attributes:
        kind: the operation's type.
        name: the name.
    """

    def __init__(self, kind: type, name: str, reserved: Iterable[str]) -> None:
        theirs = "keeps" if name.startswith("_") else "tells"
        super().__init__(
            f"{kind.__qualname__}.{name} can't be set: {', '.join(reserved)} are what the library {theirs} of an "
            "operation; call yours something else"
        )
        self.kind = kind
        self.name = name


class InvalidAction(PurgatoryError, TypeError):
    """What was put into an action queue can't be called.

    Attributes:
        action: what was given.
    """

    def __init__(self, action: object) -> None:
        super().__init__(f"an action must be callable, not {action!r}; give the function, and its arguments after it")
        self.action = action


class WrongLoop(PurgatoryError, RuntimeError):
    """A purgatory or a timer of one event loop was used on another.

    Attributes:
        name: the purgatory's or the timer's name.
    """

    def __init__(self, name: str, what_to_do: str) -> None:
        super().__init__(f"{name!r} belongs to another event loop; {what_to_do}")
        self.name = name


class InvalidSetting(PurgatoryError, ValueError):
    """A purgatory was built, or a call made, with a setting that cannot work.

    Attributes:
        setting: the parameter's name.
        value: what was given.
    """

    def __init__(self, setting: str, value: object, wanted: str) -> None:
        super().__init__(f"{setting} must be {wanted}, not {value!r}")
        self.setting = setting
        self.value = value


def whole(setting: str, value: object, least: int) -> int:
    """``value`` if it is a whole number of at least ``least``.

    Raises:
        InvalidSetting: it is not.
    """
    if type(value) is not int or value < least:
        raise InvalidSetting(setting, value, f"a whole number, {least} or more")
    return value


def unhashable(keys: Iterable[object]) -> UnhashableKey:
    """The error for the first key that has no hash."""
    for key in keys:
        try:
            hash(key)
        except TypeError:
            return UnhashableKey(key)
    raise AssertionError("every key has a hash after all")
