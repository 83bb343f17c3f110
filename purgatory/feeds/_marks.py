"""The marks of what a worker has applied, by which it knows whether a client's position is in its state.

A position of a client may name an event that the server has lost, and another event may have its offset now. So the
offset alone proves nothing, and a worker keeps the mark of each event, in 4 bytes:

    applied here    7-1-aa  7-2-bb  7-3-dd
    7-2-bb          is in the state
    7-3-cc, 6-9-aa  another event is in its place, or it is of an earlier epoch:  Gone
    7-4-ee          this worker is not there yet

A position that is older than the marks proves nothing either, and is ``Gone``, too.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from purgatory.feeds._errors import Gone

if TYPE_CHECKING:
    from purgatory.feeds._values import Place, Position

#: How many marks are kept of each log, at least.
KEPT: Final = 65_536


class Marks:
    """The marks of the last events that a worker has applied, after a position where it began.

    Args:
        name: the feed's, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._logs: dict[int, _Log] = {}

    def begin(self, position: Position) -> None:
        """Forget all. The worker has a state that includes this position, and of the events before it no mark."""
        self._logs = {place.log: _Log(place) for place in position.places()}

    def add(self, position: Position) -> bool:
        """The event with this position was applied. Returns False if events are missing before it.

        What was known of its log is forgotten then.
        """
        follows = True
        for place in position.places():
            log = self._logs.get(place.log)
            if log is None or not log.append(place, 1 if position.is_contiguous else KEPT):
                self._logs[place.log] = _Log(place)
                follows = log is None
        return follows

    def includes(self, position: Position) -> bool:
        """Whether everything up to a position was applied. False if this worker is not there yet.

        Raises:
            Gone: it was not, and will not be, or this worker cannot know that.
        """
        return all(self.includes_place(place, position) for place in position.places())

    def includes_place(self, place: Place, position: Position) -> bool:
        """As :meth:`includes`, for one log of a position."""
        log = self._logs.get(place.log)
        if log is None or place.epoch > log.epoch or (place.epoch == log.epoch and place.offset > log.end):
            return False
        if place.epoch < log.epoch:
            raise Gone(self._name, position, f"the epoch is {log.epoch} now")
        mark = log.mark_at(place.offset)
        if mark is None:
            raise Gone(self._name, position, "it is older than what this worker remembers")
        if mark != place.mark:
            why = "another event is in its place" if mark and place.mark else "its mark is not known"
            raise Gone(self._name, position, why)
        return True


class _Log:
    """The marks of consecutive events of one log. 0 is the mark of an offset without an event, as Kafka has some."""

    __slots__ = ("epoch", "first", "marks")

    def __init__(self, place: Place) -> None:
        self.epoch = place.epoch
        self.first = place.offset
        self.marks = array("I", (place.mark,))

    @property
    def end(self) -> int:
        return self.first + len(self.marks) - 1

    def append(self, place: Place, most: int) -> bool:
        """Add the mark of the event after at most ``most`` offsets. Returns False if it is not."""
        missing = place.offset - self.end - 1
        if place.epoch != self.epoch or not 0 <= missing < most:
            return False
        if missing:
            self.marks.extend([0] * missing)
        self.marks.append(place.mark)
        if len(self.marks) > 2 * KEPT:
            self.first += len(self.marks) - KEPT
            del self.marks[:-KEPT]
        return True

    def mark_at(self, offset: int) -> int | None:
        place = offset - self.first
        return self.marks[place] if 0 <= place < len(self.marks) else None
