"""A consumer group: its members, its state, and what follows from them alone.

    EMPTY        nobody is in it
      |
      |  the first member joins
      v
    PREPARING    waits for all to join           <---.
      |                                              |
      |  all have joined, or time is up              |  somebody joins,
      v                                              |  leaves, or is lost
    COMPLETING   waits for the leader's assignment --+
      |                                              |
      |  the leader's assignment                     |
      v                                              |
    STABLE       everybody has an assignment --------'

When a join phase ends and nobody is left, the group is EMPTY again.

The moves themselves, with their waiting and answering, are the coordinator's (`coordinator`); nothing here
parks or answers. `lock` is the group's: the operations that wait for the group are checked under it, a
commit's `DelayedProduce` included.
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
    """The states, by the names that clients are shown."""

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
        """Whether it has asked and we have not answered: then its silence means nothing."""
        return self.answer_join is not None or self.answer_sync is not None


class Group:
    """The state of one group."""

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
        """Member ids by the instance id that a client keeps over its restarts."""
        self.pending: dict[str, Member] = {}
        """Who was told its id and has not come back with it yet."""
        self.unsynced: set[str] = set()
        """Members of this generation that haven't asked for their assignment yet."""
        self.newcomers = False
        """Whether somebody joined since the initial delay was last prolonged."""
        self.offsets: dict[Key, Commit] = {}
        self.writes = 0
        """How many writes of it to the offsets topic are under way."""
        self.is_stored = False
        """Whether the offsets topic says something of its members."""

    @property
    def all_joined(self) -> bool:
        """Whether the rebalance waits for nobody."""
        return not self.pending and all(m.answer_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member takes."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member(self, who: Identity) -> Member:
        """Give a member.

        Raises:
            BrokerError: FENCED_INSTANCE_ID if another one took its place, UNKNOWN_MEMBER_ID if there is none.
        """
        if who.instance_id is not None and self.static.get(who.instance_id, who.member_id) != who.member_id:
            raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
        if who.member_id not in self.members:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[who.member_id]

    def member_of_generation(self, who: Identity) -> Member:
        """Give a member that knows the present generation.

        Raises:
            BrokerError: as `member`, and ILLEGAL_GENERATION.
        """
        member = self.member(who)
        if who.generation != self.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def add(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        if not self.members:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Take a member out; somebody else leads if it did."""
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
        """See that a member leads that has joined; tell whether there is one."""
        joined = [m.member_id for m in self.members.values() if m.answer_join is not None]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    def replace(self, old: Member, new: Member) -> None:
        """Put a static member that came back in the place of its former self."""
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
        """Give what a member of the present generation is told; if it leads, who the members are."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader_id:
            members = tuple(
                JoinedMember(other.member_id, other.instance_id, other.protocols[self.protocol])
                for other in self.members.values()
            )
        return Joined(ErrorCode.NONE, member.member_id, self.generation, self.protocol, self.leader_id, members)

    def accepts(self, protocol_type: str, protocols: Mapping[str, bytes], *, member_id: str = "") -> bool:
        """Tell whether somebody speaks what all others speak: a newcomer, or the member of this id, come again."""
        if not protocols or not protocol_type or (self.members and protocol_type != self.protocol_type):
            return False
        others = [set(member.protocols) for member in self.members.values() if member.member_id != member_id]
        return not others or bool(set.intersection(*others, set(protocols)))

    def choose_protocol(self) -> str:
        """Choose what most members name first among those that all speak; empty if there is none."""
        names = [set(member.protocols) for member in self.members.values()]
        common = set.intersection(*names) if names else set()
        if not common:
            return ""
        votes: dict[str, int] = {}
        for member in self.members.values():
            first = next(name for name in member.protocols if name in common)
            votes[first] = votes.get(first, 0) + 1
        return max(votes, key=lambda name: votes[name])
