"""The outage as a timeline: the steps done to the leader, and their effect on the clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from examples.broker.tour.ledger import ACKNOWLEDGED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.broker.tour.clients import Topic
    from examples.broker.tour.cluster import Cluster
    from examples.broker.tour.ledger import Ledger
    from examples.broker.tour.settings import Settings

__all__ = ["VICTIM", "Outage", "watch"]

VICTIM = 3
_PATIENCE_S = 30.0


class Outage:
    """Kills a leader and starts it again when it is time, and notes what changed, in seconds of the ledger."""

    def __init__(self, cluster: Cluster, settings: Settings, ledger: Ledger) -> None:
        self._cluster = cluster
        self._settings = settings
        self._ledger = ledger
        self._in_sync: set[int] | None = None
        self._timed_out = False
        self._led = 0
        self.stopped_s: float | None = None
        self.resumed_s: float | None = None
        self.led_again_s: float | None = None
        """When leadership came back; the story isn't over before."""

    def act(self, passed_s: float) -> str | None:
        """Take the steps that are due. Returns their descriptions."""
        if self.stopped_s is None and passed_s >= self._settings.stop_at:
            self._cluster.kill(VICTIM)
            self.stopped_s = self._ledger.now_s()
            return f"node {VICTIM} is killed, which leads {self._led} of the partitions"
        if self.resumed_s is None and self.stopped_s is not None and passed_s >= self._settings.resume_at:
            self._cluster.start_again(VICTIM)
            self.resumed_s = self._ledger.now_s()
            return f"node {VICTIM} is started again, and catches up"
        return None

    def notice(self, in_sync: set[int] | None, leaders: list[int] | None, timed_out: int) -> list[str]:
        """The news, in words."""
        news = self._leadership(leaders)
        if timed_out and not self._timed_out:
            self._timed_out = True
            news.append(
                f"the first writes have waited {self._settings.timeout_ms} ms at node 1: "
                "answered REQUEST_TIMED_OUT, and sent again"
            )
        if in_sync is not None and self._in_sync is not None and in_sync != self._in_sync:
            gone, back = self._in_sync - in_sync, in_sync - self._in_sync
            if gone:
                news.append(f"node {_names(gone)} is no longer in sync")
            if back:
                news.append(f"node {_names(back)} is in sync again")
        self._in_sync = in_sync or self._in_sync
        return news

    def _leadership(self, leaders: list[int] | None) -> list[str]:
        if leaders is None:
            return []
        led, before, self._led = leaders.count(VICTIM), self._led, leaders.count(VICTIM)
        if self.stopped_s is None or led == before:
            return []
        if not led and all(leader > 0 for leader in leaders):
            return [f"what node {VICTIM} led is led by others now: writes go on"]
        if led < before:
            return []
        self.led_again_s = self._ledger.now_s()
        return [f"node {VICTIM} leads {led} of the partitions again"]

    def phase(self, sent_s: float) -> int:
        """Of a record sent then: 0 before the outage, 1 in it, 2 after it."""
        if self.stopped_s is None or sent_s < self.stopped_s:
            return 0
        return 1 if self.resumed_s is None or sent_s < self.resumed_s else 2


def _names(nodes: set[int]) -> str:
    return " and ".join(map(str, sorted(nodes)))


def watch(
    cluster: Cluster, topic: Topic, settings: Settings, ledger: Ledger, say: Callable[[float, str], None]
) -> Outage:
    """Let the time of the load pass, with the outage in it.

    Print the progress once per second, and each step at once.
    """
    outage = Outage(cluster, settings, ledger)
    began = time.monotonic()
    next_line = 0.0
    while (passed := time.monotonic() - began) < settings.seconds or (
        outage.led_again_s is None and passed < settings.seconds + _PATIENCE_S
    ):
        cluster.check()
        done = outage.act(passed)
        in_sync, writes = topic.in_sync(), cluster.purgatories()["produce"]
        for news in [*([done] if done else []), *outage.notice(in_sync, topic.leaders(), writes["totals"]["expired"])]:
            say(passed, f"  * {news}")
        if passed >= next_line:
            next_line = passed + 1
            say(passed, _figures(ledger, writes, in_sync))
        time.sleep(0.1)
    return outage


def _figures(ledger: Ledger, writes: Mapping[str, Any], in_sync: set[int] | None) -> str:
    given_up = sum(ledger.verdicts.values()) - ledger.verdicts[ACKNOWLEDGED]
    return (
        f"sent {ledger.sent:>5,}   acknowledged {ledger.verdicts[ACKNOWLEDGED]:>5,}   "
        f"{f'given up {given_up:,}   ' if given_up else ''}received {ledger.received:>5,}   "
        f"writes at node 1: {writes['parked']:>2} parked, {writes['totals']['expired']:>2} timed out   "
        f"in sync {' '.join(map(str, sorted(in_sync or ()))) or '?'}"
    )
