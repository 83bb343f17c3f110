"""Which batches of idempotent producers are already in the log.

A producer with an id numbers its records per partition, and sends a batch again when it saw no answer. The
broker remembers the last five batches of each producer (as many as a client may have in flight) and
recognises:

- one of those five again: answered with the offset it got then, not appended;
- the next number: appended;
- anything else: refused as out of order, since a batch between is missing.

A newer epoch starts over at 0, an older one is fenced. A producer not known here (new, or long forgotten)
may start anywhere. A batch that the disk rejected must come again first. Until then later ones get the storage error
too, since after "out of order" the producer would number everything anew, and send what is in the log once more. The
state is rebuilt from the log's batches when the log is opened, so it survives whatever the log does.

Used by a log on the thread that owns it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from examples.broker.protocol.records import Batch

_REMEMBERED = 5
_MOST_PRODUCERS = 10_000
_SEQUENCES = 1 << 31


@attrs.define
class _Producer:
    epoch: int
    recent: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED))
    """Base sequence, last sequence and base offset of each remembered batch."""


class ProducerStates:
    """The producers of one partition, the longest silent forgotten first."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._refused: dict[int, tuple[int, int]] = {}
        """By producer, the epoch and the base sequence of the first batch that the disk rejected."""

    def duplicate_of(self, batch: Batch) -> int | None:
        """Give the offset at which this batch was appended before, or None if it may be appended now.

        Raises:
            BrokerError: if the batch is fenced or out of order.
        """
        if batch.producer_id < 0:
            return None
        known = self._producers.get(batch.producer_id)
        if known is None:
            self._check_refused(batch)
            return None
        if batch.producer_epoch < known.epoch:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch} < {known.epoch}")
        if batch.producer_epoch > known.epoch:
            if batch.base_sequence != 0:
                raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch starts at 0")
            return None
        last = _last_sequence(batch)
        for base_sequence, last_sequence, offset in known.recent:
            if (base_sequence, last_sequence) == (batch.base_sequence, last):
                return offset
        self._check_refused(batch)
        expected = (known.recent[-1][1] + 1) % _SEQUENCES
        if batch.base_sequence != expected:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent {batch.base_sequence}, expected {expected}",
            )
        return None

    def _check_refused(self, batch: Batch) -> None:
        epoch, sequence = self._refused.get(batch.producer_id, (-1, -1))
        if epoch == batch.producer_epoch and sequence != batch.base_sequence:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"sequence {sequence} was rejected, and must come first")

    def refused(self, batch: Batch) -> None:
        """Remember a batch that the disk rejected."""
        epoch, _ = self._refused.get(batch.producer_id, (-1, -1))
        if batch.producer_id >= 0 and epoch < batch.producer_epoch and len(self._refused) < _MOST_PRODUCERS:
            self._refused[batch.producer_id] = (batch.producer_epoch, batch.base_sequence)

    def appended(self, batch: Batch, offset: int) -> None:
        """Remember a batch that now is in the log at `offset`."""
        if batch.producer_id < 0:
            return
        self._refused.pop(batch.producer_id, None)
        known = self._producers.pop(batch.producer_id, None)
        if known is None or known.epoch != batch.producer_epoch:
            known = _Producer(batch.producer_epoch)
        known.recent.append((batch.base_sequence, _last_sequence(batch), offset))
        self._producers[batch.producer_id] = known  # back in as the youngest
        if len(self._producers) > _MOST_PRODUCERS:
            del self._producers[next(iter(self._producers))]


def _last_sequence(batch: Batch) -> int:
    return (batch.base_sequence + batch.count - 1) % _SEQUENCES
