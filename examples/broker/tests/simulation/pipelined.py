"""An idempotent producer with several batches in flight, which repeats and numbers them as librdkafka does.

It sends up to five batches without waiting for answers, and sends those again that failed, in order. If a batch is "out
of order", one before it failed. Then it waits for all answers, begins a new epoch, and numbers all batches in flight
again. If one of them is in the log already, it is there twice. So the broker must not say so without need.
"""

from __future__ import annotations

from collections import deque

import attrs

from examples.broker.protocol.errors import ErrorCode

_PRODUCER_ID = 8
_IN_FLIGHT = 5
_NEW_BATCH = 0.7


@attrs.define(eq=False)
class Flight:
    """A batch that is not acknowledged yet."""

    records: list
    sequence: int
    asked: tuple | None = None
    """The connection on which it was sent and that has not answered: the node and its life."""


class Pipelined:
    """A producer of one partition.

    Args:
        key: the partition.
        clients: make batches, send them, and note what is acknowledged.
        random: the source of all choices.
        note: writes a line into the history.
    """

    def __init__(self, key, clients, random, note):
        self.key = key
        self._clients = clients
        self._random = random
        self._note = note
        self._epoch = self._next_sequence = 0
        self._flights = []
        self._wire = deque()
        """The flights that were sent and have not arrived."""
        self._connection = None
        self._leader_epoch = -1
        self._drains = False
        """Whether all answers are waited for, to begin a new epoch."""

    def produce(self, node):
        """Let the next batch arrive at the leader, if that is this node. A client ignores leaders of older epochs."""
        if self._connection is not None and not self._is_open():
            self._disconnect()
        leader_epoch = node.partition(self.key).leader_epoch if node.leads(self.key) else -1
        is_known = self._connection is None and leader_epoch == self._leader_epoch >= 0
        if leader_epoch > self._leader_epoch or is_known:
            self._disconnect()
            self._connection = (node, node.life)
            self._leader_epoch = leader_epoch
        if self._connection is None or self._connection[0] is not node:
            return
        if not self._wire:
            self._send()
        if self._wire:
            self._arrive(node, self._wire.popleft())
            node.run_actions()

    def _is_open(self):
        node, life = self._connection
        return node.alive and node.life == life

    def _disconnect(self):
        for flight in self._flights:
            flight.asked = None
        self._wire.clear()
        self._connection = None

    def _send(self):
        if self._drains:
            if any(flight.asked for flight in self._flights):
                return
            self._begin_epoch()
        while len(self._flights) < _IN_FLIGHT and self._random.random() < _NEW_BATCH:
            self._flights.append(self._number(Flight(self._clients.batch("flow"), 0)))
        for flight in self._flights:
            if flight.asked is None:
                flight.asked = self._connection
                self._wire.append(flight)

    def _number(self, flight):
        flight.sequence = self._next_sequence
        self._next_sequence += len(flight.records)
        return flight

    def _begin_epoch(self):
        self._drains = False
        self._epoch += 1
        self._next_sequence = 0
        for flight in self._flights:
            self._number(flight)
        self._note(f"{self.key}: the producer numbers {len(self._flights)} batches again")

    def _arrive(self, node, flight):
        connection = self._connection

        def respond(results):
            code, first = results[self.key]
            if flight not in self._flights or flight.asked is not connection:
                return
            flight.asked = None
            if code is ErrorCode.NONE:
                self._flights.remove(flight)
                self._clients.acknowledge(self.key, first, flight.records)
            elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._drains = True

        producer = (_PRODUCER_ID, self._epoch, flight.sequence)
        self._clients.append(node, self.key, flight.records, respond, producer=producer)
