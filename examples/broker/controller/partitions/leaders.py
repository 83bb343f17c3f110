"""The leaders and in-sync replicas of partitions: the controller's writes to the tree, and the nodes that are notified.

    a new partition         the first leader is elected, and the partition's state created
    one that has had one    another leader is elected, and the state set, if its version is unchanged

The leader may also change the state (the in-sync replicas) at any time. If the version has changed, the election is
repeated with the new state, a few times. After that the partition waits for the next event. Called on the controller's
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.context import Wait
from examples.broker.controller.partitions import elections
from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, NoNode, Set
from examples.broker.replication.leadership import NO_LEADER, Leadership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from examples.broker.controller.context import Context, Replica
    from examples.broker.controller.partitions.elections import Elected
    from examples.broker.controller.partitions.requests import Requests
    from examples.broker.controller.tree.writer import Writer
    from examples.broker.coordination.store import Store
    from examples.broker.replication.partition import Key

    Strategy = Callable[[Key, Leadership], Elected | None]

_log = structlog.get_logger(__name__)
_TRIES = 5


class Leaders:
    def __init__(self, context: Context, store: Store, writer: Writer, requests: Requests) -> None:
        self._context = context
        self._store = store
        self._writer = writer
        self._requests = requests

    def elect(self, keys: Iterable[Key], strategy: Strategy | None = None) -> set[Key]:
        """Elect leaders, and return the partitions that have a new one. Raises as the writer.

        ``strategy`` is for partitions that have had a leader, by default ``elect_offline``.
        """
        keys = list(keys)
        new = [key for key in keys if key not in self._context.leaderships]
        others = [key for key in keys if key in self._context.leaderships]
        elected = self._create(new)
        for _ in range(_TRIES):
            others = self._elect_once(others, strategy or self.elect_offline, elected)
            if not others:
                break
        return elected

    # -- strategies

    def elect_offline(self, key: Key, now: Leadership) -> Elected | None:
        """Elect in place of a dead leader."""
        context = self._context
        unclean = context.may_elect_unclean(key[0])
        if now.leader != NO_LEADER or unclean:
            return elections.offline(context.replicas_of(key), now.isr, context.alive, unclean=unclean)
        if context.alive.isdisjoint(now.isr):
            context.awaited.pop(key, None)  # the wait begins when the first of them is back
            return None
        wait = context.awaited.setdefault(key, Wait())
        ends = {node: context.brokers[node].end_of(key) for node in context.alive}
        return elections.after_crash(context.replicas_of(key), now, ends, waits=not wait.is_over)

    def elect_unclean(self, key: Key, now: Leadership) -> Elected | None:
        """Elect in place of a dead leader any replica that is alive, because an administrator asked for it."""
        context = self._context
        return elections.offline(context.replicas_of(key), now.isr, context.alive, unclean=True)

    def elect_preferred(self, key: Key, now: Leadership) -> Elected | None:
        return self._elect_among(self._context.replicas_of(key)[:1], now)

    def elect_target(self, key: Key, now: Leadership) -> Elected | None:
        """Elect one of the targets of a reassignment."""
        return self._elect_among(self._context.reassignments[key], now)

    def _elect_among(self, targets: Sequence[int], now: Leadership) -> Elected | None:
        # After a crash of all in-sync replicas, ``elect_offline`` compares their logs.
        return None if now.leader == NO_LEADER else elections.among(targets, now.isr, self._context.alive)

    def elect_successor(self, key: Key, now: Leadership) -> Elected | None:
        """Elect in place of a node that is about to stop or whose disk rejects writes."""
        context = self._context
        return elections.offline(context.replicas_of(key), now.isr, context.alive)

    # -- elections

    def _create(self, keys: list[Key]) -> set[Key]:
        context = self._context
        wanted: dict[Key, Leadership] = {}
        for key in keys:
            elected = elections.first(context.replicas_of(key), context.alive)
            if elected is not None:
                wanted[key] = Leadership(elected[0], 0, elected[1])
        topics = sorted({topic for topic, _ in wanted})
        self._writer.write_each([[Create(f"{layout.topic_path(topic)}/partitions")] for topic in topics])
        results = self._writer.write_each(
            [
                [Create(layout.partition_path(key)), Create(layout.state_path(key), layout.write_state(leadership))]
                for key, leadership in wanted.items()
            ]
        )
        arrived = set()
        for (key, leadership), error in zip(wanted.items(), results, strict=True):
            if error is not None:
                # An earlier controller has created it, and died before it notified the nodes.
                _log.warning("partition was created before", key=key, reason=str(error))
                continue
            self._adopt(key, leadership)
            arrived.add(key)
        return arrived

    def _elect_once(self, keys: list[Key], strategy: Strategy, arrived: set[Key]) -> list[Key]:
        """Elect once, and return the partitions whose state was changed meanwhile."""
        wanted: dict[Key, Leadership] = {}
        for key in keys:
            now = self.refresh(key)
            if now is None:
                continue
            elected = strategy(key, now)
            if elected is None:
                _log.info("no replica may lead", key=key, isr=now.isr, alive=sorted(self._context.alive))
                continue
            wanted[key] = now.led_by(*elected)
        return self._write(wanted, arrived)

    def _write(self, wanted: dict[Key, Leadership], arrived: set[Key]) -> list[Key]:
        results = self._writer.write_each(
            [
                [Set(layout.state_path(key), layout.write_state(leadership), leadership.version)]
                for key, leadership in wanted.items()
            ]
        )
        again = []
        for (key, leadership), error in zip(wanted.items(), results, strict=True):
            if error is None:
                self._adopt(key, leadership.written())
                arrived.add(key)
            elif not isinstance(error, NoNode):
                again.append(key)
        return again

    def _adopt(self, key: Key, leadership: Leadership) -> None:
        self._context.awaited.pop(key, None)
        self._context.leaderships[key] = leadership
        self._requests.leader_and_isr(self._context.replicas_of(key), key)
        _log.info(
            "leader elected", key=key, leader=leadership.leader, epoch=leadership.leader_epoch, isr=leadership.isr
        )

    # -- in-sync replicas

    def refresh(self, key: Key) -> Leadership | None:
        try:
            node = self._store.get(layout.state_path(key))
            found = layout.state_of(node.data, node.version)
        except NoNode:
            return None
        except ValueError as error:
            _log.error("invalid state of a partition", key=key, reason=str(error))
            return None
        self._context.leaderships[key] = found
        return found

    def leave_isr(self, replicas: Iterable[Replica]) -> None:
        """Remove replicas from the in-sync replicas, but never the last one. Raises as the writer."""
        leaving: dict[Key, set[int]] = {}
        for key, node in replicas:
            leaving.setdefault(key, set()).add(node)
        keys = list(leaving)
        for _ in range(_TRIES):
            wanted: dict[Key, Leadership] = {}
            for key in keys:
                now = self.refresh(key)
                if now is None or now.leader == NO_LEADER or leaving[key].isdisjoint(now.isr):
                    continue
                staying = tuple(node for node in now.isr if node not in leaving[key])
                if now.leader in leaving[key]:
                    # No other replica could be elected. The in-sync replicas stay: they have the records.
                    wanted[key] = now.led_by(NO_LEADER, now.isr)
                elif staying:
                    wanted[key] = now.led_by(now.leader, staying)
            keys = self._write(wanted, set())
            if not keys:
                break
