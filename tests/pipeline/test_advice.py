"""The timeout advice against services whose true distribution of waits is known."""

import numpy as np
import pyarrow as pa
import pytest

from purgatory.journal.records import JOURNAL, SHUTDOWN
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._summaries import advice
from purgatory.pipeline._summaries.choices import Grid
from purgatory.pipeline._tables import queries, relations
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.whatif import estimate_timeouts
from tests.support import workloads

COUNT = 20_000
BASE = 1_767_261_600_000_000
HOUR_US = 3_600_000_000


class Service:
    """Operations that need a time of a known distribution, and what became of them, as numpy columns."""

    def __init__(self, delay_ms, seed=1):
        self.rng = np.random.default_rng(seed)
        self.need_us = (self.rng.lognormal(np.log(200_000), 0.7, COUNT)).astype(np.int64)
        self.created = BASE + self.rng.integers(0, HOUR_US, COUNT)
        self.delay_ms = np.broadcast_to(delay_ms, COUNT).copy()
        self.left_us = np.zeros(COUNT, np.int64)
        self.outcome = np.full(COUNT, "satisfied", object)
        self.ended_by = np.full(COUNT, None, object)

    def run(self, late_share=0.5):
        """Those that need longer than their timeout expire. Some find their answer just after the deadline."""
        limit = self.delay_ms * 1000
        over = self.need_us > limit
        late = over & (self.need_us < limit + 20_000) & (self.rng.random(COUNT) < late_share)
        self.left_us = np.where(over & ~late, limit + 900, self.need_us)
        self.outcome[over & ~late] = "expired"
        return self

    def end(self, where, at_us, outcome, ended_by=None):
        """Some leave earlier, for a reason that is independent of their need."""
        gone = where & (at_us < self.left_us)
        self.left_us = np.where(gone, at_us, self.left_us)
        self.outcome[gone], self.ended_by[gone] = outcome, ended_by
        return self

    def needing_more_than(self, ms):
        """The true share."""
        return float((self.need_us > ms * 1000).mean())

    def waits(self, folder):
        """The counts of waits that a report makes of the service's journal."""
        order = np.argsort(self.created + self.left_us, kind="stable")
        rows = [
            {
                "seq": place,
                "purgatory": "p",
                "type": "T",
                "operation": None,
                "keys": ["k"],
                "instance": "",
                "outcome": self.outcome[n],
                "error": None,
                "created": int(self.created[n]),
                "delay_ms": int(self.delay_ms[n]),
                "finished": int(self.created[n] + self.left_us[n]),
                "checks": 2,
                "ended_by": self.ended_by[n],
            }
            for place, n in enumerate(order.tolist())
        ]
        workloads.write(folder, pa.Table.from_pylist(rows, arrow_schema(JOURNAL)), JOURNAL, files=1)
        engine = Local([str(folder)])
        engine.open(allow_gaps=False)
        relations.prepare(engine)
        found = engine.query(queries.WAITS)
        engine.close()
        return found


def one_timeout():
    return Service(500).run()


def mixed():
    service = Service(np.random.default_rng(2).choice([150, 400, 1_500], COUNT))
    return service.run()


def rarely_long():
    service = Service(np.where(np.arange(COUNT) < 3, 60_000, 500))
    return service.run(late_share=0.0)


def extended():
    """Half of those that still wait at 300 ms are given another 700. The journal has the last deadline's delay."""
    service = Service(300)
    keepalive = (service.need_us > 300_000) & (service.rng.random(COUNT) < 0.5)
    service.delay_ms[keepalive] = 1_000
    return service.run()


def cancelled():
    service = Service(500)
    service.run()
    return service.end(service.rng.random(COUNT) < 0.3, service.rng.integers(0, 400_000, COUNT), "cancelled")


def drained():
    service = Service(500)
    service.created = BASE + service.rng.integers(0, 600_000, COUNT)  # the service ends 0.6 s after it began
    service.run()
    return service.end(np.full(COUNT, True), BASE + 600_000 - service.created, "expired", SHUTDOWN)


SERVICES = [one_timeout, mixed, rarely_long, extended, cancelled, drained]


@pytest.mark.parametrize("make", SERVICES, ids=lambda make: make.__name__)
def test_the_advised_timeout_keeps_its_promise(make, tmp_path):
    """Each timeout that is advised lets about the target's share expire, of operations whose needs are known."""
    service = make()
    (*found,) = advice.advice(advice.survival(service.waits(tmp_path))).to_pylist()
    given = {row["target"]: row["timeout_ms"] for row in found if row["identified"]}
    for target, timeout_ms in given.items():
        assert service.needing_more_than(timeout_ms) == pytest.approx(target, rel=0.15, abs=0.002)
    longest = np.quantile(service.delay_ms, 0.99)
    for target in advice.TARGETS:  # and none is withheld that the timeouts in use could tell
        if service.needing_more_than(longest) < 0.9 * target and make is not drained:
            assert target in given


@pytest.mark.parametrize("make", SERVICES, ids=lambda make: make.__name__)
def test_what_if_tells_the_true_share_or_nothing(make, tmp_path):
    """The share that would expire under each timeout tried is the true one, and none beyond what was observed."""
    service = make()
    tried = (100, 200, 300, 500, 512, 900, 1_400, 59_000)
    found = estimate_timeouts(service.waits(tmp_path), Grid(timeouts_ms=tried)).to_pylist()
    known = {row["timeout_ms"]: row["expiry_share"] for row in found if row["expiry_share"] is not None}
    assert {100, 200, 300} <= known.keys()
    assert 59_000 not in known
    for timeout_ms, share in known.items():
        assert service.needing_more_than(timeout_ms) == pytest.approx(share, abs=0.015), timeout_ms
