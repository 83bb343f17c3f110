"""The APIs about committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from examples.broker.groups.state.values import Commit, Identity
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import offsets as m
from examples.broker.protocol.messages.common import OfTopic, PartitionCode, by_topic, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.groups.commits import Commits
    from examples.broker.replication.partition import Key
    from examples.broker.service.reply import Reply
_NOTHING = Commit(-1, "")


@attrs.define(eq=False)
class OffsetHandlers:
    commits: Commits

    def offset_commit(self, request: m.OffsetCommitRequest, _version: int, reply: Reply) -> None:
        """Answer when the replicas have the offsets."""
        offsets = {
            (name, part.index): Commit(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
            for name, part in parts_of(request.topics)
        }

        def answer(codes: Mapping[Key, ErrorCode]) -> None:
            reply(m.OffsetCommitResponse(topics=_by_topic(codes)))

        who = Identity(request.member_id, request.generation_id, request.group_instance_id)
        try:
            self.commits.commit(request.group_id, who, offsets, answer)
        except BrokerError as error:
            answer(dict.fromkeys(offsets, error.code))

    def offset_fetch(self, request: m.OffsetFetchRequest, _version: int, reply: Reply) -> None:
        """Return committed offsets, and -1 for partitions without one."""
        code = ErrorCode.NONE
        offsets: Mapping[Key, Commit] = {}
        try:
            offsets = self.commits.committed(request.group_id)
        except BrokerError as error:
            code = error.code
        parts = []
        for key in sorted(offsets) if request.topics is None else dict.fromkeys(parts_of(request.topics)):
            commit = offsets.get(key, _NOTHING)
            part = m.OffsetOfPartition(key[1], commit.offset, commit.leader_epoch, commit.metadata or "", code)
            parts.append((key[0], part))
        reply(m.OffsetFetchResponse(topics=by_topic(parts), error_code=code))

    def offset_delete(self, request: m.OffsetDeleteRequest, _version: int, reply: Reply) -> None:
        """Delete offsets of topics that no member reads."""

        def answer(codes: Mapping[Key, ErrorCode]) -> None:
            reply(m.OffsetDeleteResponse(topics=_by_topic(codes)))

        self.commits.delete_offsets(request.group_id, dict.fromkeys(parts_of(request.topics)), answer)


def _by_topic(codes: Mapping[Key, ErrorCode]) -> list[OfTopic[PartitionCode]]:
    return by_topic((name, PartitionCode(index, code)) for (name, index), code in codes.items())
