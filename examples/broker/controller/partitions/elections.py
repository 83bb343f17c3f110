"""Who leads a partition next: pure functions over its replicas, its in-sync replicas, and the nodes that are alive.

All give the new leader and the new in-sync replicas, or None if nobody may lead. Replicas are tried in the order of the
assignment, so that the preferred one leads whenever it may:

    replicas 1 2 3, in sync 2 3, alive 1 3   ->   3 leads, in sync 3       (1 may lack acknowledged records)
    replicas 1 2 3, in sync 2,   alive 1 3   ->   nobody                   (only 2 has them all)
    the same, unclean                        ->   1 leads, in sync 1       (what 2 had acknowledged is lost)

**After a crash of all in-sync replicas** any of their logs may lack its end, as after a power cut. They are waited for
for some seconds, and the longest log leads: that of the latest leader epoch, and among these the one that ends last.

    in sync 1 2, both back, logs end at 90 and 100     ->   2 leads, in sync 2
    in sync 1 2, only 1 is back                        ->   nobody, for now
    in sync 2, gone 1 3, only 2 is back                ->   2 leads if it has written as the leader, else nobody for now
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from examples.broker.replication.leadership import Leadership

Elected = tuple[int, tuple[int, ...]]
"""The leader and the in-sync replicas."""


def first(replicas: Sequence[int], alive: Container[int]) -> Elected | None:
    """Elect a new partition's first leader: nothing was written, so every replica that is alive is in sync."""
    living = tuple(node for node in replicas if node in alive)
    return (living[0], living) if living else None


def offline(
    replicas: Sequence[int], isr: Sequence[int], alive: Container[int], *, unclean: bool = False
) -> Elected | None:
    """Elect when the leader has gone: from the in-sync replicas, else, if `unclean`, whoever lives."""
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
        replicas: of the partition, in order.
        now: how the partition stands, without a leader.
        ends: of the nodes that can lead: the latest leader epoch in the log, and where the log ends.
        waits: whether to wait for replicas that are not back.
    """
    back = [node for node in now.isr if node in ends]
    has_led = any(ends[node][0] >= now.leader_epoch - 1 for node in back)
    awaited = now.isr if has_led else (*now.isr, *now.gone)
    if not back or (waits and not ends.keys() >= set(awaited)):
        return None
    candidates = [node for node in replicas if node in ends and (node in now.isr or node in now.gone)]
    leader = max(candidates, key=lambda node: (ends[node], node in now.isr))
    return leader, tuple(n for n in candidates if n == leader or (n in now.isr and ends[n] == ends[leader]))


def among(targets: Sequence[int], isr: Sequence[int], alive: Container[int]) -> Elected | None:
    """Elect one of those to which the partition is being moved."""
    leader = next((node for node in targets if node in alive and node in isr), None)
    return None if leader is None else (leader, tuple(isr))


def after_shutdown(
    replicas: Sequence[int], isr: Sequence[int], alive: Container[int], leaving: Container[int]
) -> Elected | None:
    """Elect somebody in place of nodes that are about to stop; they leave the in-sync replicas."""
    staying = tuple(node for node in isr if node not in leaving)
    leader = next((node for node in replicas if node in alive and node in staying), None)
    return None if leader is None else (leader, staying)
