"""The group coordinator: moves groups through their states, and answers members at the right time.

Operations that wait: a rebalance for its members (``delayed_join``), a generation for its assignments
(``delayed_sync``), a session for a heartbeat (``delayed_heartbeat``), a write to the offsets topic for the replicas
(``delayed_produce``, under the group's lock). Each method here is one event. It changes the group, and names the key to
check. Checks of joins and syncs go through the action queue. A session is renewed at once.

Used on the broker's loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.groups.admission import Admission
from examples.broker.groups.commits import Commits
from examples.broker.groups.delayed_join import DelayedJoin, InitialDelayedJoin
from examples.broker.groups.delayed_sync import DelayedSync
from examples.broker.groups.sessions import Sessions
from examples.broker.groups.state.group import Group, GroupState, Member
from examples.broker.groups.state.known_groups import KnownGroups
from examples.broker.groups.state.store import GroupStore
from examples.broker.groups.state.values import Identity, Joined
from examples.broker.protocol.errors import BrokerError, ErrorCode
from purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.groups.delayed_heartbeat import DelayedHeartbeat
    from examples.broker.groups.settings import GroupSettings
    from examples.broker.replication.partition import Key
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.replication.topic_manager import TopicManager
    from purgatory import ActionQueue
    from timer import Timer

    AnswerJoin = Callable[[Joined], None]
    AnswerSync = Callable[[ErrorCode, bytes], None]

_log = structlog.get_logger(__name__)


class Coordinator:
    """All groups, and the purgatories of joins, syncs and sessions."""

    def __init__(
        self,
        settings: GroupSettings,
        replicas: ReplicaManager,
        topics: TopicManager,
        timer: Timer,
        actions: ActionQueue,
    ) -> None:
        purgatory = partial(DelayedOperationPurgatory[Any], timer=timer, broker_id=replicas.cluster.node_id)
        self.settings = settings
        self.actions = actions
        self.joins: DelayedOperationPurgatory[DelayedJoin] = purgatory("join")
        self.syncs: DelayedOperationPurgatory[DelayedSync] = purgatory("sync")
        self.heartbeats: DelayedOperationPurgatory[DelayedHeartbeat] = purgatory("heartbeat")
        self.sessions = Sessions(self.heartbeats, self._session_expired)
        self.store = GroupStore(replicas, topics, write_timeout_ms=settings.offset_commit_timeout_ms)
        self.groups = KnownGroups(self.store)
        self.admission = Admission(settings, self.groups, self.store, self.sessions, rebalance=self._rebalance)
        self.commits = Commits(settings, self.groups, self.store, self.sessions, topics)

    # -- groups that arrive and leave with their partition

    def add_loaded(self, key: Key, groups: Mapping[str, Group], topic_ids: Mapping[str, str] | None) -> None:
        """Coordinate the loaded groups of a partition that this node leads now.

        ``topic_ids`` has the existing ones of the topics that these groups have committed offsets of. None if that is
        unknown.
        """
        if not self.store.is_here(key):
            return
        self.groups.add_loaded(key, groups)
        if topic_ids is not None:
            self.commits.delete_offsets_of_missing_topics(groups.values(), topic_ids)
        _log.info("groups loaded", key=key, groups=len(groups))
        for group in groups.values():
            # The members do not know that the coordinator moved, so they have a full session.
            for member in group.members.values():
                self.sessions.renew(group, member)

    def release(self, key: Key) -> None:
        """Remove the groups of a partition that moved away. Members that wait are answered NOT_COORDINATOR."""
        self.store.live.pop(key, None)
        for group in self.groups.release(key):
            with group.lock:
                for purgatory in (self.joins, self.syncs):
                    purgatory.cancel_for_key(group.group_id)
                for member in (*group.members.values(), *group.pending.values()):
                    self.sessions.end(group, member)
                    answer_join, member.answer_join = member.answer_join, None
                    answer_sync, member.answer_sync = member.answer_sync, None
                    if answer_join is not None:
                        answer_join(Joined(ErrorCode.NOT_COORDINATOR, member.member_id))
                    if answer_sync is not None:
                        answer_sync(ErrorCode.NOT_COORDINATOR, b"")
                group.state = GroupState.DEAD
            _log.info("group moved away", group=group.group_id)

    def shut_down(self) -> None:
        """Cancel sessions and rebalances, so that a stopping broker removes no member."""
        for purgatory in (self.joins, self.syncs, self.heartbeats):
            purgatory.shutdown("cancel")

    # -- rebalance

    def _rebalance(self, group: Group, reason: str) -> None:
        """Begin a rebalance, or continue the current one."""
        if group.state is GroupState.PREPARING:
            self._check_join(group)
            return
        for member in group.members.values():
            if member.answer_sync is not None:
                self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, b"")
        was_empty = group.state is GroupState.EMPTY
        group.state = GroupState.PREPARING
        group.unsynced.clear()
        self.actions.add(self.syncs.check_and_complete, group.group_id)
        _log.info("rebalance", group=group.group_id, generation=group.generation, reason=reason)
        if was_empty and self.settings.initial_rebalance_delay_ms:
            self._wait_for_newcomers(group, group.rebalance_timeout_ms)
        else:
            self._wait_for_members(group)

    def _wait_for_members(self, group: Group) -> None:
        operation = DelayedJoin(group, group.rebalance_timeout_ms, self._end_join)
        self.joins.try_complete_else_watch(operation, [group.group_id])

    def _wait_for_newcomers(self, group: Group, remaining_ms: int) -> None:
        group.newcomers = False
        delay_ms = min(self.settings.initial_rebalance_delay_ms, remaining_ms)
        operation = InitialDelayedJoin(
            group, delay_ms, max(remaining_ms - delay_ms, 0), prolong=self._wait_for_newcomers, end=self._end_join
        )
        self.joins.try_complete_else_watch(operation, [group.group_id])

    def _end_join(self, group: Group) -> None:
        """End the join phase. The members that joined are the new generation. Static members keep their places."""
        for member in [x for x in group.members.values() if x.answer_join is None and x.instance_id is None]:
            self.sessions.end(group, member)
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            self._wait_for_members(group)  # no member can lead; it ends when a member joins or the sessions expire
            return
        protocol = group.choose_protocol()
        if not protocol:
            self._dismiss(group)  # not possible for new members, but for a group that an earlier version has stored
        group.generation += 1
        if not group.members:
            group.state = GroupState.EMPTY
            group.protocol = ""
            if group.is_stored and group.offsets:
                self.store.save(group)
            self.groups.remove_if_unused(group)
            return
        group.state = GroupState.COMPLETING
        group.protocol = protocol
        group.unsynced = set(group.members)
        for member in list(group.members.values()):
            answer, member.answer_join = member.answer_join, None
            member.assignment = b""
            self.sessions.renew(group, member)
            if answer is not None:
                answer(group.joined(member))
        operation = DelayedSync(group, group.rebalance_timeout_ms, self._sync_expired)
        self.syncs.try_complete_else_watch(operation, [group.group_id])

    def _dismiss(self, group: Group) -> None:
        """Remove all members, because they have no protocol in common."""
        for member in list(group.members.values()):
            self.sessions.end(group, member)
            group.remove(member.member_id)
            if member.answer_join is not None:
                member.answer_join(Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member.member_id))

    # -- sync

    def sync(self, group_id: str, who: Identity, assignments: Mapping[str, bytes], answer: AnswerSync) -> None:
        """Answer a member with its assignment. The leader's request has all assignments. Raises as ``heartbeat``."""
        group = self.groups.existing(group_id)
        with group.lock:
            member = group.member_of_generation(who)
            if group.state is GroupState.PREPARING:
                raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
            group.unsynced.discard(member.member_id)
            if group.state is GroupState.STABLE:
                self.sessions.renew(group, member)
                answer(ErrorCode.NONE, member.assignment)
            else:
                if member.answer_sync is not None:  # the client has sent it again
                    self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, b"")
                member.answer_sync = answer
                self.sessions.renew(group, member)
                if member.member_id == group.leader_id:
                    self._assign(group, assignments)
            self.actions.add(self.syncs.check_and_complete, group.group_id)

    def _assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """Store the generation with its assignments, then answer the members."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        generation = group.generation

        def stored(code: ErrorCode) -> None:
            if group.generation != generation or group.state is not GroupState.COMPLETING:
                return  # the next rebalance has begun, and has answered the members
            if code is ErrorCode.NONE:
                group.state = GroupState.STABLE
            for member in list(group.members.values()):
                if member.answer_sync is not None:
                    self._answer_sync(group, member, code, member.assignment if code is ErrorCode.NONE else b"")
            if code is not ErrorCode.NONE:
                self._rebalance(group, f"the assignment could not be stored: {code.name}")

        self.store.save(group, stored)

    def _answer_sync(self, group: Group, member: Member, code: ErrorCode, assignment: bytes) -> None:
        answer, member.answer_sync = member.answer_sync, None
        assert answer is not None
        self.sessions.renew(group, member)
        answer(code, assignment)

    def _sync_expired(self, group: Group, generation: int) -> None:
        with group.lock:
            if group.generation == generation:
                for member_id in list(group.unsynced):
                    self._remove(group, member_id, "did not ask for its assignment")

    # -- sessions

    def heartbeat(self, group_id: str, who: Identity) -> ErrorCode:
        """Renew a session, and return the member's code. Raises BrokerError if it is not of this generation."""
        group = self.groups.existing(group_id)
        with group.lock:
            member = group.member_of_generation(who)
            self.sessions.renew(group, member)
            preparing = group.state is GroupState.PREPARING
            return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def _session_expired(self, group: Group, member: Member) -> None:
        with group.lock:
            if group.state is GroupState.DEAD or (member.heartbeat is not None and member.heartbeat.is_over):
                return
            if group.pending.pop(member.member_id, None) is not None:
                self._check_join(group)
                self.groups.remove_if_unused(group)
            else:
                self._remove(group, member.member_id, "its session expired")

    def leave(self, group_id: str, who: Identity) -> None:
        """Remove a member, which may be named by its instance id alone. Raises BrokerError if it is not a member."""
        group = self.groups.existing(group_id)
        with group.lock:
            pending = group.pending.pop(who.member_id, None)
            if pending is not None:
                self.sessions.end(group, pending)
                self._check_join(group)
                self.groups.remove_if_unused(group)
                return
            if who.instance_id is not None and not who.member_id:
                who = Identity(group.static.get(who.instance_id, ""), instance_id=who.instance_id)
            member = group.member(who)
            self.sessions.end(group, member)
            self._remove(group, member.member_id, "left")

    def _remove(self, group: Group, member_id: str, reason: str) -> None:
        member = group.remove(member_id)
        if member is None:
            return
        # No other code answers its requests, and later requests of its connection wait for these answers.
        if member.answer_join is not None:
            member.answer_join(Joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        if member.answer_sync is not None:
            member.answer_sync(ErrorCode.UNKNOWN_MEMBER_ID, b"")
        _log.info("member removed", group=group.group_id, member=member_id, reason=reason)
        if group.state is GroupState.PREPARING:
            self._check_join(group)
        else:
            self._rebalance(group, f"{member_id}: {reason}")

    def _check_join(self, group: Group) -> None:
        self.actions.add(self.joins.check_and_complete, group.group_id)
