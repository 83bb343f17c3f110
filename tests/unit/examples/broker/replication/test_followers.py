"""When a follower was last at its leader's end, by what it asks for."""

import pytest

from examples.broker.replication.followers import FetchClock, Followers


@pytest.fixture
def followers():
    made = Followers()
    made.set_followers([2, 3], now=0.0)
    return made


def fetches(followers, now, offset, end, node=2):
    followers.fetched(node, offset, 0, FetchClock(now), end)


def test_who_keeps_up_without_ever_being_at_the_end(followers):
    """A follower that asks for the end of its last fetch was at the end then, as the header's example shows."""
    behind = []
    for now, end, offset, was_there in ((1.0, 20, 20, 1.0), (2.0, 25, 23, 1.0), (3.0, 30, 25, 2.0)):
        followers.end_moves(end)
        fetches(followers, now, offset, end)
        behind.append(
            (2 in followers.behind(was_there + 0.5, 0.5, end), 2 in followers.behind(was_there + 1, 0.5, end))
        )
    assert [(False, True)] * 3 == behind


def test_a_clock_speaks_for_who_is_at_the_end(followers):
    """While a follower is at the end, every fetch of its session says so. Once more was appended, none does."""
    clock = FetchClock(1.0)
    followers.fetched(2, 20, 0, clock, 20)
    clock.at = 9.0
    assert {3} == followers.behind(10.0, 5.0, 20)
    followers.end_moves(20)
    clock.at = 20.0
    assert {2, 3} == followers.behind(21.0, 5.0, 25)


def test_a_session_that_forgets_the_partition_says_nothing_more(followers):
    """After a follower stopped fetching, its session's clock doesn't count."""
    clock = FetchClock(1.0)
    followers.fetched(2, 20, 0, clock, 20)
    followers.stopped_fetching(2)
    clock.at = 9.0
    assert {2, 3} == followers.behind(10.0, 5.0, 20)


def test_who_was_known_stays_as_known(followers):
    """Others may come and go. The state of the remaining followers is kept."""
    fetches(followers, 1.0, 20, 20)
    followers.set_followers([2, 4], now=5.0)
    assert (20, -1) == (followers.end_of(2), followers.end_of(4))
    assert {2} == followers.at_least(20)
    assert 3 not in followers
