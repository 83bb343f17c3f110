"""A coordinator that starts again: the state of its groups."""

from examples.broker.groups.state.group import GroupState
from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import ErrorCode


def test_members_go_on_where_they_were(groups, restart):
    """After a restart the members' next heartbeats and commits are taken, as if nothing had been."""
    one, two = groups.stable(2)
    groups.commit(one, 1, {("t", 0): Commit(5, "m", 2)})
    again = restart(groups)
    assert (GroupState.STABLE, 1, one) == (again.group.state, again.group.generation, again.group.leader_id)
    assert 2 * [ErrorCode.NONE] == [again.heartbeat(member, 1) for member in (one, two)]
    assert {("t", 0): ErrorCode.NONE} == again.commit(two, 1, {("t", 0): Commit(6)})
    assert [(ErrorCode.NONE, two.encode())] == again.sync(two, 1)


def test_a_member_that_did_not_survive_is_found_out(groups, restart):
    """After a restart every member has one session to be heard of."""
    one, two = groups.stable(2)
    again = restart(groups)
    again.keep_alive([one], 1_900)
    assert {one, two} == set(again.group.members)
    again.keep_alive([one], 200)
    assert {one} == set(again.group.members)


def test_a_rebalance_that_was_under_way_is_begun_again(groups, restart):
    """A member that waited for a join when the coordinator stopped joins again, as the same member."""
    one, two = groups.stable(2)
    groups.join(one)
    again = restart(groups)
    joined = again.join(one)
    assert ErrorCode.REBALANCE_IN_PROGRESS is again.heartbeat(two, 1)
    again.join(two)
    assert [2] == [answer.generation for answer in joined]


def test_a_generation_is_stored_before_it_is_told(groups):
    """No member gets its assignment while the replicas have not stored it. If they can't, all join again."""
    leader, other = groups.joined(2)
    stored = []
    groups.coordinator.store.save = lambda group, respond: stored.append(respond)
    waiting = [groups.sync(other, 1), groups.sync(leader, 1, {other: b"O"})]
    assert [[], []] == waiting
    stored[0](ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert 2 * [[(ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")]] == waiting
    assert GroupState.PREPARING is groups.group.state


def test_a_rebalance_overtakes_a_generation_that_is_being_stored(groups):
    """When a member joins meanwhile, the waiting ones must join again, and the late answer changes nothing."""
    (leader,) = groups.joined(1)
    stored = []
    groups.coordinator.store.save = lambda group, respond: stored.append(respond)
    waiting = groups.sync(leader, 1, {leader: b"L"})
    groups.join()
    assert [(ErrorCode.REBALANCE_IN_PROGRESS, b"")] == waiting
    stored[0](ErrorCode.NONE)
    assert GroupState.PREPARING is groups.group.state


def test_a_group_that_everybody_left_stays_empty(groups, restart):
    """The members of a group that was left are not found again. Its offsets are, also after a restart."""
    (one,) = groups.stable(1)
    groups.commit(one, 1, {("t", 0): Commit(1)})
    groups.leave(one)
    for each in (groups, restart(groups)):
        assert (GroupState.EMPTY, {("t", 0): Commit(1)}) == (each.group.state, each.group.offsets)


def test_a_group_that_left_nothing_is_not_found(groups, restart):
    """A group without members and offsets is forgotten permanently."""
    (one,) = groups.stable(1)
    groups.leave(one)
    assert [] == list(restart(groups).coordinator.groups)


def test_who_took_a_place_is_found_in_it(groups, restart):
    """A static member that came back under a new id is known by it after a restart."""
    groups.join(instance="a")
    groups.advance(300)
    groups.sync(groups.group.leader_id, 1, {groups.group.leader_id: b"A"}, instance="a")
    (joined,) = groups.join(instance="a")
    again = restart(groups)
    assert ErrorCode.NONE is again.heartbeat(joined.member_id, 1, "a")
    assert [(ErrorCode.NONE, b"A")] == again.sync(joined.member_id, 1, instance="a")


def test_groups_are_loaded_in_short_steps(groups):
    """Loading ends a step at every batch, so that a node that takes over many commits serves its clients meanwhile."""
    (member,) = groups.stable(1)
    for offset in range(50):
        groups.commit(member, 1, {("t", 0): Commit(offset)})
    assert 50 < sum(1 for _ in groups.coordinator.store.load(("__consumer_offsets", 0)))
