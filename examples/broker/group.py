"""A consumer group: its members, its state, and what follows from them alone.

                 first member joins             all joined, or time is up            the leader's assignment
    EMPTY ------------------------> PREPARING --------------------------> COMPLETING
    ------------------------> STABLE
      ^                              ^    ^  |                                 |
      | +------- nobody left ---------------+--+--------- somebody joins, leaves, or is lost
      ---------------------+

The moves themselves, with their waiting and answering, are the coordinator's (`coordinator`); nothing here
parks or answers. `lock` is the group's: the operations that wait for the group are checked under it, a
commit's `DelayedProduce` included.
"""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING

import attrs

from examples.broker.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.broker.delayed_heartbeat import DelayedHeartbeat

__all__ = ["Group", "GroupState", "Member"]


class GroupState(enum.Enum):
    """The states, by the names that clients are shown."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@attrs.define(eq=False, kw_only=True)
class Member:
    """One member, and the answers that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    answer_join: Callable[..., None] | None = None
    answer_sync: Callable[..., None] | None = None
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
        self.offsets: dict[tuple[str, int], tuple[int, str | None]] = {}

    @property
    def all_joined(self) -> bool:
        """Whether the rebalance waits for nobody."""
        return not self.pending and all(m.answer_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member takes."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member(self, member_id: str, instance_id: str | None = None) -> Member:
        """Give a member.

        Raises:
            BrokerError: if there is none of this id, or another one took its place.
        """
        if instance_id is not None and self.static.get(instance_id, member_id) != member_id:
            raise BrokerError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

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
        if self.leader_id == member_id:
            joined = (m.member_id for m in self.members.values() if m.answer_join is not None)
            self.leader_id = next(joined, next(iter(self.members), ""))
        return member

    def accepts(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Tell whether a newcomer speaks what all members speak."""
        if not protocols or not protocol_type:
            return False
        return not self.members or (
            protocol_type == self.protocol_type and bool(self._common_protocols() & set(protocols))
        )

    def _common_protocols(self) -> set[str]:
        names = [set(member.protocols) for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def choose_protocol(self) -> str:
        """Choose what most members name first among those that all speak."""
        common = self._common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            first = next(name for name in member.protocols if name in common)
            votes[first] = votes.get(first, 0) + 1
        return max(votes, key=lambda name: votes[name])
