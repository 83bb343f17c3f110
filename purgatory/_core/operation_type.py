"""The type variable of everything that is generic over operations.

It has a default, so that ``DelayedOperationPurgatory("requests")`` needs no annotation and holds any operation. Type
checkers know ``typing_extensions`` without its being installed. At run time there is a plain type variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from purgatory._core.operation import DelayedOperation

    OperationT = TypeVar("OperationT", bound=DelayedOperation, default=DelayedOperation)
else:
    from typing import TypeVar

    OperationT = TypeVar("OperationT", bound="DelayedOperation")
