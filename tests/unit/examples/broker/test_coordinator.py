"""Groups on a clock moved by hand: joining, syncing, heartbeats, and members that are never heard of again."""

import pytest

from examples.broker import messages as m
from examples.broker.config import Config
from examples.broker.coordinator import Coordinator
from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.group import GroupState
from examples.broker.replica_manager import ReplicaManager
from examples.broker.topics import TopicStore
from purgatory import ActionQueue
from timer import MockTimer


class Fixture:
    """A coordinator with an initial delay of 100 ms, and members that join it."""

    def __init__(self, folder):
        self.timer = MockTimer()
        self.actions = ActionQueue()
        config = Config(data=folder, ports=(1,), initial_rebalance_delay_ms=100)
        self.replicas = ReplicaManager(config, TopicStore(folder), self.timer, self.actions)
        self.coordinator = Coordinator(config, self.replicas, self.timer, self.actions)

    def run(self):
        while len(self.actions):
            self.actions.try_complete_actions()

    def advance(self, ms):
        for _ in range(ms // 10):
            self.timer.advance_clock(10)
            self.run()

    def join(self, member_id="", *, known=False, rebalance_ms=5_000, instance=None, metadata=b"", protocol="range"):
        """Join, and give the list that the answers will be in."""
        answers = []
        request = m.JoinGroupRequest(
            "g", 2_000, rebalance_ms, member_id, instance, "consumer", [m.JoinGroupProtocol(protocol, metadata)]
        )
        self.coordinator.join(
            request,
            client=("c", "/127.0.0.1"),
            needs_known_id=known,
            answer=lambda code, member, group=None: answers.append((code, member, group and group.generation)),
        )
        self.run()
        return answers

    def sync(self, member_id, generation, assignments=()):
        answers = []
        request = m.SyncGroupRequest(
            "g", generation, member_id, None, [m.SyncGroupAssignment(*pair) for pair in assignments]
        )
        self.coordinator.sync(self.group, request, lambda *answer: answers.append(answer))
        self.run()
        return answers

    def heartbeat(self, member_id, generation):
        try:
            return self.coordinator.heartbeat(self.group, member_id, generation)
        except BrokerError as error:
            return error.code

    def stable(self, count):
        """Have a stable group of so many members, and give their ids, the leader first."""
        joins = [self.join() for _ in range(count)]
        self.advance(300)
        ids = [answers[0][1] for answers in joins]
        generation = self.group.generation
        for member in reversed(ids):
            self.sync(member, generation, [(x, x.encode()) for x in ids])
        assert GroupState.STABLE is self.group.state
        return ids

    def keep_alive(self, ids, ms):
        """Let time pass, with heartbeats of these members."""
        for _ in range(ms // 100):
            self.advance(100)
            for member in ids:
                self.heartbeat(member, self.group.generation)

    @property
    def group(self):
        return self.coordinator.groups["g"]


@pytest.fixture
def groups(tmp_path):
    fixture = Fixture(tmp_path)
    yield fixture
    fixture.coordinator.shut_down()
    fixture.replicas.shut_down()
    fixture.replicas.close()
    fixture.timer.shutdown()


def test_members_that_start_together_share_the_first_generation(groups):
    """An empty group waits for newcomers; each one prolongs the wait; then all are answered at once."""
    first = groups.join()
    groups.advance(90)
    second = groups.join()
    groups.advance(60)
    assert ([], []) == (first, second), "prolonged, since somebody came"
    groups.advance(60)
    assert [(ErrorCode.NONE, 1)] == [(code, generation) for code, _, generation in first]
    assert [(ErrorCode.NONE, 1)] == [(code, generation) for code, _, generation in second]
    assert first[0][1] == groups.group.leader_id


def test_the_wait_for_newcomers_has_an_end(groups):
    """However many come, the rebalance timeout ends the wait."""
    first = groups.join(rebalance_ms=300)
    for _ in range(5):
        groups.advance(50)
        groups.join(rebalance_ms=300)
    groups.advance(60)
    assert 1 == len(first)


def test_new_clients_are_told_their_id_first(groups):
    """Clients of later versions get an id and the code to come again; one that never does is forgotten."""
    ((code, member, _),) = groups.join(known=True)
    assert (ErrorCode.MEMBER_ID_REQUIRED, True) == (code, member in groups.group.pending)
    answers = groups.join(member, known=True)
    groups.join(known=True)
    assert 1 == len(groups.group.pending)
    groups.advance(2_010)
    assert {} == groups.group.pending
    assert [(ErrorCode.NONE, member, 1)] == answers


def test_assignments_reach_everyone(groups):
    """Members wait for the leader's assignment, and get their own; later ones are answered at once."""
    joins = [groups.join(), groups.join()]
    groups.advance(300)
    leader, other = (answers[0][1] for answers in joins)
    waiting = groups.sync(other, 1)
    assert [] == waiting
    assert [(ErrorCode.NONE, b"L")] == groups.sync(leader, 1, [(leader, b"L"), (other, b"O")])
    assert [(ErrorCode.NONE, b"O")] == waiting
    assert [(ErrorCode.NONE, b"O")] == groups.sync(other, 1)


def test_a_newcomer_makes_everyone_rejoin(groups):
    """A join to a stable group tells members by their heartbeats, and completes when all have rejoined."""
    one, two = groups.stable(2)
    newcomer = groups.join()
    assert ErrorCode.REBALANCE_IN_PROGRESS is groups.heartbeat(one, 1)
    first = groups.join(one)
    assert ([], []) == (newcomer, first)
    groups.join(two)
    assert (1, 1) == (len(newcomer), len(first))
    assert 2 == groups.group.generation


def test_who_does_not_rejoin_is_left_behind(groups):
    """At the rebalance timeout the generation begins without who is missing."""
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
    """A member that heartbeats stays for as long as it likes; one that stops is out after its session timeout."""
    one, two = groups.stable(2)
    groups.keep_alive([one, two], 6_000)
    assert {one, two} == set(groups.group.members)
    groups.keep_alive([one], 1_900)
    assert two in groups.group.members
    groups.keep_alive([one], 300)
    assert {one} == set(groups.group.members)
    assert GroupState.PREPARING is groups.group.state
    answers = groups.join(one)
    assert [(ErrorCode.NONE, one, 2)] == answers


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
    joins = [groups.join(rebalance_ms=3_000), groups.join(rebalance_ms=3_000)]
    groups.advance(300)
    leader, other = (answers[0][1] for answers in joins)
    waiting = groups.sync(other, 1)
    groups.advance(3_100)
    assert leader not in groups.group.members
    assert [(ErrorCode.REBALANCE_IN_PROGRESS, b"")] == waiting
    assert [(ErrorCode.NONE, other, 2)] == groups.join(other)
    assert other == groups.group.leader_id


def test_who_never_syncs_is_removed(groups):
    """A member that heartbeats but never asks for its assignment is removed at the rebalance timeout."""
    joins = [groups.join(rebalance_ms=3_000), groups.join(rebalance_ms=3_000)]
    groups.advance(300)
    leader, other = (answers[0][1] for answers in joins)
    groups.sync(leader, 1)
    groups.keep_alive([leader, other], 3_200)
    assert {leader} == set(groups.group.members)


def test_leaving_rebalances_at_once(groups):
    """A member that leaves is gone; the last one leaves an empty group."""
    one, two = groups.stable(2)
    groups.coordinator.leave(groups.group, two)
    assert ErrorCode.REBALANCE_IN_PROGRESS is groups.heartbeat(one, 1)
    assert [(ErrorCode.NONE, one, 2)] == groups.join(one)
    groups.coordinator.leave(groups.group, one)
    groups.run()
    assert {} == groups.coordinator.groups, "and nothing is remembered of it"
    assert 0 == groups.timer.size


def test_who_leaves_while_it_waits_is_answered(groups):
    """A member that leaves before its join is answered gets that answer too: it may be in the way of others."""
    one, two = groups.stable(2)
    waiting = groups.join(one)
    groups.coordinator.leave(groups.group, one)
    assert [(ErrorCode.UNKNOWN_MEMBER_ID, one, None)] == waiting
    assert [(ErrorCode.NONE, two, 2)] == groups.join(two)


def test_a_group_with_offsets_outlives_its_members(groups):
    """When the last member leaves, committed offsets stay."""
    (one,) = groups.stable(1)
    groups.coordinator.commit(m.OffsetCommitRequest("g", 1, one), {("t", 0): (1, None)}, lambda _: None)
    groups.coordinator.leave(groups.group, one)
    groups.run()
    assert (GroupState.EMPTY, {("t", 0): (1, None)}) == (groups.group.state, groups.group.offsets)


def test_a_static_member_fences_its_former_self(groups):
    """Who comes back with the same instance id takes the place; the old id is fenced."""
    answers = groups.join(instance="a")
    groups.advance(300)
    old = answers[0][1]
    again = groups.join(instance="a")
    groups.advance(300)
    assert ErrorCode.NONE is again[0][0]
    assert {again[0][1]} == set(groups.group.members)
    with pytest.raises(BrokerError) as caught:
        groups.join(old, instance="a")
    assert ErrorCode.FENCED_INSTANCE_ID is caught.value.code


def test_strangers_are_refused(groups):
    """Unknown members, other protocols, past generations and impossible timeouts get the code for each."""
    (one,) = groups.stable(1)
    assert ErrorCode.ILLEGAL_GENERATION is groups.heartbeat(one, 7)
    assert ErrorCode.UNKNOWN_MEMBER_ID is groups.heartbeat("nobody", 1)
    for settings, code in (
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol": "another"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        with pytest.raises(BrokerError) as caught:
            groups.join(**settings)
        assert code is caught.value.code


def test_commits_are_checked_and_stored(groups):
    """A member's commit is stored and read back; another generation's is refused; anyone may use an empty group."""
    (one,) = groups.stable(1)
    codes = []
    offsets = {("t", 0): (42, "here")}
    groups.coordinator.commit(m.OffsetCommitRequest("g", 1, one), offsets, codes.append)
    assert [ErrorCode.NONE] == codes
    assert offsets == groups.group.offsets
    with pytest.raises(BrokerError) as caught:
        groups.coordinator.commit(m.OffsetCommitRequest("g", 9, one), offsets, codes.append)
    assert ErrorCode.ILLEGAL_GENERATION is caught.value.code
    groups.coordinator.commit(m.OffsetCommitRequest("h", -1, ""), offsets, codes.append)
    assert {"g": offsets, "h": offsets} == groups.coordinator.offsets.load()


def test_a_join_repeated_in_a_stable_group_is_answered_as_before(groups):
    """A follower that missed its answer gets it again without a rebalance; the leader's join starts one."""
    one, two = groups.stable(2)
    assert [(ErrorCode.NONE, two, 1)] == groups.join(two)
    assert GroupState.STABLE is groups.group.state
    assert [] == groups.join(one)
    assert GroupState.PREPARING is groups.group.state
