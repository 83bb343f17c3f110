"""The leader and the in-sync replicas of a partition, as controller, leaders and followers exchange them."""

from __future__ import annotations

import attrs

NO_LEADER = -1
"""In place of a node's id: no replica that may lead is alive."""


@attrs.frozen
class Leadership:
    """One partition's state at one moment.

    Args:
        leader: the node that leads, or ``NO_LEADER``.
        leader_epoch: counts the partition's leaders. A request with a smaller one is from a replaced leader.
        isr: the in-sync replicas, from which the next leader is elected.
        version: the version of the tree node that holds it. Each change names the version that it replaces.
        gone: replicas that were in sync before the controller removed them, until the leader changes the ISR.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int = 0
    gone: tuple[int, ...] = ()

    def led_by(self, leader: int, isr: tuple[int, ...]) -> Leadership:
        """Return the state after the controller has changed the leader or the in-sync replicas: the next leader epoch.

        The epoch also grows if the leader stays. A log with this epoch then proves that its node has led without the
        replicas that are gone. Without this proof the node may have crashed before they were removed.
        """
        gone = tuple(dict.fromkeys(node for node in (*self.isr, *self.gone) if node not in isr))
        return Leadership(leader, self.leader_epoch + 1, isr, self.version, gone)

    def with_isr(self, isr: tuple[int, ...]) -> Leadership:
        """Return the state after the leader has changed the in-sync replicas."""
        return Leadership(self.leader, self.leader_epoch, isr, self.version)

    def written(self) -> Leadership:
        """Return the same state with the version that it has after the write."""
        return attrs.evolve(self, version=self.version + 1)
