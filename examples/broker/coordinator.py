"""The group coordinator: moves groups through their states, and answers members when it is their time.

What waits: a rebalance for its members (`delayed_join`), a generation for its assignments (`delayed_sync`),
a session for a sign of life (`delayed_heartbeat`), a commit for the replicas (`delayed_produce`, under the
group's lock). Each method here is one event; it changes the group and says whose key is to be checked.
Checks of joins and syncs go through the action queue; a session is renewed on the spot.

Belongs to the broker's loop.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import structlog

from examples.broker.delayed_join import DelayedJoin, InitialDelayedJoin
from examples.broker.delayed_sync import DelayedSync
from examples.broker.errors import BrokerError, ErrorCode
from examples.broker.group import Group, GroupState, Member
from examples.broker.offsets import Offsets
from examples.broker.sessions import Sessions
from purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker import messages as m
    from examples.broker.config import Config
    from examples.broker.delayed_heartbeat import DelayedHeartbeat
    from examples.broker.partition import Key
    from examples.broker.replica_manager import ReplicaManager
    from purgatory import ActionQueue
    from timer import Timer

__all__ = ["Coordinator"]

_log = structlog.get_logger(__name__)


class Coordinator:
    """All groups, and the three purgatories of what waits for them."""

    def __init__(self, config: Config, replicas: ReplicaManager, timer: Timer, actions: ActionQueue) -> None:
        def purgatory(name: str) -> DelayedOperationPurgatory[Any]:
            return DelayedOperationPurgatory(name, timer=timer, broker_id=config.node_id)

        self.config = config
        self.actions = actions
        self.joins: DelayedOperationPurgatory[DelayedJoin] = purgatory("join")
        self.syncs: DelayedOperationPurgatory[DelayedSync] = purgatory("sync")
        self.heartbeats: DelayedOperationPurgatory[DelayedHeartbeat] = purgatory("heartbeat")
        self.sessions = Sessions(self.heartbeats, self._session_expired)
        self.offsets = Offsets(replicas)
        self.groups: dict[str, Group] = {}
        if config.is_leader:
            for group_id, offsets in self.offsets.load().items():
                self.groups[group_id] = Group(group_id)
                self.groups[group_id].offsets = offsets

    def shut_down(self) -> None:
        """Take sessions and rebalances out unexpired: a broker that stops throws no member out."""
        for purgatory in (self.joins, self.syncs, self.heartbeats):
            purgatory.shutdown("cancel")

    def existing(self, group_id: str) -> Group:
        """Give a group.

        Raises:
            BrokerError: if this node doesn't coordinate, or there is no such group.
        """
        self._check(group_id)
        if group_id not in self.groups:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.groups[group_id]

    def _check(self, group_id: str) -> None:
        if not self.config.is_leader:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)

    # -- join

    def join(
        self,
        request: m.JoinGroupRequest,
        *,
        client: tuple[str, str],
        needs_known_id: bool,
        answer: Callable[..., None],
    ) -> None:
        """A member wants to be in the next generation; `answer` is called when that begins.

        Raises:
            BrokerError: if it can't join.
        """
        self._check(request.group_id)
        longest = self.config.max_session_timeout_ms
        if not self.config.min_session_timeout_ms <= request.session_timeout_ms <= longest:
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self.groups[request.group_id] = Group(request.group_id)
        with group.lock:
            if request.member_id:
                self._join_again(group, request, answer)
            else:
                self._join_new(group, request, client, needs_known_id=needs_known_id, answer=answer)

    def _join_new(
        self,
        group: Group,
        request: m.JoinGroupRequest,
        client: tuple[str, str],
        *,
        needs_known_id: bool,
        answer: Callable[..., None],
    ) -> None:
        protocols = {protocol.name: protocol.metadata for protocol in request.protocols}
        if not group.accepts(request.protocol_type, protocols):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if len(group.members) + len(group.pending) >= self.config.max_group_size:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is full")
        client_id, client_host = client
        timeout = request.rebalance_timeout_ms
        member = Member(
            member_id=f"{request.group_instance_id or client_id}-{uuid.uuid4()}",
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=timeout if timeout >= 0 else request.session_timeout_ms,
            protocols=protocols,
        )
        if request.group_instance_id is not None:
            self._replace_static(group, request.group_instance_id)
        elif needs_known_id:
            # The client may have gone before it reads this; only one that comes back with the id is a member.
            group.pending[member.member_id] = member
            self.sessions.renew(group, member)
            answer(ErrorCode.MEMBER_ID_REQUIRED, member.member_id)
            return
        self._admit(group, member, request, answer)

    def _replace_static(self, group: Group, instance_id: str) -> None:
        old = group.members.get(group.static.get(instance_id, ""))
        if old is not None:
            if old.answer_join is not None:
                old.answer_join(ErrorCode.FENCED_INSTANCE_ID, old.member_id)
            if old.answer_sync is not None:
                old.answer_sync(ErrorCode.FENCED_INSTANCE_ID, b"")
            self.sessions.end(group, old)
            group.remove(old.member_id)

    def _admit(self, group: Group, member: Member, request: m.JoinGroupRequest, answer: Callable[..., None]) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        member.answer_join = answer
        group.add(member)
        group.newcomers = True
        self.sessions.renew(group, member)
        self._rebalance(group, f"{member.member_id} joined")

    def _join_again(self, group: Group, request: m.JoinGroupRequest, answer: Callable[..., None]) -> None:
        protocols = {protocol.name: protocol.metadata for protocol in request.protocols}
        pending = group.pending.pop(request.member_id, None)
        if pending is not None:
            pending.protocols = protocols
            if not group.accepts(request.protocol_type, protocols):
                self.sessions.end(group, pending)
                raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            self._admit(group, pending, request, answer)
            return
        member = group.member(request.member_id, request.group_instance_id)
        same = protocols == member.protocols
        leads = member.member_id == group.leader_id
        if same and (group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and not leads)):
            # It missed our answer: here it is again.
            self.sessions.renew(group, member)
            answer(ErrorCode.NONE, member.member_id, group)
            return
        member.protocols = protocols
        if member.answer_join is not None:
            member.answer_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        member.answer_join = answer
        self.sessions.renew(group, member)
        self._rebalance(group, f"{member.member_id} joined again")

    # -- rebalance

    def _rebalance(self, group: Group, reason: str) -> None:
        """Begin a rebalance, or go on with the one that is under way."""
        if group.state is not GroupState.PREPARING:
            for member in group.members.values():
                if member.answer_sync is not None:
                    self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, b"")
            was_empty = group.state is GroupState.EMPTY
            group.state = GroupState.PREPARING
            group.unsynced.clear()
            self.actions.add(self.syncs.check_and_complete, group.group_id)
            _log.info("rebalance", group=group.group_id, generation=group.generation, reason=reason)
            if was_empty and self.config.initial_rebalance_delay_ms:
                self._wait_for_newcomers(group, group.rebalance_timeout_ms)
            else:
                operation = DelayedJoin(group, group.rebalance_timeout_ms, self._end_join)
                self.joins.try_complete_else_watch(operation, [group.group_id])
        else:
            self.actions.add(self.joins.check_and_complete, group.group_id)

    def _wait_for_newcomers(self, group: Group, remaining_ms: int) -> None:
        group.newcomers = False
        delay_ms = min(self.config.initial_rebalance_delay_ms, remaining_ms)
        operation = InitialDelayedJoin(
            group,
            delay_ms,
            max(remaining_ms - delay_ms, 0),
            prolong=self._wait_for_newcomers,
            end=self._end_join,
        )
        self.joins.try_complete_else_watch(operation, [group.group_id])

    def _end_join(self, group: Group) -> None:
        """The join phase is over: those who joined are the new generation."""
        for member in [x for x in group.members.values() if x.answer_join is None and x.instance_id is None]:
            self.sessions.end(group, member)
            group.remove(member.member_id)
        group.generation += 1
        if not group.members:
            group.state = GroupState.EMPTY
            group.protocol = ""
            self._forget_if_unused(group)
            return
        group.state = GroupState.COMPLETING
        group.protocol = group.choose_protocol()
        group.unsynced = set(group.members)
        for member in list(group.members.values()):
            answer, member.answer_join = member.answer_join, None
            member.assignment = b""
            self.sessions.renew(group, member)
            if answer is not None:
                answer(ErrorCode.NONE, member.member_id, group)
        operation = DelayedSync(group, group.rebalance_timeout_ms, self._sync_expired)
        self.syncs.try_complete_else_watch(operation, [group.group_id])

    # -- sync

    def sync(
        self,
        group: Group,
        request: m.SyncGroupRequest,
        answer: Callable[[ErrorCode, bytes], None],
    ) -> None:
        """A member wants its assignment; the leader brings everybody's.

        Raises:
            BrokerError: if it isn't a member of this generation.
        """
        with group.lock:
            member = group.member(request.member_id, request.group_instance_id)
            if request.generation_id != group.generation:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            if group.state is GroupState.PREPARING:
                raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
            group.unsynced.discard(member.member_id)
            if group.state is GroupState.STABLE:
                self.sessions.renew(group, member)
                answer(ErrorCode.NONE, member.assignment)
            else:
                member.answer_sync = answer
                self.sessions.renew(group, member)
                if member.member_id == group.leader_id:
                    self._assign(group, {a.member_id: a.assignment for a in request.assignments})
            self.actions.add(self.syncs.check_and_complete, group.group_id)

    def _assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        group.state = GroupState.STABLE
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.answer_sync is not None:
                self._answer_sync(group, member, ErrorCode.NONE, member.assignment)

    def _answer_sync(self, group: Group, member: Member, code: ErrorCode, assignment: bytes) -> None:
        answer, member.answer_sync = member.answer_sync, None
        assert answer is not None
        self.sessions.renew(group, member)
        answer(code, assignment)

    def _sync_expired(self, group: Group, generation: int) -> None:
        with group.lock:
            if group.generation == generation:
                for member_id in list(group.unsynced):
                    self._remove(group, member_id, "never came for its assignment")

    # -- sessions

    def heartbeat(self, group: Group, member_id: str, generation: int) -> ErrorCode:
        """A member says that it is alive; give what it is to know.

        Raises:
            BrokerError: if it isn't a member of this generation.
        """
        with group.lock:
            member = group.member(member_id)
            if generation != group.generation:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            self.sessions.renew(group, member)
            preparing = group.state is GroupState.PREPARING
            return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def _session_expired(self, group: Group, member: Member) -> None:
        with group.lock:
            if member.heartbeat is not None and member.heartbeat.heard:
                return
            if group.pending.pop(member.member_id, None) is not None:
                self._checked_join(group)
                self._forget_if_unused(group)
            else:
                self._remove(group, member.member_id, "its session expired")

    def leave(self, group: Group, member_id: str) -> None:
        """A member goes.

        Raises:
            BrokerError: if it isn't a member.
        """
        with group.lock:
            pending = group.pending.pop(member_id, None)
            if pending is not None:
                self.sessions.end(group, pending)
                self._checked_join(group)
                self._forget_if_unused(group)
            else:
                self.sessions.end(group, group.member(member_id))
                self._remove(group, member_id, "left")

    def _remove(self, group: Group, member_id: str, reason: str) -> None:
        member = group.remove(member_id)
        if member is None:
            return
        # Nobody else will answer what it still waits for; and what comes behind on its connection waits for that.
        if member.answer_join is not None:
            member.answer_join(ErrorCode.UNKNOWN_MEMBER_ID, member_id)
        if member.answer_sync is not None:
            member.answer_sync(ErrorCode.UNKNOWN_MEMBER_ID, b"")
        _log.info("member gone", group=group.group_id, member=member_id, reason=reason)
        if group.state is GroupState.PREPARING:
            self._checked_join(group)
        else:
            self._rebalance(group, f"{member_id}: {reason}")

    def _forget_if_unused(self, group: Group) -> None:
        """A name that was used once, and left nothing, needs no group."""
        if group.state is GroupState.EMPTY and not (group.members or group.pending or group.offsets):
            self.groups.pop(group.group_id, None)

    def _checked_join(self, group: Group) -> None:
        self.actions.add(self.joins.check_and_complete, group.group_id)

    # -- offsets

    def commit(
        self,
        request: m.OffsetCommitRequest,
        offsets: Mapping[Key, tuple[int, str | None]],
        answer: Callable[[ErrorCode], None],
    ) -> None:
        """Store offsets, of a member or (generation -1) of a client that only uses the name.

        Raises:
            BrokerError: if it may not commit.
        """
        self._check(request.group_id)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            group = self.groups[request.group_id] = Group(request.group_id)
        with group.lock:
            if request.generation_id < 0 and not group.members:
                self.offsets.commit(group, offsets, answer)
                return
            member = group.member(request.member_id)
            if request.generation_id != group.generation:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            if group.state is GroupState.COMPLETING:
                raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
            self.sessions.renew(group, member)
            self.offsets.commit(group, offsets, answer)
