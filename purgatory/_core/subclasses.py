"""Help for authors of operations: reserved names, mistakes in a subclass, and the ``repr``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Hashable, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from purgatory._core.errors import InvalidOperation, InvalidSetting, ReservedName
from purgatory._core.label import label
from purgatory._core.log import log
from purgatory._core.outcome import PARKED, Outcome

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # need not be installed: type checkers know it

    from purgatory._core.operation import DelayedOperation

    #: The type of a purgatory's operations. Without an annotation it holds any operation.
    OperationT = TypeVar("OperationT", bound=DelayedOperation, default=DelayedOperation)
else:
    from typing import TypeVar

    OperationT = TypeVar("OperationT", bound="DelayedOperation")

#: What a subclass must not redefine, and an instance not assign: the public properties, and ``run``, which the timer
#: calls.
RESERVED: Final = (
    *("added_ns", "checks", "created_ns", "deadline_ns", "delay_ms", "drained"),
    *("is_completed", "is_parked", "is_pending", "keys", "outcome", "remaining_ms", "run"),
)
#: The other methods that are not hooks. A subclass must not redefine them.
FINAL: Final = ("cancel", "extend", "force_complete", "maybe_try_complete")

#: The ends that a type may call normal. Every other end is one anyway.
_CAN_BE_NORMAL: Final = (Outcome.EXPIRED, Outcome.CANCELLED)

_STATES: Final = ("new", "being parked", "parked")
_KEYS_SHOWN: Final = 3
_NS_PER_S: Final = 1_000_000_000

#: The types for which warn_still_open() wrote its warning.
_warned: weakref.WeakSet[type] = weakref.WeakSet()


def check_names(cls: type, base: type) -> None:
    """Check the names of a class and of its mixins: all classes whose attributes hide those of ``base``.

    The library's own types may redefine methods, as those whose ``cancel`` wakes a task.
    """
    for kind in cls.__mro__[: cls.__mro__.index(base)]:
        reserved = RESERVED if kind.__module__.startswith("purgatory.") else (*RESERVED, *FINAL)
        for name in vars(kind):
            if name in reserved or name.startswith(("_op_", "_task_")):
                raise ReservedName(kind, name, (*RESERVED, *FINAL))


def check_normal_ends(cls: Any) -> None:
    """Check the ``normal_ends`` of a class, its own or inherited, and freeze them.

    Raises:
        InvalidSetting: they are not a collection of ``Outcome.EXPIRED`` and ``Outcome.CANCELLED``.
    """
    ends = cls.normal_ends
    frozen = frozen_ends(f"{cls.__qualname__}.normal_ends", ends)
    if frozen is not ends:
        cls.normal_ends = frozen


def frozen_ends(setting: str, ends: object) -> frozenset[Outcome]:
    """The ends as a frozen set.

    Raises:
        InvalidSetting: ``setting`` is not a collection of ``Outcome.EXPIRED`` and ``Outcome.CANCELLED``.
    """
    if not isinstance(ends, Collection) or any(end not in _CAN_BE_NORMAL for end in ends):
        hint = f"write {{{ends}}}" if isinstance(ends, Outcome) else "write {Outcome.EXPIRED}"
        raise InvalidSetting(setting, ends, "a collection of Outcome.EXPIRED and Outcome.CANCELLED", hint)
    return frozenset(ends)


@functools.lru_cache(maxsize=256)
def variant(kind: type[OperationT], normal_ends: frozenset[Outcome], name: str) -> type[OperationT]:
    """A type as ``kind``, with other normal ends, under a name: the same one each time."""
    members = {"__slots__": (), "__doc__": kind.__doc__, "__module__": kind.__module__, "normal_ends": normal_ends}
    return type(name, (kind,), members)


def with_normal_ends(kind: type[OperationT], normal_ends: Collection[Outcome]) -> type[OperationT]:
    """``kind`` itself, or a type of the same name with these normal ends.

    Raises:
        InvalidSetting: the ends cannot be normal.
    """
    ends = frozen_ends("normal_ends", normal_ends)
    return variant(kind, ends, kind.__name__) if ends else kind


def reserve(cls: type) -> None:
    """Give each reserved attribute of a class a setter that raises :class:`ReservedName`."""
    for name in RESERVED:
        own = getattr(cls, name)
        get = own.fget if isinstance(own, property) else own.__get__
        setattr(cls, name, property(get, partial(_reject_value, name), doc=own.__doc__))


def _reject_value(name: str, operation: object, value: object) -> None:  # noqa: ARG001  # called by a property
    raise ReservedName(type(operation), name, (*RESERVED, *FINAL))


def described(operation: DelayedOperation) -> str:
    """The ``repr`` of an operation: its type, state, first keys, and the seconds left. Never raises."""
    kind = type(operation).__qualname__
    try:
        outcome, keys, timer = operation.outcome, operation.keys, operation._op_home_shard.timer
        text = f"<{kind} {_STATES[operation._op_state] if outcome is None else outcome.value}"
        if keys:
            text += f" under {', '.join(map(label, keys[:_KEYS_SHOWN]))}"
        if len(keys) > _KEYS_SHOWN:
            text += f" and {len(keys) - _KEYS_SHOWN} more"
        if timer is not None and operation._op_state == PARKED:
            due_ns = operation.deadline_ns
            text += ", no deadline" if due_ns is None else f", {(due_ns - timer.now_ns()) / _NS_PER_S:.3f} s left"
    except Exception:  # noqa: BLE001  # not initialized, or a user's timer raises
        return f"<{kind}>"
    return f"{text}>"


def not_initialized(operation: object) -> AttributeError:
    name = type(operation).__name__
    return AttributeError(f"{name} was not initialized; call super().__init__(delay_ms) in its __init__")


def warn_still_open(operation: DelayedOperation, keys: Sequence[Hashable] = ()) -> None:
    """Warn, once per type, that ``try_complete`` returned True and left the operation open."""
    kind = type(operation)
    if kind not in _warned:
        _warned.add(kind)
        log.warning(
            "operation_still_open",
            purgatory=operation._op_home_shard.observers.name or None,
            operation=kind.__qualname__,
            keys=tuple(keys) or operation.keys,
            advice="try_complete() returned True without completing: return self.force_complete()",
        )


def reject_coroutine(operation: DelayedOperation, answer: object) -> None:
    """Raise ``InvalidOperation`` if the answer of a plain hook is a coroutine, which nothing would await."""
    if isinstance(answer, CoroutineType):
        answer.close()
        kind = type(operation)
        why = f"a plain hook of {kind.__qualname__} returned a coroutine; use functools.wraps in the hook's decorator"
        raise InvalidOperation(kind, why)
