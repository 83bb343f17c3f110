"""Where leaders' epochs begin in a log, and that two logs that compare them end up the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.broker.protocol.records import batches, parse
from examples.broker.storage.leader_epochs import UNKNOWN, LeaderEpochs
from examples.broker.tests.support import batch_of


def epochs(*entries):
    made = LeaderEpochs()
    for epoch, start in entries:
        made.begin(epoch, start)
    return made


@pytest.mark.parametrize(
    ("begun", "asked", "log_end", "answer"),
    [
        pytest.param([], 3, 10, (UNKNOWN, UNKNOWN), id="none is known"),
        pytest.param([(3, 5)], 1, 9, (1, 5), id="older than all"),
        pytest.param([(1, 4), (2, 4)], 2, 9, (2, 9), id="the one before had no records"),
        pytest.param([(3, 1), (3, 5), (2, 6)], 3, 9, (3, 9), id="old epochs begin nothing"),
        pytest.param([(0, 0), (2, 5), (7, 9)], 0, 12, (0, 5), id="where the next begins"),
        pytest.param([(0, 0), (2, 5), (7, 9)], 1, 12, (0, 5), id="without records"),
        pytest.param([(0, 0), (2, 5), (7, 9)], 2, 12, (2, 9), id="in the middle"),
        pytest.param([(0, 0), (2, 5), (7, 9)], 7, 12, (7, 12), id="the newest"),
        pytest.param([(0, 0), (2, 5), (7, 9)], 9, 12, (7, 12), id="newer than all"),
    ],
)
def test_end_of_an_epoch(begun, asked, log_end, answer):
    assert answer == epochs(*begun).end_of(asked, log_end)


def test_epoch_of_an_offset():
    """An offset is of the epoch that began at or before it last. The next record is of the newest epoch."""
    known = epochs((0, 2), (2, 5), (7, 9))
    assert [UNKNOWN, 0, 0, 2, 7, 7] == [known.at(offset) for offset in (1, 2, 4, 5, 9, 100)]
    assert UNKNOWN == epochs().at(0)


def test_latest_epoch():
    assert UNKNOWN == epochs().latest
    assert 1 == len(epochs((1, 4), (2, 4))._begun), "an epoch without records is replaced by the next"
    known = epochs((0, 0), (2, 5), (7, 9))
    known.truncate_to(9)
    assert 2 == known.latest, "what begins at a cut or behind it is forgotten"


def test_epoch_is_in_the_batch(open_log):
    """A batch carries its leader's epoch, is sound, and restores it when the log is opened again."""
    log, data = open_log(), batch_of(b"x")
    for epoch in (3, 5):
        log.append(data, parse(data), epoch)
    assert [3, 5] == [batch.leader_epoch for batch in batches(log.read(0, 2, 10_000))]
    assert [(3, 1), (5, 2)] == [open_log().epochs.end_of(epoch, 2) for epoch in (3, 5)]


# One step: a replica leads in a new epoch, writes, and some of the others get some of it.
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.lists(st.integers(0, 3), min_size=3, max_size=3)))


@given(steps)
def test_logs_agree_after_comparing(history):
    """Whatever was written and followed, a log cut as the leader's epochs say is the leader's beginning."""
    logs = [[] for _ in range(3)]  # of each replica: the epoch of each record, and its id

    def known(log):
        found = LeaderEpochs()
        for offset, (epoch, _) in enumerate(log):
            found.begin(epoch, offset)
        return found

    def follow(follower, leader, epoch, most):
        mine, theirs = logs[follower], logs[leader]
        while mine:
            asked = known(mine).latest
            leaders = known(theirs)
            leaders.begin(epoch, len(theirs))
            answered, end = leaders.end_of(asked, len(theirs))
            ours, our_end = known(mine).end_of(answered, len(mine))
            del mine[min(end, our_end if ours >= 0 else end) :]
            if answered in (asked, ours):
                break
        assert mine == theirs[: len(mine)]
        mine += theirs[len(mine) : len(mine) + most]

    for epoch, (leader, written, got) in enumerate(history):
        start = len(logs[leader])
        logs[leader] += [(epoch, f"{leader}-{start + number}-{epoch}") for number in range(written)]
        for follower in {0, 1, 2} - {leader}:
            follow(follower, leader, epoch, got[follower])
