"""A cluster of broker nodes in one thread, on a simulated clock, with faults. One seed gives one run.

    step      one node runs a callback, a job, an event of its controller, or a client's request
    arrival   one request or response arrives
    time      passes, and deadlines fall due
    fault     a node is killed, loses its power, is paused, or is asked to leave

After some thousand of these, all nodes run again until the cluster has recovered. Then the logs must have every record
that was acknowledged or read (``clients``).

The nodes consist of the broker's own parts (``node``). Replaced are the clock, event loop and threads (``loop``),
sockets (``network``), clients, and the limit of the wait after a crash of all in-sync replicas. With it, records may be
lost.
"""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import attrs

from examples.broker.controller import duties
from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create
from examples.broker.tests.simulation.clients import Broken, Clients
from examples.broker.tests.simulation.faults import Faults
from examples.broker.tests.simulation.history import History
from examples.broker.tests.simulation.loop import Clock
from examples.broker.tests.simulation.network import Network
from examples.broker.tests.simulation.node import SESSION_MS, Node
from examples.broker.tests.simulation.pipelined import Pipelined

_KEYS = [("t", 0), ("t", 1)]
_NEVER_MS = 10**9
_ROUNDS = 300
_LOST_ANSWERS = 0.05


@attrs.frozen
class Figures:
    """What happened in one run."""

    steps: int
    faults: int
    acknowledged: int
    read: int


class Simulation:
    """One run.

    Args:
        seed: decides everything.
        folder: an empty one, for the files of the nodes.
        pipelined: have a producer with several batches in flight, too.
    """

    def __init__(self, seed, folder, *, pipelined=False):
        self.random = random.Random(seed)
        self.clock = Clock()
        self.history = History(self.clock)
        count = self.random.choice([2, 3, 3, 3, 4])
        settings = {
            "segment_bytes": self.random.choice([150, 1_000, 100_000]),
            "rebalance_ms": self.random.choice([0, 500, 500]),
        }
        self.nodes = [Node(number, folder, count, self.clock, **settings) for number in range(1, count + 1)]
        self.network = Network({node.number: node for node in self.nodes})
        self.clients = Clients(_KEYS, self.random, self.history.note)
        self.faults = Faults(self.nodes, _KEYS, self.random, self.history.note)
        self._fault_rate = self.random.choice([0.005, 0.01, 0.02, 0.04])
        self._pauses_ms = self.random.choice([(1, 5, 20, 50, 200), (5, 50, 500)])
        self._steps = {
            Node.step_loop: 6,
            Node.work: 3,
            Node.look: 1,
            Node.control: 2,
            Node.keep_house: 1,
            self.clients.produce: self.random.choice([0.3, 1, 3]),
            self.clients.consume: 1,
        }
        if pipelined:
            for key in _KEYS:
                self._steps[Pipelined(key, self.clients, self.random, self.history.note).produce] = 3

    def run(self):
        """Run the simulation to its end. Raises Broken."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.history.recording())
            stack.enter_context(mock.patch("time.monotonic", self.clock.seconds))
            stack.enter_context(mock.patch.object(duties, "_RECOVERY_MS", _NEVER_MS))
            for patch in self.network.patches():
                stack.enter_context(patch)
            stack.callback(self._stop)
            self._begin()
            steps = self.random.randint(1_000, 6_000)
            for number in range(steps):
                self._step(number)
                self.clients.check_offsets()
            self._recover()
        return Figures(steps, self.faults.count, self.clients.acknowledged, self.clients.read)

    def _stop(self):
        for node in self.nodes:
            if node.alive:
                node.kill()

    # -- the beginning

    def _begin(self):
        for node in self.nodes:
            self.faults.start(node)
            self._settle()
        numbers = [node.number for node in self.nodes]
        size = min(3, len(numbers)) if self.random.random() < 0.8 else 2
        assignment = {index: tuple(self.random.sample(numbers, size)) for _, index in _KEYS}
        settings = {"min.insync.replicas": str(self.random.choice([1, 2]))}
        self.history.note(f"topic t: replicas {assignment}, {settings}")
        self.nodes[0].tree.multi(
            [
                Create(layout.config_path("t"), layout.write_config(settings)),
                Create(layout.topic_path("t"), layout.write_assignment(assignment, "id")),
            ]
        )
        self._settle()

    # -- with faults

    def _step(self, number):
        if number % 5 == 0:
            self.faults.look()
        if self.random.random() < self._fault_rate:
            self.faults.strike()
            return
        kind = self.random.random()
        if kind < 0.60:
            self._step_node()
        elif kind < 0.91:
            self._arrival()
        else:
            self._advance(self.random.choice(self._pauses_ms))

    def _step_node(self):
        running = [node for node in self.nodes if node.is_running]
        if not running:
            return
        node = self.random.choice(running)
        (step,) = self.random.choices(list(self._steps), self._steps.values())
        with self._as(node):
            if step is Node.work:
                node.work(loses_answer=self.random.random() < _LOST_ANSWERS)
            else:
                step(node)

    def _arrival(self):
        arrivals = self.network.arrivals()
        if arrivals:
            self.network.arrive(self.random.choice(arrivals))

    def _advance(self, ms):
        self.clock.ms += ms
        for node in self.nodes:
            if node.is_running:
                with self._as(node):
                    node.advance()

    @contextlib.contextmanager
    def _as(self, node):
        self.history.node = node
        try:
            yield
        finally:
            self.history.node = None

    # -- the end

    def _recover(self):
        """Let all nodes run until the promises are kept. Raises Broken if they are not in time."""
        self.history.note("no more faults")
        for node in self.faults.end():
            self._settle()
            self.history.note(f"node {node.number}: stops")
            node.kill()
            self._advance(SESSION_MS + 500)
        self.faults.end()
        for number in range(_ROUNDS):
            self._advance(250)
            self._settle()
            if number % 10 == 9 and self._has_recovered():
                return
        self.clients.check(self.nodes)

    def _has_recovered(self):
        try:
            self.clients.check(self.nodes)
        except Broken:
            return False
        return True

    def _settle(self):
        """Let all nodes run, and all messages arrive, until only time can change anything."""
        for _ in range(100):
            busy = [self._run_all(node) for node in self.nodes if node.is_running]
            arrivals = self.network.arrivals()
            for exchange in arrivals:
                self.network.arrive(exchange)
            if not any(busy) and not arrivals:
                return

    def _run_all(self, node):
        with self._as(node):
            busy = node.control()
            busy |= node.work()
            if node.loop.is_busy:
                node.step_loop()
                busy = True
            node.keep_house()
        return busy
