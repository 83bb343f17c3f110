"""Where leaders' epochs begin in a log, and that two logs that compare them end up the same."""

from hypothesis import given
from hypothesis import strategies as st

from examples.broker.protocol.records import batches, build, parse
from examples.broker.storage.leader_epochs import UNKNOWN, LeaderEpochs
from examples.broker.storage.log import Log


def epochs(*entries):
    made = LeaderEpochs()
    for epoch, start in entries:
        made.begin(epoch, start)
    return made


def test_no_epochs():
    """Without epochs, no end of any is known."""
    assert (UNKNOWN, UNKNOWN) == epochs().end_of(3, 10)
    assert UNKNOWN == epochs().latest


def test_epoch_of_an_offset():
    """An offset is of the epoch that began at or before it last. The next record is of the newest epoch."""
    known = epochs((0, 2), (2, 5), (7, 9))

    assert [UNKNOWN, 0, 0, 2, 7, 7] == [known.at(offset) for offset in (1, 2, 4, 5, 9, 100)]
    assert UNKNOWN == epochs().at(0)


def test_end_of_an_epoch_is_where_the_next_begins():
    """An epoch ends where the next larger one begins, the newest at the log's end."""
    known = epochs((0, 0), (2, 5), (7, 9))

    assert [(0, 5), (0, 5), (2, 9), (7, 12), (7, 12)] == [known.end_of(epoch, 12) for epoch in (0, 1, 2, 7, 9)]


def test_older_than_all():
    """An epoch before all that are known ends where the first of them begins."""
    assert (1, 5) == epochs((3, 5)).end_of(1, 9)


def test_epoch_without_records():
    """An epoch in which nothing was written is replaced by the next."""
    assert (2, 9) == epochs((1, 4), (2, 4)).end_of(2, 9)
    assert 1 == len(epochs((1, 4), (2, 4))._epochs)


def test_old_epoch_changes_nothing():
    """An epoch no newer than the latest begins nothing."""
    assert (3, 9) == epochs((3, 1), (3, 5), (2, 6)).end_of(3, 9)


def test_epochs_go_with_their_records():
    """What begins at a cut or behind it is forgotten."""
    known = epochs((0, 0), (2, 5), (7, 9))
    known.truncate_to(9)

    assert 2 == known.latest


def append(log, epoch, value=b"x"):
    data = build([(None, value)], timestamps=[1])
    return log.append(data, parse(data), epoch)


def test_epoch_is_in_the_batch(tmp_path):
    """A batch carries its leader's epoch, is sound, and restores it when the log is opened again."""
    log = Log(tmp_path / "t-0")
    append(log, 3)
    append(log, 5)
    assert [3, 5] == [batch.leader_epoch for batch in batches(log.read(0, 2, 10_000))]
    log.close()

    again = Log(tmp_path / "t-0")
    assert [(3, 1), (5, 2)] == [again.epochs.end_of(epoch, 2) for epoch in (3, 5)]
    again.close()


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
