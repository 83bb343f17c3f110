"""
Clients and replicas.

A few threads are enough for many clients, because no thread waits. The producers' thread draws arrivals as they would
come from many independent clients. The consumers' thread sends a consumer's next long poll when its last one was
answered.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.quickstart.operations import DelayedFetch, Request
    from examples.quickstart.service import Service

__all__ = ["Load", "Settings"]

COPY_EVERY_S = 0.004  # how often a healthy follower asks for more
STALL_EVERY_S = 2.0  # how often, on average, a follower falls behind ...
STALL_S = (0.2, 0.9)  # ... and for how long


@attrs.frozen
class Settings:
    """How much of everything."""

    seconds: float = attrs.field(default=15.0, validator=attrs.validators.gt(0))
    rate: int = attrs.field(default=1500, validator=attrs.validators.gt(0))  # appends a second
    consumers: int = attrs.field(default=300, validator=attrs.validators.ge(0))
    partitions: int = attrs.field(default=8, validator=attrs.validators.gt(0))
    followers: int = attrs.field(default=2, validator=attrs.validators.gt(0))
    append_timeout_ms: int = 400
    poll_timeout_ms: int = 500
    seed: int = 1


class Load:
    """Drives a service until it is stopped, and keeps every request that it made."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.settings = settings
        self.requests: list[Request] = []  # list.append is atomic, in the free-threaded build as well
        self._answers: queue.SimpleQueue[DelayedFetch | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        bodies: list[Callable[[], None]] = [self._produce, self._consume]
        bodies += [lambda number=number: self._follow(number) for number in range(settings.followers)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=body, name=f"load-{i}") for i, body in enumerate(bodies)]

    def start(self) -> None:
        """Let clients and followers loose."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more requests, and copy no more records."""
        self._stopped.set()
        self._answers.put(None)
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        """Appends at random moments, as independent clients send them. A few partitions get most of them."""
        draw = random.Random(self.settings.seed)
        partitions = self.service.partitions
        weights = [1 / (place + 1) ** 2 for place in range(len(partitions))]
        due = time.perf_counter()
        while not self._stopped.is_set():
            due += draw.expovariate(self.settings.rate)
            if (early := due - time.perf_counter()) > 0:
                self._stopped.wait(early)
            (partition,) = draw.choices(partitions, weights)
            self.requests.append(self.service.append(partition, b"record", self.settings.append_timeout_ms))

    def _consume(self) -> None:
        """Each consumer reads one partition from its end on, poll after poll."""
        draw = random.Random(self.settings.seed + 1)
        partitions = self.service.partitions

        def poll(place: int, offset: int, min_records: int) -> None:
            partition = partitions[place]
            timeout_ms = self.settings.poll_timeout_ms
            self.requests.append(self.service.poll(partition, offset, min_records, timeout_ms, self._answers.put))

        for consumer in range(self.settings.consumers):
            poll(consumer % len(partitions), 0, draw.randint(1, 40))
        while (answered := self._answers.get()) is not None:
            place, read = answered.partition.number, len(answered.records)
            poll(place, answered.offset + read, answered.min_records)

    def _follow(self, follower: int) -> None:
        """A follower copies all partitions over and over, and now and then falls behind."""
        draw = random.Random(self.settings.seed + 2 + follower)
        stall_at = time.perf_counter() + draw.expovariate(1 / STALL_EVERY_S)
        while not self._stopped.wait(COPY_EVERY_S):
            if time.perf_counter() > stall_at:
                self._stopped.wait(draw.uniform(*STALL_S))
                stall_at = time.perf_counter() + draw.expovariate(1 / STALL_EVERY_S)
            for partition in self.service.partitions:
                self.service.replicate(partition, follower)
