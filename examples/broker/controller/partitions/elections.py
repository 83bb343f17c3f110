"""The next leader of a partition: pure functions of its replicas, its in-sync replicas, and the nodes that are alive.

All return the new leader and the new in-sync replicas, or None if no replica may lead. Replicas are tried in the order
of the assignment, so the preferred one leads whenever it may:

    replicas 1 2 3, in sync 2 3, alive 1 3   ->   3 leads, in sync 3       (1 may lack acknowledged records)
    replicas 1 2 3, in sync 2,   alive 1 3   ->   none                     (only 2 has them all)
    the same, unclean                        ->   1 leads, in sync 1       (acknowledged records of 2 are lost)

**After a crash of all in-sync replicas**, as after a power cut, any of their logs may lack its end. The controller
waits for them for some seconds after the first of them is back. Then the longest log leads: the one with the latest
leader epoch, and among these the one that ends last.

    in sync 1 2, both back, logs end at 90 and 100     ->   2 leads, in sync 2
    in sync 1 2, only 1 is back                        ->   none, for now
    in sync 2, gone 1 3, only 2 is back                ->   2 leads if it has written as the leader, else none for now
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from examples.broker.replication.leadership import Leadership

Elected = tuple[int, tuple[int, ...]]
"""The leader and the in-sync replicas."""


def first(replicas: Sequence[int], alive: Container[int]) -> Elected | None:
    """Elect the first leader of a new partition. It has no records, so every replica that is alive is in sync."""
    living = tuple(node for node in replicas if node in alive)
    return (living[0], living) if living else None


def offline(
    replicas: Sequence[int], isr: Sequence[int], alive: Container[int], *, unclean: bool = False
) -> Elected | None:
    """Elect in place of a leader that is dead or offline: an in-sync replica, or with ``unclean`` any that is alive."""
    leader = next((node for node in replicas if node in alive and node in isr), None)
    if leader is not None:
        return leader, tuple(node for node in isr if node in alive)
    survivor = next((node for node in replicas if node in alive), None)
    return (survivor, (survivor,)) if unclean and survivor is not None else None


def after_crash(
    replicas: Sequence[int], now: Leadership, ends: Mapping[int, tuple[int, int]], *, waits: bool
) -> Elected | None:
    """Elect when no in-sync replica was left.

    Args:
        replicas: the partition's, in order.
        now: the partition's state, without a leader.
        ends: for each node that can lead, the latest leader epoch in its log, and the log's end.
        waits: whether to wait for replicas that are not back.
    """
    back = [node for node in now.isr if node in ends]
    # The removal of the last leader raised the epoch by one. A log with the epoch before it was written by that leader.
    has_led = any(ends[node][0] >= now.leader_epoch - 1 for node in back)
    awaited = now.isr if has_led else (*now.isr, *now.gone)
    if not back or (waits and not ends.keys() >= set(awaited)):
        return None
    candidates = [node for node in replicas if node in ends and (node in now.isr or node in now.gone)]
    leader = max(candidates, key=lambda node: (ends[node], node in now.isr))
    return leader, tuple(n for n in candidates if n == leader or (n in now.isr and ends[n] == ends[leader]))


def among(targets: Sequence[int], isr: Sequence[int], alive: Container[int]) -> Elected | None:
    """Elect the first of the targets that is alive and in sync."""
    leader = next((node for node in targets if node in alive and node in isr), None)
    return None if leader is None else (leader, tuple(isr))
