import enum
import time

import pytest

from purgatory.journal import Journal


class Outcome(enum.Enum):
    IMMEDIATE = "immediate"
    SATISFIED = "satisfied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FORCED = "forced"


class DelayedFetch:
    """The part of an operation that a journal reads."""

    def __init__(self, number=0, *, keys=None, delay_ms=500, checks=2):
        self.keys = (("orders", number % 4), f"consumer-{number % 3}") if keys is None else keys
        self.created_ns = time.monotonic_ns()
        self.delay_ms = delay_ms
        self.checks = checks


@pytest.fixture
def outcome():
    return Outcome


@pytest.fixture
def operation():
    return DelayedFetch


@pytest.fixture
def write():
    """Write that many records to a folder and close the journal."""

    def write(folder, count, **options):
        with Journal(folder, **{"when_full": "wait", "patience_ms": 5_000, **options}) as journal:
            observer = journal.observer("fetch")
            for number in range(count):
                observer.finished(DelayedFetch(number, checks=number), Outcome.SATISFIED, None)
            assert journal.flush()
        return journal.stats()

    return write
