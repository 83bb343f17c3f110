"""Seeded runs of a simulated broker cluster. ``python -m examples.broker.tests.simulation`` runs more seeds."""

import os
import shutil

import pytest

from examples.broker.tests.simulation.clients import Broken
from examples.broker.tests.simulation.simulation import Simulation

#: Clients are promised something in each of them. The last ones fail without one of three rules: after a crash of all
#: in-sync replicas, only the logs elect (92), a failure of a disk is reported before its end (211), and a leadership
#: names the registration that it is for (297).
SEEDS = [1, 2, *range(4, 11), 12, 92, 211, 297]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_its_promises(seed, tmp_path):
    """Acknowledged and read records survive kills, pauses, power cuts and elections, and the replicas become equal."""
    figures = Simulation(seed, tmp_path).run()
    assert figures.acknowledged


@pytest.mark.parametrize("seed", [13, 14, 240, 290])
def test_nothing_is_there_twice_with_batches_in_flight(seed, tmp_path):
    """A producer that has several batches in flight is not made to number them again. Each seed fails without that."""
    figures = Simulation(seed, tmp_path, pipelined=True).run()
    assert figures.acknowledged


def test_a_seed_repeats_itself(tmp_path):
    """The same seed gives the same history."""
    histories = []
    for _ in range(2):
        simulation = Simulation(2, tmp_path / "cluster")
        figures = simulation.run()
        histories.append([figures, *simulation.history.lines])
        shutil.rmtree(tmp_path / "cluster")
    assert histories[0] == histories[1]


def test_a_lost_record_is_found(tmp_path):
    """The run fails if the logs lack a record that a client was promised."""
    simulation = Simulation(2, tmp_path)
    simulation.clients.promised["t", 0][1_000_000] = b"a lost record"
    with pytest.raises(Broken, match="lost or changed: {1000000: b'a lost record'}"):
        simulation.run()


class PowerCut(Simulation):
    """Three nodes, with one partition on two of them. Its leader loses its log while its follower is offline."""

    def __init__(self, folder, fault):
        super().__init__(1, folder)
        self.fault = fault

    def _step(self, number):
        if number:
            return
        controller, leader, follower = self.nodes
        assert controller.is_controller
        assert leader.leads(("t", 0))
        assert leader.partition(("t", 0)).replicas == (2, 3)
        for _ in range(10):
            self.clients.produce(leader)
            self._settle()
        assert self.clients.acknowledged
        leader.kill()
        for path in leader.folder.glob("t-0/*.log"):
            os.truncate(path, 0)
        if self.fault == "stop":
            self.faults.stop_later(follower)
        else:
            follower.replicas.store.disk.failed(OSError("no space left on device"))
        self._pass_time()
        controller.kill()
        self._pass_time()
        assert follower.is_controller
        self.faults.start(leader)
        self._pass_time()
        assert not leader.leads(("t", 0))

    def _pass_time(self):
        for _ in range(12):
            self._settle()
            self._advance(250)


@pytest.mark.parametrize("fault", ["stop", "disk"])
def test_a_node_that_was_offline_counts_with_its_present_ends(tmp_path, fault):
    """It counts again after it has registered again. By the ends of its start, the log that was lost would win."""
    PowerCut(tmp_path, fault).run()
