"""The clients' ledger: the result of every record, and when it arrived."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ACKNOWLEDGED", "Balance", "Ledger"]

ACKNOWLEDGED = "acknowledged"


@attrs.frozen
class Answer:
    """A record's answer: when it was sent, how long the answer took, and what it was."""

    number: int
    sent_s: float
    took_ms: float
    verdict: str


@attrs.frozen
class Balance:
    """The records of the log, compared with the answers to the clients.

    Attributes:
        acknowledged: records that the broker said it has.
        missing: those of them that aren't in the log. There are none.
        doubled: records that are there more than once, acknowledged or not. There are none.
        given_up: records that a producer gave up, having been told nothing for sure. As a rule there are none.
        given_up_but_there: those of them that the log holds all the same.
    """

    acknowledged: int
    missing: int
    doubled: int
    given_up: int
    given_up_but_there: int

    @property
    def holds(self) -> bool:
        """Whether every acknowledged record is there, and none more than once."""
        return self.acknowledged > 0 and not self.missing and not self.doubled


class Ledger:
    """Written by the threads of the clients, and read by the thread that shows it.

    Seconds count from when it was made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._answers: list[Answer] = []
        self._arrivals_ms: list[float] = []
        self.verdicts: Counter[str] = Counter()
        self.sent = 0

    def now_s(self) -> float:
        """How long it has been kept."""
        return time.monotonic() - self._began

    def answered(self, number: int, sent_s: float, verdict: str) -> None:
        """A record was acknowledged, or refused with the name of an error."""
        with self._lock:
            self._answers.append(Answer(number, sent_s, (self.now_s() - sent_s) * 1e3, verdict))
            self.verdicts[verdict] += 1

    def arrived(self, sent_s: float) -> None:
        """A consumer was given a record that was sent then."""
        with self._lock:
            self._arrivals_ms.append((self.now_s() - sent_s) * 1e3)

    @property
    def received(self) -> int:
        """How many records the consumers were given."""
        return len(self._arrivals_ms)

    def answers(self) -> list[Answer]:
        """All so far."""
        with self._lock:
            return list(self._answers)

    def arrivals_ms(self) -> list[float]:
        """How long the records took from one client to the other, ordered."""
        with self._lock:
            return sorted(self._arrivals_ms)

    def balance(self, log: Iterable[int]) -> Balance:
        """Compare with the numbers of the records that the log holds."""
        there = Counter(log)
        answers = self.answers()
        acknowledged = [answer.number for answer in answers if answer.verdict == ACKNOWLEDGED]
        given_up = [answer.number for answer in answers if answer.verdict != ACKNOWLEDGED]
        return Balance(
            acknowledged=len(acknowledged),
            missing=sum(there[number] == 0 for number in acknowledged),
            doubled=sum(count > 1 for count in there.values()),
            given_up=len(given_up),
            given_up_but_there=sum(there[number] > 0 for number in given_up),
        )
