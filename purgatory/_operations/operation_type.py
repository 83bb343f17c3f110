"""The type variable of all that is generic over operations.

It has a default, so that ``DelayedOperationPurgatory("requests")`` needs no annotation: it holds any operation. Python
has defaults of type variables from 3.13 on; type checkers know them of ``typing_extensions`` without its being
installed, so they are told that, and a running program has a plain variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["OperationT"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from purgatory._operations.operation import DelayedOperation

    OperationT = TypeVar("OperationT", bound=DelayedOperation, default=DelayedOperation)
else:
    from typing import TypeVar

    OperationT = TypeVar("OperationT", bound="DelayedOperation")
