"""The nodes of a new topic's replicas, spread so that leaders and followers are even over the nodes.

The first replicas go round the nodes from a starting point. Each next replica is shifted, by one more in every round.
So the partitions that one node leads have their followers on different nodes. Five nodes, three replicas:

    partition   0  1  2  3  4 | 5  6  7  8  9
    leader      1  2  3  4  5 | 1  2  3  4  5
    second      2  3  4  5  1 | 3  4  5  1  2
    third       3  4  5  1  2 | 4  5  1  2  3
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def assign(
    nodes: Sequence[int], partitions: int, replicas: int, *, first_partition: int = 0, start: int = 0
) -> dict[int, tuple[int, ...]]:
    """Assign partitions to nodes. ``start`` is where the round begins, and should differ from topic to topic.

    Raises:
        ValueError: if there are fewer nodes than replicas.

    >>> assign([1, 2, 3], 3, 2)
    {0: (1, 2), 1: (2, 3), 2: (3, 1)}
    """
    if not 1 <= replicas <= len(nodes):
        raise ValueError(f"replicas must be 1 to {len(nodes)}, got {replicas}")
    count = len(nodes)
    found = {}
    for index in range(first_partition, first_partition + partitions):
        leader = (start + index) % count
        shift = (index // count) % max(count - 1, 1)
        others = [nodes[(leader + 1 + (shift + number) % (count - 1)) % count] for number in range(replicas - 1)]
        found[index] = (nodes[leader], *others)
    return found
