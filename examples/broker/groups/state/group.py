"""A consumer group: its members, its state, and functions of these alone.

    EMPTY        no members
      |
      |  the first member joins
      v
    PREPARING    waits for all to join           <---.
      |                                              |
      |  all have joined, or the time is over        |  a member joins,
      v                                              |  leaves, or is lost
    COMPLETING   waits for the leader's assignment --+
      |                                              |
      |  the leader's assignment                     |
      v                                              |
    STABLE       all members have assignments -------'

A join phase that ends without a member makes the group EMPTY again.

``coordinator`` makes the moves, with their waiting and answering. Nothing here parks or answers. The operations that
wait for the group are checked under its ``lock``, a commit's ``DelayedProduce`` included.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from examples.broker.groups.state.values import Joined, JoinedMember
from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from examples.broker.groups.delayed_heartbeat import DelayedHeartbeat
    from examples.broker.groups.state.values import Commit, Identity
    from examples.broker.replication.partition import Key


class GroupState(enum.Enum):
    """The states, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """Another node coordinates it now."""


@attrs.define(eq=False, kw_only=True)
class Member:
    """One member, and the answers that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Mapping[str, bytes]
    assignment: bytes = b""
    answer_join: Callable[[Joined], None] | None = None
    answer_sync: Callable[[ErrorCode, bytes], None] | None = None
    heartbeat: DelayedHeartbeat | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer. Then it cannot send heartbeats."""
        return self.answer_join is not None or self.answer_sync is not None


class Group:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.lock = threading.RLock()
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader_id = ""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Member ids by instance id, which a client keeps when it restarts."""
        self.pending: dict[str, Member] = {}
        """Clients that have got a member id and have not returned with it yet."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.newcomers = False
        """Whether a member joined since the initial delay was last extended."""
        self.offsets: dict[Key, Commit] = {}
        self.writes = 0
        """Writes to the offsets topic that are in progress."""
        self.is_stored = False
        """Whether the offsets topic has a record of its members."""

    @property
    def all_joined(self) -> bool:
        """Whether the rebalance waits for no member."""
        return not self.pending and all(m.answer_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member(self, who: Identity) -> Member:
        """Return a member. Raises FENCED_INSTANCE_ID if another one replaced it, or UNKNOWN_MEMBER_ID."""
        if who.instance_id is not None and self.static.get(who.instance_id, who.member_id) != who.member_id:
            raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
        if who.member_id not in self.members:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[who.member_id]

    def member_of_generation(self, who: Identity) -> Member:
        """Return a member of the present generation. Raises BrokerError as ``member``, and ILLEGAL_GENERATION."""
        member = self.member(who)
        if who.generation != self.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def add(self, member: Member) -> None:
        """Add a member. The first one leads."""
        if not self.members:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member. If it was the leader, another one leads."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.unsynced.discard(member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader_id == member_id and not self.elect_joined_leader():
            self.leader_id = next(iter(self.members), "")
        return member

    def elect_joined_leader(self) -> bool:
        """Make a member lead that has joined. Returns whether there is one."""
        joined = [m.member_id for m in self.members.values() if m.answer_join is not None]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member by its new process."""
        self.members = {
            (new if member is old else member).member_id: new if member is old else member
            for member in self.members.values()
        }
        self.unsynced.discard(old.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        assert new.instance_id is not None
        self.static[new.instance_id] = new.member_id

    def joined(self, member: Member) -> Joined:
        """Return the answer to a member's join. The leader's answer lists the members."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader_id:
            members = tuple(
                JoinedMember(other.member_id, other.instance_id, other.protocols[self.protocol])
                for other in self.members.values()
            )
        return Joined(ErrorCode.NONE, member.member_id, self.generation, self.protocol, self.leader_id, members)

    def accepts(self, protocol_type: str, protocols: Mapping[str, bytes], *, member_id: str = "") -> bool:
        """Whether a client shares a protocol with all members, except ``member_id``, which is the client itself."""
        if not protocols or not protocol_type or (self.members and protocol_type != self.protocol_type):
            return False
        others = [set(member.protocols) for member in self.members.values() if member.member_id != member_id]
        return not others or bool(set.intersection(*others, set(protocols)))

    def choose_protocol(self) -> str:
        """Return the common protocol that most members name first, or an empty string."""
        names = [set(member.protocols) for member in self.members.values()]
        common = set.intersection(*names) if names else set()
        if not common:
            return ""
        votes: dict[str, int] = {}
        for member in self.members.values():
            first = next(name for name in member.protocols if name in common)
            votes[first] = votes.get(first, 0) + 1
        return max(votes, key=lambda name: votes[name])
