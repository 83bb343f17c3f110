"""The first offset of each leader epoch in one log. Two replicas compare them to find where their logs differ.

    epoch          0              2        3
    offsets        0 ... 99       100 ...  140 ... 150

The leader of epoch 2 wrote 100 to 139. A replica with records of epoch 2 up to 145 asks the leader where epoch 2 ended.
The answer is 140, and it drops its own 140 to 145. Only the dead leader and this replica ever had them.

The epochs are part of the batches, so they are read again when the log is opened. The last one may have no batch yet,
although its leader has committed records of earlier epochs. So the owner of the log remembers it. Used by a log on its
own thread.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

UNKNOWN = -1
"""In place of an epoch or an offset: none is that small here."""


class LeaderEpochs:
    """The first offset of each epoch. Both increase."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, int]] = []
        """Epoch and first offset of each."""

    @property
    def latest(self) -> int:
        """The newest epoch, or ``UNKNOWN``."""
        return self.last[0]

    @property
    def last(self) -> tuple[int, int]:
        """The newest epoch and its first offset, or ``UNKNOWN`` for both."""
        return self._begun[-1] if self._begun else (UNKNOWN, UNKNOWN)

    def begin(self, epoch: int, offset: int) -> None:
        """Note that records from ``offset`` on have this epoch, if it is new."""
        if epoch <= self.latest:
            return
        self.truncate_to(offset)  # an epoch that begins where the next one does has no records
        self._begun.append((epoch, offset))

    def truncate_to(self, offset: int) -> None:
        """Forget the epochs that begin at ``offset`` or later."""
        while self._begun and self._begun[-1][1] >= offset:
            self._begun.pop()

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest epoch that is not larger, and the offset after its last record.

        >>> epochs = LeaderEpochs()
        >>> epochs.begin(0, 0), epochs.begin(2, 100), epochs.begin(3, 140)
        (None, None, None)
        >>> epochs.end_of(2, 150), epochs.end_of(1, 150), epochs.end_of(3, 150)
        ((2, 140), (0, 100), (3, 150))
        """
        number = bisect_right(self._begun, epoch, key=itemgetter(0))
        if not number:
            # All records here have later epochs. A log with this epoch differs from the first of them on.
            return (epoch, self._begun[0][1]) if self._begun else (UNKNOWN, UNKNOWN)
        end = self._begun[number][1] if number < len(self._begun) else log_end
        return self._begun[number - 1][0], end

    def at(self, offset: int) -> int:
        """Return the epoch of an offset, or ``UNKNOWN`` if it is before the first epoch."""
        number = bisect_right(self._begun, offset, key=itemgetter(1))
        return self._begun[number - 1][0] if number else UNKNOWN
