"""Missed checks: waits of ``wait_for`` that expire although their predicate is true.

When such a wait expires, its predicate is asked once more. If it is true, the event was not checked, or was checked
under another key, or is checked a moment too late. So the wait becomes a **suspicion**:

    1. A :class:`Witness` is put under each key of the wait. A check of the key calls it like any operation there.
    2. A task of the purgatory's timer comes a second later. If a key was checked meanwhile, the check was only late.
    3. Otherwise the missed check is counted, and logged as ``expired_but_true``.

A purgatory has one suspicion at a time. Waits that expire meanwhile are not examined. The retrier does not make missed
checks: it repeats checks that began and could not end.

**Checks that find nothing.** Once a purgatory has a wait of ``wait_for``, a check that finds no operation notes its
key. Two questions need the last of these keys: whether a key of the wait was checked after it had left and before its
witness came, and whether a key was checked that only looks like one of the wait. A check that finds operations does not
come here.

**Checks with a limit** stop before they reach a witness, which is the last in order of arrival. They begin with the
oldest operation. So the numbers of checks of the oldest operations are compared as well.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from purgatory._core.implementation import CORE
from purgatory._core.log import log, throttle
from purgatory._core.operation import DelayedOperation
from purgatory._core.outcome import PARKED, Outcome
from timer import TimerClosed, TimerTask
from timer._fork import new_lock

if TYPE_CHECKING:
    from purgatory._core.parking import Parking
    from purgatory._core.shards import Shard
    from purgatory._core.waits import PredicateWait

#: How long a check may come after the deadline.
MOMENT_MS: Final = 1_000
#: How many of the checks that found no operation are remembered.
MOST_NOTED: Final = 16
#: How many of the oldest operations under a key are compared, for checks with a limit.
OLDEST: Final = 8

ADVICE: Final = "call check_and_complete() with one of the keys after each change that can make the predicate true"


class Witness(DelayedOperation):
    """Is under a key without being parked. It counts the checks of the key, and is itself counted nowhere."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Stay."""
        return False


class Suspicion(TimerTask):
    """A wait that has expired although its predicate is true, until it is known whether a check came late.

    Attributes:
        purgatory: the name of the purgatory.
        kind: the name of the wait's type.
        keys: the keys of the wait.
        similar_keys: keys that were checked, and look like one of these.
    """

    __slots__ = ("_missed", "_oldest", "_watches", "_witnesses", "keys", "kind", "purgatory", "similar_keys")

    def __init__(self, missed: MissedChecks, wait: PredicateWait) -> None:
        super().__init__(MOMENT_MS)
        self.purgatory = wait._op_home_shard.observers.name
        self.kind = type(wait).__qualname__
        self.keys = wait.keys
        self.similar_keys: list[Hashable] = []
        self._missed = missed
        self._watches = wait._op_watches
        self._oldest: list[tuple[DelayedOperation, int]] = []
        self._witnesses = [Witness(None) for _ in self._watches]

    def begin(self) -> None:
        """Put a witness under each key."""
        for watches, witness in zip(self._watches, self._witnesses, strict=True):
            watchers = watches.shard.find(watches.key)  # others, if the key was forgotten meanwhile
            oldest = [] if watchers is None else watchers.operations(OLDEST)
            self._oldest += [(each, each.checks) for each in oldest if each._op_state == PARKED]
            watch_only(witness, watches.shard, watches.key)

    def run(self) -> None:
        """The moment has passed."""
        self._missed.decide()

    def end(self) -> bool:
        """Remove the witnesses. Returns whether a key was checked meanwhile."""
        for witness in self._witnesses:
            unwatch(witness)
        return any(witness.checks for witness in self._witnesses) or any(
            operation.checks > checks or operation.outcome is Outcome.SATISFIED for operation, checks in self._oldest
        )


class MissedChecks:
    """The missed checks of one purgatory.

    Attributes:
        count: how many were reported.
        last: the one that was reported last.
        decides_at_end: whether a suspicion is decided when the purgatory is shut down, and not dropped. For tests.
    """

    __slots__ = ("_is_closed", "_lock", "_noted", "_numbers", "_suspicion", "count", "decides_at_end", "last")

    def __init__(self) -> None:
        self._noted: list[tuple[int, Hashable]] = []  # the last ones. An empty list is small, and a deque is not
        self._numbers = itertools.count(1)
        self._lock = new_lock()  # for the attributes below
        self._is_closed = False
        self._suspicion: Suspicion | None = None
        self.count = 0
        self.last: Suspicion | None = None
        self.decides_at_end = False

    def note(self, key: Hashable) -> None:
        """Note the key of a check that found no operation."""
        self._noted.append((next(self._numbers), key))
        del self._noted[:-MOST_NOTED]

    def mark(self, parking: Parking) -> int:
        """The number of the last check that was noted. From the first call on, checks are noted."""
        if parking._note_unwatched is None and not self._is_closed:
            parking._note_unwatched = self.note
        noted = self._noted
        return noted[-1][0] if noted else 0

    def suspect(self, wait: PredicateWait) -> None:
        """A wait has expired, and its predicate is true."""
        if self._suspicion is not None or self._is_closed:
            return
        suspicion = Suspicion(self, wait)
        with self._lock:
            if self._suspicion is not None or self._is_closed:
                return
            self._suspicion = suspicion
        is_begun = False
        try:
            suspicion.begin()
            timer = wait._op_home_shard.timer
            if timer is not None and not self._was_checked_since(getattr(wait, "mark", None), wait.keys):
                with contextlib.suppress(TimerClosed):
                    timer.add(suspicion)
                    is_begun = self._suspicion is suspicion  # it is not if the purgatory was shut down meanwhile
        finally:
            if not is_begun:
                suspicion.cancel()
                self._take(suspicion)
                suspicion.end()

    def decide(self) -> None:
        """Report the suspicion that there is, unless a key was checked meanwhile."""
        suspicion = self._take(self._suspicion)
        if suspicion is None:
            return
        suspicion.cancel()
        if suspicion.end():
            return
        suspicion.similar_keys = self._similar_keys(suspicion.keys)
        with self._lock:
            self.count += 1
            self.last = suspicion
        suppressed = throttle.admit("expired_but_true", suspicion.purgatory, suspicion.kind)
        if suppressed is not None:
            log.warning(
                "expired_but_true",
                purgatory=suspicion.purgatory,
                operation=suspicion.kind,
                keys=suspicion.keys,
                advice=ADVICE,
                similar_keys=suspicion.similar_keys,
                suppressed=suppressed,
            )

    def close(self) -> None:
        """The purgatory is being shut down. A suspicion is dropped, and there is no other."""
        self._is_closed = True
        if self.decides_at_end:
            self.decide()
            return
        suspicion = self._take(self._suspicion)
        if suspicion is not None:
            suspicion.cancel()
            suspicion.end()

    def _take(self, suspicion: Suspicion | None) -> Suspicion | None:
        """The suspicion, to one caller."""
        with self._lock:
            if self._suspicion is not suspicion:
                return None
            self._suspicion = None
        return suspicion

    def _was_checked_since(self, mark: int | None, keys: Sequence[Hashable]) -> bool:
        """Whether a key was checked after the mark, without an operation under it."""
        return mark is not None and any(number > mark and key in keys for number, key in self._noted.copy())

    def _similar_keys(self, keys: Sequence[Hashable]) -> list[Hashable]:
        """The last keys that were checked without an operation and look like one of these, each once."""
        texts = [_text(key) for key in keys]
        similar = [key for _, key in self._noted.copy() if _text(key) in texts and key not in keys]
        return list(dict.fromkeys(similar))


def _text(key: Hashable) -> object:
    """What a key looks like: equal for ``7``, ``"7"`` and ``b"7"``, and for ``("a",)`` and ``"a"``."""
    if isinstance(key, tuple):
        parts = tuple(map(_text, key))
        return parts[0] if len(parts) == 1 else parts
    with contextlib.suppress(Exception):  # of the key's own code
        return key.decode(errors="replace") if isinstance(key, bytes) else str(key)
    return None


def watch_only(witness: Witness, shard: Shard, key: Hashable) -> None:
    """Put a witness under a key. A check of the key checks it, but it is neither counted nor listed."""
    witness._op_home_shard = shard
    shard.watch(witness, key)


def unwatch(witness: Witness) -> None:
    """Remove a witness from its key."""
    witness._op_remove()


if not TYPE_CHECKING and CORE is not None:
    watch_only, unwatch = CORE.watch_only, CORE.unwatch
