"""Groups on a clock moved by hand: joining, syncing, heartbeats, commits, and members that are never heard of again."""

import pytest

from examples.broker.groups.state.group import GroupState
from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.steps import run_at_once
from examples.broker.tests.support import rejected

T0 = ("t", 0)


def told(answers):
    """What matters of answers to joins."""
    return [(joined.code, joined.member_id, joined.generation) for joined in answers]


def stored(groups):
    """What another coordinator would find."""
    return run_at_once(groups.coordinator.store.load(("__consumer_offsets", 0)))


def test_members_that_start_together_share_the_first_generation(groups):
    """An empty group waits for newcomers. Each one prolongs the wait. Then all are answered at once."""
    first = groups.join()
    groups.advance(90)
    second = groups.join()
    groups.advance(60)
    assert ([], []) == (first, second), "prolonged, since somebody came"
    groups.advance(60)
    assert 2 * [(ErrorCode.NONE, 1)] == [(joined.code, joined.generation) for joined in first + second]
    assert first[0].member_id == groups.group.leader_id == second[0].leader_id
    assert ([2], [0]) == ([len(joined.members) for joined in first], [len(joined.members) for joined in second])


def test_the_wait_for_newcomers_has_an_end(groups):
    """However many come, the rebalance timeout ends the wait."""
    first = groups.join(rebalance_ms=300)
    for _ in range(5):
        groups.advance(50)
        groups.join(rebalance_ms=300)
    groups.advance(60)
    assert 1 == len(first)


def test_new_clients_are_told_their_id_first(groups):
    """Clients of later versions get an id and the code to come again. One that never does is forgotten."""
    (first,) = groups.join(known=True)
    member = first.member_id
    assert (ErrorCode.MEMBER_ID_REQUIRED, True) == (first.code, member in groups.group.pending)
    answers = groups.join(member, known=True)
    groups.join(known=True)
    assert 1 == len(groups.group.pending)
    groups.advance(2_010)
    assert {} == groups.group.pending
    assert [(ErrorCode.NONE, member, 1)] == told(answers)


def test_assignments_reach_everyone(groups):
    """Members wait for the leader's assignment, and get their own. Later ones are answered at once."""
    leader, other = groups.joined(2)
    waiting = groups.sync(other, 1)
    assert [] == waiting
    assert [(ErrorCode.NONE, b"L")] == groups.sync(leader, 1, [(leader, b"L"), (other, b"O")])
    assert [(ErrorCode.NONE, b"O")] == waiting
    assert [(ErrorCode.NONE, b"O")] == groups.sync(other, 1)


def test_a_newcomer_makes_everyone_rejoin(groups):
    """A join to a stable group is reported to members by their heartbeats, and completes when all have rejoined."""
    one, two = groups.stable(2)
    newcomer = groups.join()
    assert ErrorCode.REBALANCE_IN_PROGRESS is groups.heartbeat(one, 1)
    first = groups.join(one)
    assert ([], []) == (newcomer, first)
    groups.join(two)
    assert (1, 1) == (len(newcomer), len(first))
    assert 2 == groups.group.generation


def test_who_does_not_rejoin_is_left_behind(groups):
    """At the rebalance timeout the generation begins without the missing members."""
    one, two = groups.stable(2)
    newcomer = groups.join()
    groups.join(one)
    groups.keep_alive([two], 4_900)
    assert [] == newcomer
    groups.keep_alive([two], 200)
    assert 1 == len(newcomer)
    assert two not in groups.group.members
    assert ErrorCode.UNKNOWN_MEMBER_ID is groups.heartbeat(two, 2)


def test_heartbeats_keep_a_session(groups):
    """A member that heartbeats stays for as long as it likes. One that stops is out after its session timeout."""
    one, two = groups.stable(2)
    groups.keep_alive([one, two], 6_000)
    assert {one, two} == set(groups.group.members)
    groups.keep_alive([one], 1_900)
    assert two in groups.group.members
    groups.keep_alive([one], 300)
    assert {one} == set(groups.group.members)
    assert GroupState.PREPARING is groups.group.state
    answers = groups.join(one)
    assert [(ErrorCode.NONE, one, 2)] == told(answers)


def test_members_that_wait_for_us_are_not_taken_for_dead(groups):
    """While its join is unanswered a member can't heartbeat, and needs not to."""
    one, two = groups.stable(2)
    groups.join()
    answers = groups.join(one)
    groups.keep_alive([two], 4_000)
    assert one in groups.group.members
    groups.join(two)
    assert 1 == len(answers)


def test_a_leader_that_never_assigns_is_removed(groups):
    """If the leader joins and is never heard of again, the others rebalance without it."""
    leader, other = groups.joined(2, rebalance_ms=3_000)
    waiting = groups.sync(other, 1)
    groups.advance(3_100)
    assert leader not in groups.group.members
    assert [(ErrorCode.REBALANCE_IN_PROGRESS, b"")] == waiting
    assert [(ErrorCode.NONE, other, 2)] == told(groups.join(other))
    assert other == groups.group.leader_id


def test_who_never_syncs_is_removed(groups):
    """A member that heartbeats but never asks for its assignment is removed at the rebalance timeout."""
    leader, other = groups.joined(2, rebalance_ms=3_000)
    groups.sync(leader, 1)
    groups.keep_alive([leader, other], 3_200)
    assert {leader} == set(groups.group.members)


def test_leaving_rebalances_at_once(groups):
    """A member that leaves is gone. The last one leaves an empty group."""
    one, two = groups.stable(2)
    groups.leave(two)
    assert ErrorCode.REBALANCE_IN_PROGRESS is groups.heartbeat(one, 1)
    assert [(ErrorCode.NONE, one, 2)] == told(groups.join(one))
    groups.leave(one)
    groups.run()
    assert [] == list(groups.coordinator.groups), "and nothing is remembered of it"
    assert 0 == groups.timer.size


def test_who_leaves_while_it_waits_is_answered(groups):
    """A member that leaves before its join is answered gets that answer too: it may be in the way of others."""
    one, two = groups.stable(2)
    waiting = groups.join(one)
    groups.leave(one)
    assert [(ErrorCode.UNKNOWN_MEMBER_ID, one, -1)] == told(waiting)
    assert [(ErrorCode.NONE, two, 2)] == told(groups.join(two))


def test_strangers_are_refused(groups):
    """Unknown members, other protocols, past generations and impossible timeouts get the code for each."""
    (one,) = groups.stable(1)
    assert ErrorCode.ILLEGAL_GENERATION is groups.heartbeat(one, 7)
    assert ErrorCode.UNKNOWN_MEMBER_ID is groups.heartbeat("nobody", 1)
    for settings, code in (
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol": "another"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        with rejected(code):
            groups.join(**settings)


def test_commits_are_checked_and_stored(groups):
    """A member's commit is stored. Another generation's is rejected. Anyone may use an empty group."""
    (one,) = groups.stable(1)
    offsets = {T0: Commit(42, "here", 3)}
    assert {T0: ErrorCode.NONE} == groups.commit(one, 1, offsets)
    assert offsets == groups.coordinator.commits.committed("g")
    with rejected(ErrorCode.ILLEGAL_GENERATION):
        groups.commit(one, 9, offsets)
    assert {T0: ErrorCode.NONE} == groups.commit("", -1, offsets, group="h")
    assert {"g": offsets, "h": offsets} == {group.group_id: group.offsets for group in stored(groups).values()}


def test_a_commit_is_judged_by_partition(groups):
    """Of one commit, what names no partition or carries too much is rejected, and the rest stored."""
    (one,) = groups.stable(1)
    expected = {
        T0: (Commit(1, "x" * 4_096), ErrorCode.NONE),
        ("t", 1): (Commit(1, "x" * 4_097), ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("t", 2): (Commit(1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", 0): (Commit(1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    codes = groups.commit(one, 1, {key: commit for key, (commit, _) in expected.items()})
    assert {key: code for key, (_, code) in expected.items()} == codes
    assert {T0} == set(groups.coordinator.commits.committed("g"))


def test_a_group_is_deleted_once_it_is_empty(groups):
    """A group with members is not deleted. An empty one is gone, also for a coordinator that starts again."""
    (one,) = groups.stable(1)
    groups.commit(one, 1, {T0: Commit(1)})
    codes = []
    with rejected(ErrorCode.NON_EMPTY_GROUP):
        groups.coordinator.commits.delete_group("g", codes.append)
    groups.leave(one)
    groups.coordinator.commits.delete_group("g", codes.append)
    groups.run()
    assert [ErrorCode.NONE] == codes
    assert ([], {}) == (list(groups.coordinator.groups), stored(groups))
    with rejected(ErrorCode.GROUP_ID_NOT_FOUND):
        groups.coordinator.commits.delete_group("g", codes.append)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (b"\0\0\0\0\0\1\0\1t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
        (b"\0\0\0\0\0\1\0\1u", ErrorCode.NONE),
        (b"\0\0\0\0\0\1\0\7u", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
    ],
)
def test_offsets_in_use_are_not_deleted(groups, metadata, code):
    """Offsets of a topic that a member reads, or may read, are kept. Others can go."""
    (member,) = groups.joined(1, metadata=metadata)
    groups.sync(member, 1)
    groups.commit(member, 1, {T0: Commit(1), ("t", 1): Commit(1)})
    codes = []
    groups.coordinator.commits.delete_offsets("g", [T0], codes.append)
    groups.run()
    assert [{T0: code}] == codes
    assert (code is ErrorCode.NONE) == (T0 not in groups.coordinator.commits.committed("g"))


def test_a_join_repeated_in_a_stable_group_is_answered_as_before(groups):
    """A follower that missed its answer gets it again without a rebalance. The leader's join starts one."""
    one, two = groups.stable(2)
    assert [(ErrorCode.NONE, two, 1)] == told(groups.join(two))
    assert GroupState.STABLE is groups.group.state
    assert [] == groups.join(one)
    assert GroupState.PREPARING is groups.group.state


def test_who_comes_again_must_speak_what_the_others_do(groups):
    """A member that joins again without a protocol of the others is rejected, and the group goes on as it was."""
    one, two = groups.stable(2)
    with rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        groups.join(two, protocol="roundrobin")
    assert (GroupState.STABLE, {one, two}) == (groups.group.state, set(groups.group.members))
    groups.join(one, metadata=b"other")
    assert [(ErrorCode.NONE, two, 2)] == told(groups.join(two, metadata=b"other"))


def test_who_is_alone_may_speak_something_else(groups):
    """The only member of a group may come again with another protocol, but not as something else than a consumer."""
    (one,) = groups.stable(1)
    assert [(ErrorCode.NONE, one, 2)] == told(groups.join(one, protocol="roundrobin"))
    assert "roundrobin" == groups.group.protocol


def test_members_without_a_common_protocol_are_sent_away(groups):
    """A rebalance whose members have no common protocol ends all the same, without them."""
    joins = [groups.join(), groups.join()]
    list(groups.group.members.values())[1].protocols = {"roundrobin": b""}
    groups.advance(300)
    assert 2 * [[ErrorCode.INCONSISTENT_GROUP_PROTOCOL]] == [[answer.code for answer in answers] for answers in joins]
    assert groups.group is None


def test_a_negative_offset_is_taken(groups):
    """A client may commit any offset, a negative one too, as with the protocol's own broker."""
    assert {T0: ErrorCode.NONE} == groups.commit("", -1, {T0: Commit(-7)})
    assert {T0: Commit(-7)} == groups.coordinator.commits.committed("g")


def test_a_member_that_syncs_again_gets_both_answers(groups):
    """The first request is answered when the second comes. A connection sends its responses in order."""
    leader, other = groups.joined(2)
    first, second = groups.sync(other, 1), groups.sync(other, 1)
    assert ([(ErrorCode.REBALANCE_IN_PROGRESS, b"")], []) == (first, second)
    groups.sync(leader, 1, {other: b"x"})
    assert [(ErrorCode.NONE, b"x")] == second
