"""The followers that a leader has. What it knows of each is tested with its partition."""

from examples.broker.replication.followers import FetchClock, Followers


def test_who_was_known_stays_as_known():
    """Others may come and go. The state of the remaining followers is kept."""
    followers = Followers()
    followers.set_followers([2, 3], now=0.0)
    followers.fetched(2, 20, 0, FetchClock(1.0), 20)
    followers.set_followers([2, 4], now=5.0)
    assert (20, -1) == (followers.end_of(2), followers.end_of(4))
    assert {2} == followers.at_least(20)
    assert 3 not in followers
