"""A short run of the chaos test, with a fixed seed: the long ones are ``make chaos``."""

import pytest

from examples.broker.tests.chaos.__main__ import run
from examples.broker.tests.chaos.disks import why_not


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_short_chaos(tmp_path):
    """Under some fifteen seconds of kills and stops, nothing that was promised to clients is broken."""
    complaints, figures = run(tmp_path, seconds=15, seed=3)

    assert [] == complaints, figures


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_short_chaos_with_disks_that_fill(tmp_path):
    """The same, while disks fill and are freed."""
    complaints, figures = run(tmp_path, seconds=20, seed=9, disks=True)

    assert [] == complaints, figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_short_chaos_on_zookeeper(tmp_path, zookeeper):
    """The same, with the cluster's state in a real ZooKeeper."""
    complaints, figures = run(tmp_path, seconds=10, seed=5, coordination=f"zk://{zookeeper.address}/chaos")

    assert [] == complaints, figures
