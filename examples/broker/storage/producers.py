"""The recent batches of idempotent producers, to recognise batches that are already in the log.

A producer with an id numbers its records per partition. It sends a batch again if it saw no answer. A client may have
five batches in flight. The broker remembers twice as many of each producer, so that some are left when a new leader's
log cuts off all that were in flight:

- one of these again: answered with its offset, not appended
- the next number: appended
- any other number: rejected as out of order, because a batch between is missing

A newer epoch starts again at 0. An older one is fenced. An unknown producer (new, or forgotten) may start anywhere.

**A batch that was rejected must come again first**, for example after a failed write or with too few replicas in sync.
Until then later batches get the same error. After "out of order" the producer would number everything in flight again,
and records that are already in the log would be there twice:

    1. The batches 1 and 2 are in the log. Their leader dies before it answers.
    2. The next leader has too few replicas in sync, and rejects 1, 2 and 3. Then a replica joins, and 4 arrives.
    3. "Out of order" for 4 begins a new epoch. The client sends all four again under it, so 1 and 2 are there twice.

The state is rebuilt from the batches when the log is opened. Used by a log on its own thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from examples.broker.protocol.records import Batch

_REMEMBERED = 10
_MOST_PRODUCERS = 10_000
_SEQUENCES = 1 << 31
_NONE_REJECTED = (-1, -1, ErrorCode.NONE)


@attrs.define
class _Producer:
    epoch: int
    recent: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED))
    """Base sequence, last sequence and base offset of each remembered batch."""

    @property
    def next_sequence(self) -> int:
        return (self.recent[-1][1] + 1) % _SEQUENCES


class ProducerStates:
    """The producers of one partition. The one that was silent for the longest time is forgotten first."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._rejected: dict[int, tuple[int, int, ErrorCode]] = {}
        """By producer, the epoch, the base sequence and the error of the first batch that was rejected."""

    def duplicate_of(self, batch: Batch) -> int | None:
        """Return the offset of a batch that is in the log, or None. Raises BrokerError if it is out of order."""
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            self._check_not_overtaking(batch)
            return None
        if batch.producer_epoch < known.epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the producer epoch must be {known.epoch} or more, got {batch.producer_epoch}",
            )
        if batch.producer_epoch > known.epoch:
            if batch.base_sequence != 0:
                raise BrokerError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a new epoch must start at 0, got {batch.base_sequence}"
                )
            return None
        last = _last_sequence(batch)
        for base_sequence, last_sequence, offset in known.recent:
            if (base_sequence, last_sequence) == (batch.base_sequence, last):
                return offset
        self._check_not_overtaking(batch)
        if batch.base_sequence != known.next_sequence:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} must send {known.next_sequence} next, got {batch.base_sequence}",
            )
        return None

    def _check_not_overtaking(self, batch: Batch) -> None:
        epoch, sequence, code = self._rejected.get(batch.producer_id, _NONE_REJECTED)
        if epoch == batch.producer_epoch and _is_before(sequence, batch.base_sequence):
            raise BrokerError(code, f"sequence {sequence} was rejected and must come first, got {batch.base_sequence}")

    def rejected(self, batch: Batch, code: ErrorCode) -> None:
        """Remember that a batch was rejected, unless an earlier one was or it is in the log."""
        known = self._producers.get(batch.producer_id)
        is_old = known is not None and (
            batch.producer_epoch < known.epoch
            or (batch.producer_epoch == known.epoch and _is_before(batch.base_sequence, known.next_sequence))
        )
        if batch.producer_id < 0 or is_old or len(self._rejected) >= _MOST_PRODUCERS:
            return
        epoch, sequence, _ = self._rejected.get(batch.producer_id, _NONE_REJECTED)
        is_first = epoch == batch.producer_epoch and _is_before(batch.base_sequence, sequence)
        if epoch < batch.producer_epoch or is_first:
            self._rejected[batch.producer_id] = (batch.producer_epoch, batch.base_sequence, code)

    def appended(self, batch: Batch, offset: int) -> None:
        """Remember a batch that is in the log at ``offset``."""
        if batch.producer_id < 0:
            return
        epoch, sequence, _ = self._rejected.get(batch.producer_id, _NONE_REJECTED)
        if epoch < batch.producer_epoch or not _is_before(batch.base_sequence, sequence):
            self._rejected.pop(batch.producer_id, None)
        known = self._producers.pop(batch.producer_id, None)
        if known is None or known.epoch != batch.producer_epoch:
            known = _Producer(batch.producer_epoch)
        known.recent.append((batch.base_sequence, _last_sequence(batch), offset))
        self._producers[batch.producer_id] = known  # now the last one to be forgotten
        if len(self._producers) > _MOST_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def truncate_to(self, end: int) -> None:
        """Forget the batches that were cut off a log. A producer without a remembered batch is unknown again."""
        for producer_id, known in list(self._producers.items()):
            while known.recent and known.recent[-1][2] >= end:
                known.recent.pop()
            if not known.recent:
                del self._producers[producer_id]


def _last_sequence(batch: Batch) -> int:
    return (batch.base_sequence + batch.count - 1) % _SEQUENCES


def _is_before(sequence: int, other: int) -> bool:
    """Whether a sequence number comes before another. After the largest one comes 0."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2
