"""Groups and their offsets as records of an internal topic, which survive the coordinator.

| key | value |
|---|---|
| ``["group"]`` | the stable generation: members, assignments, protocol, as ``_state`` returns them |
| ``["group", "topic", partition]`` | ``[offset, "metadata", leader epoch, "topic id"]`` |

Both are JSON. A later record replaces all earlier ones of its key, and one without a value deletes the key. A write is
a produce with ``acks=all``, and takes effect when that completes. So groups and offsets survive whenever records
survive.

A generation is written when its leader has assigned, before the members are answered. A new coordinator therefore has
the generation that its members know. They continue with their next heartbeat: no member joins again, and no record is
read twice.

A group's records are in one partition, by a hash of its name. The leader of that partition coordinates the group. When
the leadership moves, the next leader reads the partition before it answers.

A partition is compacted by its own records, see ``compaction``. Used on the broker's loop.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

import attrs

from examples.broker.groups.state.group import Group, GroupState, Member
from examples.broker.groups.state.live_records import LiveRecords, Rewriting
from examples.broker.groups.state.values import Commit
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.records import RECORDS_PER_STEP, build, parse, records_of
from examples.broker.replication.partition import ACKS_ALL
from examples.broker.storage.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from examples.broker.groups.state.live_records import Pair
    from examples.broker.protocol.steps import Steps
    from examples.broker.replication.partition import Key
    from examples.broker.replication.replica_manager import ReplicaManager
    from examples.broker.replication.topic_manager import TopicManager

_READ_BYTES = 1024 * 1024
_CHUNK_BYTES = 32 * 1024
_KEPT = attrs.filters.exclude("answer_join", "answer_sync", "heartbeat")
"""A member, as it is stored."""
_FOR_GROUPS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class GroupStore:
    """Stores and loads groups and their offsets."""

    def __init__(self, replicas: ReplicaManager, topics: TopicManager, *, write_timeout_ms: int) -> None:
        self._replicas = replicas
        self._topics = topics
        self._write_timeout_ms = write_timeout_ms
        self.make_topic: Callable[[], object] = lambda: None
        """Creates the internal topic, which exists some time later."""
        self.live: dict[Key, LiveRecords] = {}
        """The records of the partitions that this node leads and has loaded."""

    def key_of(self, group_id: str) -> Key:
        """Return the partition of the internal topic that has a group's records.

        Raises:
            BrokerError: COORDINATOR_NOT_AVAILABLE if the topic is not known here.
        """
        topic = self._topics.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the offsets topic is not known yet")
        return (OFFSETS_TOPIC, zlib.crc32(group_id.encode()) % topic.partitions)

    def is_here(self, key: Key) -> bool:
        """Whether this node leads a partition of the internal topic."""
        partition = self._replicas.partitions.get(key)
        return partition is not None and partition.is_leader

    def ensure_topic(self) -> None:
        """Create the internal topic before its first use, so that its replicas are ready by then."""
        if OFFSETS_TOPIC not in self._topics.topics:
            self.make_topic()

    def load(self, key: Key) -> Steps[dict[str, Group]]:
        """Read the groups of one partition, one batch per step."""
        live = LiveRecords()
        log = self._replicas.partitions[key].log
        offset = log.start_offset
        while offset < log.next_offset:
            data = log.read(offset, log.next_offset, _READ_BYTES)
            position = 0
            while position < len(data):
                yield
                batch = parse(data, position)
                live.note((record.key or b"", record.value) for record in records_of(data, batch))
                offset = batch.next_offset
                position += batch.size
        self.live[key] = live
        groups: dict[str, Group] = {}
        for number, (name, value) in enumerate(list(live)):
            if number % RECORDS_PER_STEP == 0:
                yield
            group_id, *rest = json.loads(name)
            group = groups.setdefault(group_id, Group(group_id))
            if rest:
                topic, index = rest
                group.offsets[topic, index] = Commit(*json.loads(value))
            else:
                _restore(group, json.loads(value))
        return groups

    def save(self, group: Group, respond: Callable[[ErrorCode], None] = lambda _: None) -> None:
        """Store the group's generation. Responds when the replicas have it, with the group's lock held."""
        group.is_stored = True
        self._write(group, [(_encoded([group.group_id]), _encoded(_state(group)))], respond)

    def commit(self, group: Group, offsets: Mapping[Key, Commit], respond: Callable[[ErrorCode], None]) -> None:
        """Store offsets. Responds when the replicas have them, with the group's lock held."""

        def stored(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                group.offsets.update(offsets)
            respond(code)

        pairs: list[Pair] = [
            (
                _encoded([group.group_id, *key]),
                _encoded([commit.offset, commit.metadata, commit.leader_epoch, commit.topic_id]),
            )
            for key, commit in offsets.items()
        ]
        self._write(group, pairs, stored)

    def delete(self, group: Group, offsets: list[Key], respond: Callable[[ErrorCode], None] = lambda _: None) -> None:
        """Delete offsets, and the group itself if nothing else remains. Responds as ``commit``."""

        def stored(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                for key in offsets:
                    group.offsets.pop(key, None)
            respond(code)

        pairs: list[Pair] = [(_encoded([group.group_id, *key]), None) for key in offsets]
        if group.is_stored and group.state is GroupState.EMPTY and not group.offsets.keys() - set(offsets):
            group.is_stored = False
            pairs.append((_encoded([group.group_id]), None))
        self._write(group, pairs, stored)

    def _write(self, group: Group, pairs: list[Pair], respond: Callable[[ErrorCode], None]) -> None:
        if not pairs:
            respond(ErrorCode.NONE)
            return
        try:
            self.ensure_topic()
            partition = self.key_of(group.group_id)
        except BrokerError:
            respond(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        group.writes += 1

        def appended() -> None:
            if partition in self.live:  # otherwise its groups are being loaded
                self.live[partition].note(pairs)

        def stored(results: Mapping[Key, tuple[ErrorCode, int]]) -> None:
            group.writes -= 1
            code, _ = results[partition]
            respond(_FOR_GROUPS.get(code, code))

        self._replicas.append(
            {partition: _batch(pairs)},
            acks=ACKS_ALL,
            timeout_ms=self._write_timeout_ms,
            respond=stored,
            lock=group.lock,
            on_append=appended,
        )

    # -- compaction

    def rewrite(self, key: Key) -> Steps[None]:
        """Append a copy of the live records of a partition, one batch per step. Raises BrokerError if rejected."""
        partition, live = self._replicas.partitions[key], self.live[key]
        rewriting = live.rewriting = Rewriting(partition.log.next_offset)
        try:
            for chunk in live.chunks(rewriting, _CHUNK_BYTES):
                partition.append(_batch(chunk), acks=ACKS_ALL)
                live.note(chunk)
                self._replicas.changed(partition)
                yield
                if self.live.get(key) is not live:
                    return  # another node leads it now
            rewriting.end = partition.log.next_offset
        finally:
            if rewriting.end is None:
                live.rewriting = None

    def forget_rewritten(self, key: Key) -> bool:
        """Delete the records before a complete copy that all in-sync replicas have. Returns whether that was done.

        Nothing is deleted before the copy is on this node's disk, as far as its policy forces anything to the disk.
        """
        partition, live = self._replicas.partitions[key], self.live[key]
        rewriting = live.rewriting
        if rewriting is None or rewriting.end is None:
            return False
        if min(partition.high_watermark, partition.log.secured_offset) < rewriting.end:
            return False
        partition.delete_before(rewriting.start)
        self._replicas.changed(partition)
        live.rewriting = None
        return True


def _batch(pairs: Sequence[Pair]) -> bytes:
    return build(pairs, timestamps=[int(time.time() * 1_000)] * len(pairs))


def _encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain(_: object, __: object, value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _state(group: Group) -> dict[str, Any]:
    return {
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader_id,
        "members": [attrs.asdict(member, filter=_KEPT, value_serializer=_plain) for member in group.members.values()],
    }


def _restore(group: Group, state: dict[str, Any]) -> None:
    for saved in state["members"]:
        protocols = {name: base64.b64decode(text) for name, text in saved.pop("protocols").items()}
        assignment = base64.b64decode(saved.pop("assignment"))
        group.add(Member(**saved, protocols=protocols, assignment=assignment))
    group.generation = state["generation"]
    group.protocol_type = state["protocol_type"]
    group.protocol = state["protocol"]
    group.leader_id = state["leader"]
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.is_stored = True
