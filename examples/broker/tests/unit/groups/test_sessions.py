"""Sessions of members: one operation that is extended, and what a sign of life does that comes at the last moment."""

import pytest

from examples.broker.groups.sessions import Sessions
from examples.broker.groups.state.group import Group, Member
from purgatory import DelayedOperationPurgatory
from tests.support.tasks import Collecting
from timer import ManualClock, SystemTimer


class Fixture:
    def __init__(self):
        self.clock, self.loop = ManualClock(), Collecting()
        self.timer = SystemTimer("t", clock=self.clock, executor=self.loop)
        self.heartbeats = DelayedOperationPurgatory("heartbeat", timer=self.timer, reaper_enabled=False)
        self.lost = []
        self.sessions = Sessions(self.heartbeats, lambda _, member: self.lost.append(member))
        self.group = Group("g")
        self.member = Member(
            member_id="m",
            instance_id=None,
            client_id="c",
            client_host="/h",
            session_timeout_ms=1_000,
            rebalance_timeout_ms=1_000,
            protocols={},
        )

    def renew(self):
        with self.group.lock:
            self.sessions.renew(self.group, self.member)

    def advance(self, ms):
        self.clock.advance(ms)
        self.timer.advance_clock(0)

    def lost_after(self, ms):
        """The members that are lost when this time has passed and the loop has run."""
        self.advance(ms)
        self.loop.run()
        return self.lost


@pytest.fixture
def session():
    made = Fixture()
    made.renew()
    yield made
    made.heartbeats.shutdown("cancel")
    made.timer.shutdown()


def test_a_sign_of_life_puts_the_deadline_off(session):
    """However many signs of life, it is one operation that waits. The member is lost a session after the last one."""
    first = session.member.heartbeat
    for _ in range(10):
        session.advance(900)
        session.renew()
    assert [] == session.lost_after(999)
    assert (first, 1) == (session.member.heartbeat, session.heartbeats.num_delayed)
    assert [session.member] == session.lost_after(2)


def test_a_sign_of_life_at_the_last_moment(session):
    """One that comes while the expiry is on its way to the loop still counts: the member has a whole session again."""
    session.advance(1_001)
    assert session.loop.batches
    session.renew()
    assert [] == session.lost_after(999)
    assert [session.member] == session.lost_after(2)
