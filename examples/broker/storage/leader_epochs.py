"""Where each leader's records begin in one log: what two replicas compare to find where they part.

    epoch          0              2        3
    offsets        0 ... 99       100 ...  140 ... 150

A leader of epoch 2 wrote 100 to 139. A replica that has records of epoch 2 up to 145 asks the leader where epoch 2
ended, hears 140, and drops its own 140 to 145: nobody but the dead leader and itself ever had them.

The epochs stand in the batches, so they are found again when the log is opened. Used by a log on the thread that owns
it.
"""

from __future__ import annotations

from bisect import bisect_right

UNKNOWN = -1
"""In place of an epoch or an offset: there is none that small here."""


class LeaderEpochs:
    """The first offset of each epoch, both growing."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """The newest epoch, or `UNKNOWN`."""
        return self._epochs[-1] if self._epochs else UNKNOWN

    def begin(self, epoch: int, offset: int) -> None:
        """Note that records from `offset` on are of this epoch, if it is a new one."""
        if epoch <= self.latest:
            return
        self.truncate_to(offset)  # an epoch that begins where another one does had no records
        self._epochs.append(epoch)
        self._starts.append(offset)

    def truncate_to(self, offset: int) -> None:
        """Forget the epochs that begin at `offset` or later."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Give the largest epoch that is no larger, and the offset after its last record.

        >>> epochs = LeaderEpochs()
        >>> epochs.begin(0, 0), epochs.begin(2, 100), epochs.begin(3, 140)
        (None, None, None)
        >>> epochs.end_of(2, 150), epochs.end_of(1, 150), epochs.end_of(3, 150)
        ((2, 140), (0, 100), (3, 150))
        """
        number = bisect_right(self._epochs, epoch)
        if not number:
            # All records here are of later epochs: whoever has some of this one parts from us where ours begin.
            return (epoch, self._starts[0]) if self._starts else (UNKNOWN, UNKNOWN)
        end = self._starts[number] if number < len(self._starts) else log_end
        return self._epochs[number - 1], end

    def at(self, offset: int) -> int:
        """Give the epoch in which an offset was or will be written, or `UNKNOWN` if it lies before them all."""
        number = bisect_right(self._starts, offset)
        return self._epochs[number - 1] if number else UNKNOWN
