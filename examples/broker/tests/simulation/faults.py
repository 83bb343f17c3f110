"""The faults of a simulated cluster: kills, power cuts, pauses, disks, nodes that leave, and elections.

A power cut also cuts the ends of a node's logs. The broker promises nothing if every log with a record loses it. So
``Damage`` allows a cut only while another in-sync replica has its whole log.
"""

from __future__ import annotations

import os

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode


class Damage:
    """The logs that a power cut has shortened, as long as they count as in sync."""

    def __init__(self, keys):
        self._keys = keys
        self._damaged = set()

    def allows_cut(self, node, nodes):
        """Whether every partition keeps an in-sync replica with its whole log."""
        self.forget(nodes)
        return all(self._allows_cut(key, node.number, _state(key, nodes)) for key in self._keys)

    def _allows_cut(self, key, number, state):
        if state is None:
            return False
        if number not in {*state.isr, *state.gone}:
            return True
        return any(other != number and (key, other) not in self._damaged for other in state.isr)

    def cut(self, node, random):
        """Cut the last segment of each log."""
        for topic, index in self._keys:
            segments = sorted((node.folder / f"{topic}-{index}").glob("*.log"))
            if segments:
                os.truncate(segments[-1], int(segments[-1].stat().st_size * random.choice([1, 0.9, 0.5, 0])))
            self._damaged.add(((topic, index), node.number))

    def forget(self, nodes):
        """Forget the replicas that have left the in-sync replicas. They return with the leader's records."""
        if self._damaged:
            states = {key: _state(key, nodes) for key in self._keys}
            self._damaged = {
                (key, number)
                for key, number in self._damaged
                if (state := states[key]) is None or number in {*state.isr, *state.gone}
            }


def _state(key, nodes):
    """Return a partition's state in the tree, or None if it is unknown."""
    for node in nodes:
        if node.alive:
            try:
                found = node.tree.get(layout.state_path(key))
            except NoNode:
                return None
            return layout.state_of(found.data, found.version)
    return None


class Faults:
    """Strikes nodes at random.

    Args:
        nodes: all of them.
        keys: the partitions.
        random: the source of all choices.
        note: writes a line into the history.
    """

    def __init__(self, nodes, keys, random, note):
        self.count = 0
        self._nodes = nodes
        self._keys = keys
        self._damage = Damage(keys)
        self._random = random
        self._note = note
        self._leaving = set()
        kinds = {
            self._kill: 6,
            self._kill_all: 3,
            self._pause: 4,
            self._fail_disk: 2,
            self._ask_to_leave: 2,
            self._elect: 2,
        }
        self._kinds = {kind: weight * random.choice([0, 1, 1, 3]) for kind, weight in kinds.items()}
        self._kinds |= dict.fromkeys((self._start, self._resume), random.choice([8, 20]))

    def strike(self):
        """Cause one fault, or end one. Each seed has other probabilities."""
        (kind,) = self._random.choices(list(self._kinds), self._kinds.values())
        kind()

    def look(self):
        """Note which damaged logs count no more. Called often, because a replica may leave and return meanwhile."""
        self._damage.forget(self._nodes)

    def _choose(self, condition):
        found = [node for node in self._nodes if condition(node)]
        return self._random.choice(found) if found else None

    def _kill(self):
        node = self._choose(lambda node: node.alive)
        if node is not None:
            self.count += 1
            self._kill_one(node)

    def _kill_all(self):
        self.count += 1
        for node in self._nodes:
            if node.alive:
                self._kill_one(node)

    def _kill_one(self, node):
        has_cut = self._random.random() < 0.5 and self._damage.allows_cut(node, self._nodes)
        self._note(f"node {node.number}: {'power cut' if has_cut else 'killed'}")
        node.kill()
        if has_cut:
            self._damage.cut(node, self._random)

    def _start(self):
        node = self._choose(lambda node: not node.alive)
        if node is not None:
            self.start(node)

    def start(self, node):
        node.start()
        ends = ", ".join(f"{name} {end}" for name, (_, end) in sorted(node.replicas.folders.ends().items()))
        self._note(f"node {node.number}: started, its logs end at {ends or 'nothing'}")

    def _pause(self):
        node = self._choose(lambda node: node.is_running)
        if node is not None:
            self.count += 1
            self._note(f"node {node.number}: paused")
            node.paused = True

    def _resume(self):
        for node in self._nodes:
            if node.paused and self._random.random() < 0.6:
                self._note(f"node {node.number}: resumed")
                node.paused = False

    def _fail_disk(self):
        node = self._choose(lambda node: node.is_running)
        if node is not None:
            self.count += 1
            self._note(f"node {node.number}: its disk rejects writes")
            node.replicas.store.disk.failed(OSError("no space left on device"))

    def _ask_to_leave(self):
        node = self._choose(lambda node: node.is_running)
        if node is not None:
            self.count += 1
            self.stop_later(node)

    def stop_later(self, node):
        """Let a node hand its leaderships over. ``end`` stops it."""
        self._note(f"node {node.number}: about to stop")
        self._leaving.add((node, node.life))
        node.leave()

    def _elect(self):
        controller = self._choose(lambda node: node.is_controller)
        if controller is not None:
            self._note("a client asks for preferred leaders")
            controller.membership.ask_controller("elect", lambda duties: duties.elect(self._keys), lambda _: None)

    def end(self):
        """Resume and start all nodes. Returns those that are about to stop, to be killed and started again."""
        for node in self._nodes:
            node.paused = False
            if not node.alive:
                self.start(node)
        leaving, self._leaving = self._leaving, set()
        return [node for node, life in sorted(leaving, key=lambda each: each[0].number) if node.life == life]
