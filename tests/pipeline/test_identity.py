"""Keys, purgatories and operations that differ in the library differ in a trace. The library is the yardstick."""

import attrs
import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.journal import Journal, Trace
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.pipeline._rows.load import load
from purgatory.pipeline._rows.validity import IN_USE
from tests.support import workloads
from tests.support.comparison import rehearsed, verify
from tests.support.replays import over, replayed
from timer import MockTimer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

# Pairs that were one in a trace whose labels join a tuple's parts by dashes, or cut at 200 characters.
ALIKE = [("a", "b-c"), ("a-b", "c"), ("a", "b", "c"), "a-b-c", 1, "1", "x" * 250 + "1", "x" * 250 + "2"]


class Threshold(DelayedOperation):
    """Waits for levels on its keys."""

    def __init__(self, delay_ms, needs, levels):
        super().__init__(delay_ms)
        self.needs, self.levels = needs, levels

    def try_complete(self):
        return all(self.levels.get(key, 0) >= need for key, need in self.needs.items()) and self.force_complete()

    def on_complete(self):
        """Nothing to report."""


def test_keys_and_purgatories_that_look_alike_are_told_apart(spark, tmp_path):
    """Under keys whose names are alike, the trace's outcomes are the journal's outcomes."""
    timer, epoch_ns = MockTimer(), workloads.START_MS * 1_000_000
    names = ("produce", "fetch")
    with Journal(tmp_path / "journal") as journal, Trace(tmp_path / "trace") as trace:
        purgatories, levels = {}, {name: {} for name in names}
        for name in names:
            clock = {"now_ns": timer.clock, "epoch_ns": epoch_ns}
            observers = (
                journal.observer(name, identify=lambda operation: operation.name, **clock),
                trace.observer(name, lambda op: op.needs, identify=lambda operation: operation.name, **clock),
            )
            purgatories[name] = DelayedOperationPurgatory(name, timer=timer, observers=observers)
        for number, key in enumerate(ALIKE):
            for name in names:
                operation = Threshold(1_000, {key: 1}, levels[name])
                operation.name = f"op-{number}"
                purgatories[name].try_complete_else_watch(operation, [key])
        for number, key in enumerate(ALIKE[::2]):
            timer.advance_clock(10)
            name = names[number % 2]
            levels[name][key] = 1
            at_ns = timer.clock() + epoch_ns - trace._epoch_ns  # the trace's clock is the system's
            trace.event(name, key, 1, at_ns=at_ns)
            assert 1 == purgatories[name].check_and_complete(key)
        timer.advance_clock(960)  # to the deadlines, so that what expires is dated by them
        for purgatory in purgatories.values():
            purgatory.shutdown()
    columns = ("purgatory", "operation", "outcome", "unix_micros(created)", "unix_micros(finished)")
    found = load(spark, str(tmp_path / "journal"), JOURNAL).selectExpr(*columns).collect()
    happened = sorted(map(tuple, found))
    assert 4 == sum(outcome == "satisfied" for _, _, outcome, *_ in happened)
    assert (happened, []) == replayed(over(tmp_path / "trace"))


@pytest.mark.parametrize("workload", ["purgatories", "names"])
def test_the_library_and_the_batch_twin_agree_on_names(spark, tmp_path, workload):
    """The same names in several purgatories, and used again: the batch answers just what the library does."""
    shape = attrs.evolve(workloads.WORKLOADS[workload], operations=400, events=800)
    workloads.write(tmp_path / "trace", workloads.trace(shape), TRACE, files=1)
    twin, aside = replayed(over(tmp_path / "trace"))
    columns = ("purgatory", "operation", "outcome", "unix_micros(finished)")
    library = rehearsed(spark, tmp_path / "trace", tmp_path / "journal").selectExpr(*columns).collect()
    assert sorted(map(tuple, library)) == sorted((*row[:3], row[4]) for row in twin)
    used_twice = len(twin) - len({row[:2] for row in twin})
    reasons = {reason for _, reason in aside}
    assert (workload == "names", {IN_USE} if workload == "names" else set()) == (used_twice > 0, reasons)


def test_library_stream_and_twin_agree_on_names(spark, tmp_path):
    """The same names and keys in several purgatories, and names used again: nothing differs between the three."""
    found = verify(spark, "names", tmp_path / "run", operations=200, files=3)
    assert 0 == found.differences
    assert 100 < found.operations
