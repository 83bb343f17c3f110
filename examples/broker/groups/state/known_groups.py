"""The groups that this node coordinates: found, created, loaded and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.groups.state.group import Group, GroupState
from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from examples.broker.groups.state.store import GroupStore
    from examples.broker.replication.partition import Key


@attrs.define(eq=False)
class KnownGroups:
    _store: GroupStore
    _groups: dict[str, Group] = attrs.field(init=False, factory=dict)
    _loaded: set[Key] = attrs.field(init=False, factory=set)
    """Partitions of the internal topic whose groups are loaded."""

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def check(self, group_id: str) -> None:
        """Reject a group of another node.

        Raises:
            BrokerError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or INVALID_GROUP_ID.
        """
        key = self._store.key_of(group_id)
        if not self._store.is_here(key):
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        if key not in self._loaded:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)

    def add_loaded(self, key: Key, groups: Mapping[str, Group]) -> None:
        self._groups.update(groups)
        self._loaded.add(key)

    def release(self, key: Key) -> list[Group]:
        """Remove the groups of a partition, and return them."""

        def is_there(group: Group) -> bool:
            try:
                return self._store.key_of(group.group_id) == key
            except BrokerError:
                return True  # the topic is deleted, with all partitions

        self._loaded.discard(key)
        gone = [group for group in self._groups.values() if is_there(group)]
        for group in gone:
            del self._groups[group.group_id]
        return gone

    def find(self, group_id: str) -> Group | None:
        """Return a group or None. Raises as ``check``."""
        self.check(group_id)
        return self._groups.get(group_id)

    def existing(self, group_id: str) -> Group:
        """Return the group of a member's request. Raises as ``check``, and UNKNOWN_MEMBER_ID."""
        group = self.find(group_id)
        if group is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def make(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id)
        return group

    def remove_if_unused(self, group: Group) -> None:
        """Remove a group without members, offsets and writes."""
        if group.state is GroupState.EMPTY and not (group.members or group.pending or group.offsets or group.writes):
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
            if group.is_stored:
                self._store.delete(group, [])
