"""The next leader: the pure functions."""

import pytest

from examples.broker.controller.partitions import elections
from examples.broker.controller.partitions.assignment import assign


@pytest.mark.parametrize(
    ("replicas", "isr", "alive", "unclean", "elected"),
    [
        ((1, 2, 3), (1, 2, 3), {2, 3}, False, (2, (2, 3))),
        ((1, 2, 3), (2, 3), {1, 3}, False, (3, (3,))),
        ((3, 2, 1), (1, 2), {1, 2}, False, (2, (1, 2))),
        ((1, 2, 3), (2,), {1, 3}, False, None),
        ((1, 2, 3), (2,), {1, 3}, True, (1, (1,))),
        ((1, 2, 3), (2,), {2, 3}, True, (2, (2,))),
        ((1, 2, 3), (1, 2, 3), set(), True, None),
    ],
)
def test_offline(replicas, isr, alive, unclean, elected):
    """A dead leader is followed by the first living replica in sync, or by any if unclean elections may be."""
    assert elected == elections.offline(replicas, isr, alive, unclean=unclean)


def test_first():
    """A new partition is led by its first living replica, with all the living in sync."""
    assert (2, (2, 3)) == elections.first((1, 2, 3), {2, 3})
    assert None is elections.first((1, 2), {3})


def test_preferred():
    """The first replica leads if it is in sync and alive, and the in-sync replicas stay as they are."""
    assert (1, (2, 1)) == elections.among((1,), (2, 1), {1, 2})
    assert None is elections.among((1,), (2,), {1, 2})
    assert None is elections.among((1,), (1, 2), {2})


def test_among():
    """A partition on the move is led by the first target that is in sync."""
    assert (5, (1, 5)) == elections.among((4, 5), (1, 5), {1, 4, 5})
    assert None is elections.among((4, 5), (1,), {1, 4, 5})


@pytest.mark.parametrize(("nodes", "partitions", "replicas"), [(1, 3, 1), (3, 12, 3), (5, 20, 3), (4, 12, 2)])
def test_assignment_is_even(nodes, partitions, replicas):
    """Every partition has its replicas on different nodes, and every node leads and follows as many as the others."""
    found = assign(range(1, nodes + 1), partitions, replicas, start=1)
    assert all(replicas == len(set(chosen)) for chosen in found.values())
    led = [sum(chosen[0] == node for chosen in found.values()) for node in range(1, nodes + 1)]
    has = [sum(node in chosen for chosen in found.values()) for node in range(1, nodes + 1)]
    assert max(led) - min(led) <= 1
    assert max(has) - min(has) <= replicas


def test_assignment_needs_nodes():
    """More replicas than nodes are rejected."""
    with pytest.raises(ValueError, match="replicas must be 1 to 2, got 3"):
        assign([1, 2], 1, 3)
