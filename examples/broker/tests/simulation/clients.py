"""The clients of a simulated cluster, and the promises that they have got.

Two producers write with acks=all. The plain one sends a batch and forgets it. The idempotent one repeats a batch until
it is acknowledged. A further one may have several batches in flight (``pipelined``). A consumer reads committed
records. Each acknowledged record and each read record is noted. At the end the logs must have it at the same offset.
The records of an idempotent producer must be there once and in order.
"""

from __future__ import annotations

import functools

import attrs

from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.records import batches, build, records_of

_PRODUCER_ID = 7
_MOST_BYTES = 1 << 20


class Broken(AssertionError):
    """A promise was broken."""


def contents(partition, limit=None):
    """Return a replica's records below ``limit`` by offset."""
    log, found = partition.log, {}
    limit = log.next_offset if limit is None else min(limit, log.next_offset)
    offset = log.start_offset
    while offset < limit:
        data = log.read(offset, limit, _MOST_BYTES)
        for batch in batches(data):
            found.update((record.offset, record.value) for record in records_of(data, batch))
            offset = batch.next_offset
    return {offset: value for offset, value in found.items() if offset < limit}


@attrs.define
class Idempotent:
    """The state of the idempotent producer in one partition."""

    sequence: int = 0
    batch: list | None = None
    """The batch that is not acknowledged yet."""
    asked: tuple | None = None
    """The node, and its life, that has the batch and has not answered."""


class Clients:
    """Producers and a consumer.

    Args:
        keys: the partitions.
        random: the source of all choices.
        note: writes a line into the history.
    """

    def __init__(self, keys, random, note):
        self.keys = keys
        self.promised = {key: {} for key in keys}
        """Acknowledged records, and records that were read."""
        self.broken = []
        """Offsets with two values. A purgatory contains what its operations raise, so ``check`` raises instead."""
        self.acknowledged = self.read = 0
        self._idempotent = {key: Idempotent() for key in keys}
        self._count = 0
        self._random = random
        self._note = note

    def batch(self, kind):
        self._count += 1
        return [(None, f"{kind}-{self._count}-{number}".encode()) for number in range(self._random.randint(1, 3))]

    def _promise(self, key, offset, value, what):
        was = self.promised[key].setdefault(offset, value)
        if was != value:
            self.broken.append(f"{_name(key)}: offset {offset} was {was!r}, and {value!r} is {what} there")

    def acknowledge(self, key, first, batch):
        self._note(f"{_name(key)}: {first} to {first + len(batch) - 1} acknowledged ({batch[0][1].decode()})")
        self.acknowledged += len(batch)
        for offset, (_, value) in enumerate(batch, first):
            self._promise(key, offset, value, "acknowledged")

    # -- what the clients do

    def produce(self, node):
        """Send a batch to a partition that the node leads, if there is one."""
        led = [key for key in self.keys if node.leads(key)]
        if not led:
            return
        key = self._random.choice(led)
        if self._random.random() < 0.5:
            self._produce_plain(node, key)
        else:
            self._produce_idempotent(node, key)
        node.run_actions()

    def _produce_plain(self, node, key):
        batch = self.batch("plain")

        def respond(results):
            code, first = results[key]
            if code is ErrorCode.NONE:
                self.acknowledge(key, first, batch)

        self.append(node, key, batch, respond)

    def _produce_idempotent(self, node, key):
        state = self._idempotent[key]
        if state.asked is not None and state.asked[0].alive and state.asked[0].life == state.asked[1]:
            return
        state.batch = batch = state.batch or self.batch("once")
        state.asked = asked = (node, node.life)
        sequence = state.sequence

        def respond(results):
            code, first = results[key]
            if state.batch is not batch:
                return
            if state.asked == asked:
                state.asked = None
            if code is ErrorCode.NONE:
                self.acknowledge(key, first, batch)
                state.sequence, state.batch = sequence + len(batch), None

        self.append(node, key, batch, respond, producer=(_PRODUCER_ID, 0, sequence))

    def append(self, node, key, batch, respond, **producer):
        data = build(batch, timestamps=[1] * len(batch), **producer)
        timeout_ms = self._random.choice([100, 3_000, 60_000])
        node.replicas.append({key: data}, acks=-1, timeout_ms=timeout_ms, respond=respond)

    def consume(self, node):
        """Read all committed records of the partitions that the node leads."""
        for key in filter(node.leads, self.keys):
            partition = node.partition(key)
            for offset, value in contents(partition, partition.high_watermark).items():
                self._promise(key, offset, value, "read")
                self.read += 1

    # -- what they find at the end

    def check(self, nodes):
        """Compare the logs of a cluster that has recovered with the promises. Raises Broken."""
        self.check_offsets()
        for key in self.keys:
            self._check_partition(key, nodes)

    def check_offsets(self):
        """Raise Broken if an offset had two values."""
        if self.broken:
            raise Broken(self.broken[0])

    def _check_partition(self, key, nodes):
        broken = functools.partial(_broken, key)
        leaders = [node for node in nodes if node.leads(key)]
        if len(leaders) != 1:
            raise broken(f"the leaders are {[node.number for node in leaders]}")
        leader = leaders[0].partition(key)
        logs = {node.number: contents(node.partition(key)) for node in nodes if node.number in leader.replicas}
        log = logs[leaders[0].number]
        lost = {offset: value for offset, value in self.promised[key].items() if log.get(offset) != value}
        if lost:
            raise broken(f"lost or changed: {lost}; node {leaders[0].number} leads with {len(log)} records")
        for kind in (b"once", b"flow"):
            numbers = [_numbers(value) for _, value in sorted(log.items()) if value.startswith(kind)]
            if sorted(set(numbers)) != numbers:
                raise broken(f"records of an idempotent producer are there twice or out of order: {numbers}")
        if leader.isr != set(leader.replicas) or leader.high_watermark != leader.log.next_offset:
            raise broken(f"in sync are {leader.isr} of {leader.replicas}, committed is {leader.high_watermark}")
        if any(other != log for other in logs.values()):
            raise broken("the logs of the replicas differ")


def _numbers(value):
    return tuple(int(number) for number in value.split(b"-")[1:])


def _name(key):
    return f"{key[0]}-{key[1]}"


def _broken(key, text):
    return Broken(f"{_name(key)}: {text}")
