"""The quickstart's two delayed operations, on a clock moved by hand."""

import pytest

from examples.quickstart.log import Partition
from examples.quickstart.operations import DelayedAppend, DelayedFetch
from purgatory import Outcome


@pytest.fixture
def partition():
    """A partition with two followers and no record."""
    return Partition(0, 2)


def copy(partition):
    for follower in range(2):
        partition.copy(follower)


def test_append_is_committed_when_all_replicas_have_it(purgatories, partition):
    """An append waits for the last replica, and is answered once, with "committed"."""
    produce = purgatories.make("produce")
    append = DelayedAppend(partition, partition.append(b"x"), 500)
    assert not produce.try_complete_else_watch(append, [partition])
    partition.copy(0)
    assert 0 == produce.check_and_complete(partition)
    partition.copy(1)
    assert 1 == produce.check_and_complete(partition)
    assert (1, True, Outcome.SATISFIED) == (append.answered, append.committed, append.outcome)


def test_append_times_out(purgatories, partition):
    """An append that not all replicas got in time is answered once, with "timed out"."""
    append = DelayedAppend(partition, partition.append(b"x"), 500)
    purgatories.make("produce").try_complete_else_watch(append, [partition])
    partition.copy(0)
    purgatories.advance(499)
    assert 0 == append.answered
    purgatories.advance(1)
    assert (1, False, Outcome.EXPIRED) == (append.answered, append.committed, append.outcome)


def test_fetch_waits_for_enough_records(purgatories, partition):
    """A long poll is answered when it can have as many records as it asked for."""
    fetch_purgatory, answers = purgatories.make("fetch"), []
    fetch_purgatory.try_complete_else_watch(DelayedFetch(partition, 0, 2, 500, answers.append), [partition])
    for record in (b"a", b"b"):
        assert [] == answers
        partition.append(record)
        copy(partition)
        fetch_purgatory.check_and_complete(partition)
    assert [[b"a", b"b"]] == [fetch.records for fetch in answers]


def test_fetch_takes_what_there_is_at_the_end(purgatories, partition):
    """A long poll whose time is up is answered with fewer records than it asked for."""
    answers = []
    purgatories.make("fetch").try_complete_else_watch(DelayedFetch(partition, 0, 2, 500, answers.append), [partition])
    partition.append(b"a")
    copy(partition)
    purgatories.advance(500)
    assert [[b"a"]] == [fetch.records for fetch in answers]
