"""Fetch sessions: requests and answers with changes only, and one wait key for many partitions."""

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.fetching import fetch_sessions
from examples.broker.replication.fetching.fetch_sessions import CONSUMER, FetchSessions, Wanted
from examples.broker.tests.support import rejected
from examples.broker.tests.unit.replication.conftest import BATCH

T0, T1 = ("t", 0), ("t", 1)
BOTH = {T0: Wanted(0, 1_000), T1: Wanted(0, 1_000)}


@pytest.fixture
def session(leader):
    """Begin a session with both partitions, as the follower 2. Nothing is there to read yet."""
    leader.fetch_in_session(BOTH, node=2)
    leader.timer.advance_clock(500)
    assert [T0, T1] == list(leader.found)
    return leader.session


def go_on(leader, session, wanted=(), forgotten=(), **settings):
    """Fetch again in a session. An operation if it waits."""
    leader.found = {}
    return leader.fetch_in_session(
        wanted, forgotten, session_id=session.session_id, epoch=session.epoch, node=session.node, **settings
    )


def test_the_first_answer_tells_of_all(leader, session):
    assert session.is_kept
    assert [b"", b""] == [each.records for each in leader.found.values()]


def test_who_has_nothing_to_name_waits_under_one_key(leader, session):
    """A fetch that names nothing waits for all partitions of its session, under the session's key alone."""
    before = leader.manager.fetches.purgatory.watched
    assert go_on(leader, session) is not None
    assert 1 == leader.manager.fetches.purgatory.watched - before


def test_what_happens_anywhere_is_told_and_nothing_else(leader, session):
    go_on(leader, session)
    leader.write(T1)
    assert [T1] == list(leader.found)
    assert BATCH[12:] == leader.found[T1].records[12:]


def test_what_was_sent_is_sent_again_until_the_client_moves_on(leader, session):
    """A client that repeats itself without moving its offset gets the records again. One that moves it waits."""
    leader.write(T1)
    for _ in range(2):
        assert go_on(leader, session) is None
        assert [T1] == list(leader.found)
    assert go_on(leader, session, {T1: Wanted(1, 1_000)}) is not None


def test_a_watermark_that_moved_is_told_with_the_next_answer(leader, session):
    """A watermark alone wakes no fetch, and is reported when the wait is over. Once."""
    leader.write(T1)
    go_on(leader, session, {T1: Wanted(1, 1_000)})
    leader.followers_reach(1, nodes=[3], key=T1)
    leader.run()
    assert {} == leader.found
    leader.timer.advance_clock(500)
    assert [(T1, 1)] == [(key, each.high_watermark) for key, each in leader.found.items()]
    go_on(leader, session)
    leader.timer.advance_clock(500)
    assert {} == leader.found


def test_a_consumer_is_told_what_is_committed(leader):
    leader.fetch_in_session(BOTH)
    leader.timer.advance_clock(500)
    go_on(leader, leader.session)
    leader.write(T0)
    assert {} == leader.found
    leader.followers_reach(1, key=T0)
    leader.run()
    assert [T0] == list(leader.found)


def test_a_forgotten_partition_is_not_told_of(leader, session):
    """A partition that a client drops from its session wakes it no longer. A partition that it adds does."""
    go_on(leader, session, forgotten=[T1])
    leader.write(T1)
    assert {} == leader.found
    leader.timer.advance_clock(500)
    assert go_on(leader, session, {T1: Wanted(0, 1_000)}) is None
    assert [T1] == list(leader.found)


def test_small_answers_take_turns(leader, session):
    """When an answer has room for one partition only, the next one begins with the other."""
    leader.write(T0, T1)
    seen = []
    for _ in range(4):
        go_on(leader, session, room=10)
        seen += leader.found
    assert [T0, T1, T0, T1] == seen


def test_a_stranger_is_told_that_it_has_no_replica(leader):
    leader.append(T0, acks=1)
    assert leader.fetch_in_session({T0: Wanted(0, 1_000)}, node=9) is None
    assert [(ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")] == [(each.code, each.records) for each in leader.found.values()]


def test_a_session_goes_on_where_it_was_left_or_not_at_all(leader, session):
    go_on(leader, session)
    for session_id, epoch, code in (
        (session.session_id + 1, 2, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session.session_id, 3, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session.session_id, 1, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ):
        with rejected(code):
            leader.manager.fetches.open_session(session_id, epoch, node=2, wanted={}, forgotten=[])


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_new_beginning_ends_the_old_session(leader, session, epoch):
    """A request that begins again, or wants no session any more, names the old one: it is gone."""
    leader.fetch_in_session(BOTH, session_id=session.session_id, epoch=epoch, node=2)
    assert (epoch == 0) == leader.session.is_kept
    with rejected(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(leader, session)
    assert (epoch == 0) == len(leader.manager.fetches.sessions)


@pytest.mark.parametrize(("forgotten", "in_sync"), [([], {1, 2}), ([T1], {1, 2}), ([T0], {1})])
def test_a_follower_that_names_nothing_stays_in_sync(leader, session, monkeypatch, forgotten, in_sync):
    """In a session, a fetch without a word of a partition says that the follower still is where it was.

    It says nothing of a partition that the follower dropped.
    """
    leader.fetch_in_session(BOTH, node=3)
    assert leader.session.session_id != session.session_id
    go_on(leader, session, forgotten=forgotten)
    monkeypatch.setattr("examples.broker.replication.replica_manager.time.monotonic", lambda: 1e9)
    go_on(leader, session)
    leader.manager.adapt_isrs()
    assert in_sync == leader.partition.wanted_isr, "3 has a session too, but was not heard of"


def test_the_epoch_begins_again_at_one():
    """After the last number that fits, the next request carries 1: 0 would begin a new session."""
    sessions = FetchSessions()
    session = sessions.open(0, 0, node=CONSUMER, wanted=BOTH, forgotten=[], now=0.0)
    session.epoch = 0x7FFFFFFF
    sessions.open(session.session_id, session.epoch, node=CONSUMER, wanted={}, forgotten=[], now=0.0)
    assert 1 == session.epoch


def test_idle_sessions_make_room(monkeypatch):
    """Without room, a newcomer gets a session in the place of the one idle for longest, if that is long."""
    monkeypatch.setattr(fetch_sessions, "_MOST_SESSIONS", 2)
    sessions = FetchSessions()
    first, second = (sessions.open(0, 0, node=CONSUMER, wanted=BOTH, forgotten=[], now=0.0) for _ in range(2))
    assert not sessions.open(0, 0, node=CONSUMER, wanted=BOTH, forgotten=[], now=100.0).is_kept
    sessions.open(first.session_id, first.epoch, node=CONSUMER, wanted={}, forgotten=[], now=100.0)
    assert sessions.open(0, 0, node=CONSUMER, wanted=BOTH, forgotten=[], now=150.0).is_kept
    with pytest.raises(BrokerError):
        sessions.open(second.session_id, second.epoch, node=CONSUMER, wanted={}, forgotten=[], now=150.0)
    assert 2 == len(sessions)
    assert 2 == len(sessions.happened(T0)), "and nobody who left is told"
