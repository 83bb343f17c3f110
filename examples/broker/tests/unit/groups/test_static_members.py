"""Static members: those that a client names, and that keep their place while it is away."""

import pytest

from examples.broker.groups.state.group import GroupState
from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import ErrorCode
from examples.broker.tests.support import rejected


@pytest.fixture
def pair(groups):
    """A stable group of the static members "a", which leads, and "b". Gives their ids."""
    joins = {name: groups.join(instance=name) for name in "ab"}
    groups.advance(300)
    ids = {name: answers[0].member_id for name, answers in joins.items()}
    for name in "ba":
        groups.sync(ids[name], 1, {member: name.encode() for name, member in ids.items()}, instance=name)
    assert (GroupState.STABLE, ids["a"]) == (groups.group.state, groups.group.leader_id)
    return ids


@pytest.mark.parametrize(("name", "other"), ["ab", "ba"], ids=["leader", "follower"])
def test_who_comes_back_has_its_assignment_without_a_rebalance(groups, pair, name, other):
    """It is answered at once with its generation, and finds its assignment. A leader leads on, and does not assign."""
    (joined,) = groups.join(instance=name)
    assert (ErrorCode.NONE, 1, pair["a"], ()) == (joined.code, joined.generation, joined.leader_id, joined.members)
    assert joined.member_id != pair[name]
    assert [(ErrorCode.NONE, name.encode())] == groups.sync(joined.member_id, 1, instance=name)
    assert (joined.member_id if name == "a" else pair["a"]) == groups.group.leader_id
    assert ErrorCode.NONE is groups.heartbeat(pair[other], 1, other)


def test_who_comes_back_with_another_subscription_causes_a_rebalance(groups, pair):
    """The metadata of a static member has changed: the group must assign again."""
    joined = groups.join(instance="b", metadata=b"another")
    assert ([], GroupState.PREPARING) == (joined, groups.group.state)
    groups.join(pair["a"], instance="a")
    assert [(ErrorCode.NONE, 2)] == [(x.code, x.generation) for x in joined]


def test_who_comes_back_must_speak_what_the_others_do(groups, pair):
    """A static member that comes back without a protocol of the others is rejected, and its place kept."""
    with rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        groups.join(instance="b", protocol="roundrobin")
    assert (GroupState.STABLE, set(pair.values())) == (groups.group.state, set(groups.group.members))


def test_a_former_self_is_fenced_everywhere(groups, pair):
    """The replaced member gets an error for heartbeat, commit, join, sync and leave, and changes nothing."""
    (joined,) = groups.join(instance="b")
    old = pair["b"]
    assert ErrorCode.FENCED_INSTANCE_ID is groups.heartbeat(old, 1, "b")
    for attempt in (
        lambda: groups.commit(old, 1, {("t", 0): Commit(1)}, instance="b"),
        lambda: groups.join(old, instance="b"),
        lambda: groups.sync(old, 1, instance="b"),
        lambda: groups.leave(old, instance="b"),
    ):
        with rejected(ErrorCode.FENCED_INSTANCE_ID):
            attempt()
    assert {pair["a"], joined.member_id} == set(groups.group.members)
    assert {} == groups.coordinator.commits.committed("g")


def test_a_former_self_that_waits_is_fenced(groups):
    """A member whose place is taken while it waits for its join is answered FENCED_INSTANCE_ID."""
    first = groups.join(instance="a")
    second = groups.join(instance="a")
    assert [ErrorCode.FENCED_INSTANCE_ID] == [joined.code for joined in first]
    groups.advance(300)
    assert [ErrorCode.NONE] == [joined.code for joined in second]


def test_a_static_member_is_sent_away_by_its_name(groups, pair):
    """An administrator names the instance alone. The member is gone and the others rebalance."""
    groups.leave("", instance="b")
    assert {pair["a"]} == set(groups.group.members)
    assert ErrorCode.REBALANCE_IN_PROGRESS is groups.heartbeat(pair["a"], 1, "a")
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.leave("", instance="nobody")


def test_a_static_member_keeps_its_place_through_a_rebalance(groups, pair):
    """A rebalance that a static member doesn't join in time goes on with it as a member, until its session ends."""
    newcomer = groups.join(instance="c")
    groups.join(pair["b"], instance="b")
    groups.keep_alive([pair["a"]], 5_100)
    assert [2] == [joined.generation for joined in newcomer]
    assert pair["a"] in groups.group.members
    assert pair["a"] != groups.group.leader_id, "who leads must be there to do it"
    groups.keep_alive([pair["b"], newcomer[0].member_id], 2_200)
    assert pair["a"] not in groups.group.members


def test_without_anybody_to_lead_the_rebalance_waits(groups, pair):
    """When no member joins in time, the static ones keep their places and the rebalance waits for the first of them."""
    groups.leave("", instance="b")
    groups.keep_alive([pair["a"]], 5_100)
    assert (GroupState.PREPARING, {pair["a"]}) == (groups.group.state, set(groups.group.members))
    assert [2] == [joined.generation for joined in groups.join(pair["a"], instance="a")]


def test_an_instance_id_is_not_empty(groups, pair):
    """A join with an empty instance id is rejected, and new members without one are not taken for it."""
    with rejected(ErrorCode.INVALID_REQUEST):
        groups.join(instance="")
    groups.group.static[""] = pair["a"]
    joined = groups.join()
    for name in "ab":
        groups.join(pair[name], instance=name)
    assert [ErrorCode.NONE] == [x.code for x in joined]
