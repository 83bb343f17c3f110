"""The stores of the stream's state, in memory in place of Spark's."""

from typing import Any

from purgatory.pipeline._state.state_machines import KeyCore, OperationCore


class Memory(dict[int, bytes]):
    """A store of packed leaves."""

    read = dict.__getitem__
    write = dict.__setitem__
    remove = dict.__delitem__


def key_core(**settings: Any) -> KeyCore:
    """A new core of the first stage."""
    return KeyCore(None, Memory(), Memory(), **settings)


def operation_core() -> OperationCore:
    """A new core of the second stage."""
    return OperationCore(None, Memory())
