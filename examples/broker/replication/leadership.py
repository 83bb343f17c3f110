"""Who leads a partition, and who is in sync with it: the value that controller, leaders and followers exchange."""

from __future__ import annotations

import attrs

NO_LEADER = -1
"""In place of a node's id: no replica that may lead is alive."""


@attrs.frozen
class Leadership:
    """One partition's state at one moment.

    Args:
        leader: the node that leads, or `NO_LEADER`.
        leader_epoch: counts the partition's leaders; what carries a smaller one comes from somebody who was replaced.
        isr: the in-sync replicas, from which the next leader is chosen.
        controller_epoch: of the controller that decided it.
        version: of the node in the coordination store that holds it; who changes it names the version that it saw.
        gone: replicas that were in sync before the controller removed them, until the leader changes the isr.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int = 0
    version: int = 0
    gone: tuple[int, ...] = ()

    def led_by(self, leader: int, isr: tuple[int, ...], controller_epoch: int) -> Leadership:
        """Give what follows when the controller changes the leader or the in-sync replicas: the next leader epoch.

        The epoch rises also if the leader stays. A log that has this epoch then proves that its node has led without
        the replicas that are gone. Without this proof the node may have crashed before they were removed.
        """
        gone = tuple(dict.fromkeys(node for node in (*self.isr, *self.gone) if node not in isr))
        return Leadership(leader, self.leader_epoch + 1, isr, controller_epoch, self.version, gone)

    def with_isr(self, isr: tuple[int, ...], controller_epoch: int) -> Leadership:
        """Give what follows when the leader itself changes the in-sync replicas."""
        return Leadership(self.leader, self.leader_epoch, isr, controller_epoch, self.version)

    def written(self) -> Leadership:
        """Give the same as it is once it was written over the version that it came from."""
        return attrs.evolve(self, version=self.version + 1)
