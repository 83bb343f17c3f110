"""Committed offsets of groups: stored, returned and forgotten.

Each commit is answered when the replicas have it (see ``store``). Used on the broker's loop.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import attrs
import structlog

from examples.broker.groups.state.group import Group, GroupState, Member
from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from examples.broker.groups.sessions import Sessions
    from examples.broker.groups.settings import GroupSettings
    from examples.broker.groups.state.known_groups import KnownGroups
    from examples.broker.groups.state.store import GroupStore
    from examples.broker.groups.state.values import Commit, Identity
    from examples.broker.replication.partition import Key
    from examples.broker.replication.topic_manager import TopicManager

    Codes = Mapping[Key, ErrorCode]

_log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class Commits:
    """Offsets of groups."""

    _settings: GroupSettings
    _groups: KnownGroups
    """The groups that this node coordinates."""
    _store: GroupStore
    _sessions: Sessions
    """Renewed by a member's commit."""
    _topics: TopicManager
    """The topics that exist."""

    def commit(
        self, group_id: str, who: Identity, offsets: Mapping[Key, Commit], answer: Callable[[Codes], None]
    ) -> None:
        """Store offsets of a member, or (generation -1) of another client. Raises BrokerError if it must not commit."""
        group = self._groups.find(group_id)
        if group is None:
            if who.generation >= 0:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            group = self._groups.make(group_id)
        with group.lock:
            if who.generation >= 0 or group.members:
                member = group.member_of_generation(who)
                if group.state is GroupState.COMPLETING:
                    raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
                self._sessions.renew(group, member)
            codes = {key: self._rejection(key, commit) for key, commit in offsets.items()}
            accepted = {
                key: attrs.evolve(commit, topic_id=self._topics.topics[key[0]].topic_id)
                for key, commit in offsets.items()
                if codes[key] is ErrorCode.NONE
            }

            def stored(code: ErrorCode) -> None:
                answer(codes | dict.fromkeys(accepted, code))
                self._groups.remove_if_unused(group)

            self._store.commit(group, accepted, stored)

    def _rejection(self, key: Key, commit: Commit) -> ErrorCode:
        topic = self._topics.topics.get(key[0])
        if topic is None or not 0 <= key[1] < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len((commit.metadata or "").encode()) > self._settings.max_metadata_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def committed(self, group_id: str) -> Mapping[Key, Commit]:
        """Return a group's offsets, but none of an earlier topic of that name. Raises as ``KnownGroups.check``."""
        group = self._groups.find(group_id)
        if group is None:
            return {}
        return {key: commit for key, commit in group.offsets.items() if not self._is_of_another(key, commit)}

    def _is_of_another(self, key: Key, commit: Commit) -> bool:
        topic = self._topics.topics.get(key[0])
        return topic is not None and not _may_be(commit, topic.topic_id)

    # -- deleted topics

    def delete_offsets_of_topic(self, name: str) -> None:
        """Delete all offsets of a topic that is deleted.

        A new topic of that name begins at 0, and so do its readers. A node that coordinates a group later uses
        ``delete_offsets_of_missing_topics``.
        """
        for group in list(self._groups):
            self._delete_offsets(group, [key for key in group.offsets if key[0] == name])

    def delete_offsets_of_missing_topics(self, groups: Iterable[Group], topic_ids: Mapping[str, str]) -> None:
        """Delete the offsets of topics that were deleted before these groups were loaded.

        ``topic_ids`` is from the tree and may be old. A topic that this node knows by the commit's id exists.
        """
        for group in list(groups):
            gone = []
            for key, commit in group.offsets.items():
                here = self._topics.topics.get(key[0])
                is_known = here is not None and here.topic_id == commit.topic_id
                if not is_known and (key[0] not in topic_ids or not _may_be(commit, topic_ids[key[0]])):
                    gone.append(key)
            self._delete_offsets(group, gone)

    def _delete_offsets(self, group: Group, gone: list[Key]) -> None:
        if not gone:
            return
        with group.lock:
            _log.info("offsets of deleted topics removed", group=group.group_id, partitions=len(gone))
            self._store.delete(group, gone, lambda _: self._groups.remove_if_unused(group))

    # -- deletion

    def delete_group(self, group_id: str, answer: Callable[[ErrorCode], None]) -> None:
        """Delete a group and its offsets. Raises BrokerError if it does not exist, or has members."""
        group = self._deletable(group_id)
        with group.lock:
            if group.members or group.pending:
                raise BrokerError(ErrorCode.NON_EMPTY_GROUP)

            def stored(code: ErrorCode) -> None:
                self._groups.remove_if_unused(group)
                answer(code)

            self._store.delete(group, list(group.offsets), stored)

    def delete_offsets(self, group_id: str, keys: Collection[Key], answer: Callable[[Codes], None]) -> None:
        """Delete offsets of topics that no member reads. Raises BrokerError if the members are not consumers."""
        group = self._deletable(group_id)
        with group.lock:
            if group.members and group.protocol_type != "consumer":
                raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
            codes = {key: self._deletion_rejection(group, key) for key in keys}
            allowed = [key for key in keys if codes[key] is ErrorCode.NONE]

            def stored(code: ErrorCode) -> None:
                answer(codes | dict.fromkeys(allowed, code))
                self._groups.remove_if_unused(group)

            self._store.delete(group, [key for key in allowed if key in group.offsets], stored)

    def _deletion_rejection(self, group: Group, key: Key) -> ErrorCode:
        topic = self._topics.topics.get(key[0])
        if topic is None or not 0 <= key[1] < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if any(_may_read(member, key[0]) for member in group.members.values()):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE

    def _deletable(self, group_id: str) -> Group:
        group = self._groups.find(group_id)
        if group is None:
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group


def _may_be(commit: Commit, topic_id: str) -> bool:
    """Whether a commit may belong to the topic with this id. Without an id on either side, it may."""
    return not topic_id or commit.topic_id in ("", topic_id)


def _may_read(member: Member, topic: str) -> bool:
    """Whether a member subscribes to a topic. True if its metadata cannot be parsed."""
    found = [_subscriptions(metadata) for metadata in member.protocols.values()]
    return any(topics is None or topic in topics for topics in found)


def _subscriptions(metadata: bytes) -> list[str] | None:
    """Parse the topics of a consumer's metadata: a version, then the names. None if that is not possible."""
    names = []
    try:
        _, count = struct.unpack_from(">hi", metadata)
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            name = metadata[position + 2 : position + 2 + length]
            if len(name) != length:
                return None
            names.append(name.decode())
            position += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return names
