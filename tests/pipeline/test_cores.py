"""The two state machines, without Spark: whatever order, batches and restarts, the answers are the same."""

import random

import pytest

from purgatory.pipeline.cores import KeyCore, OperationCore


@pytest.fixture
def answer():
    """Drive both cores over rows in batches, as the stream does; gives the answers and the cores."""

    def answer(rows, *, buckets=3, batch=7, slack=0, restart=False, rng=None):
        keys = [KeyCore() for _ in range(buckets)]
        operations = [OperationCore() for _ in range(buckets)]
        order = sorted(rows, key=lambda row: row["ts"] + (rng.randrange(slack + 1) if rng else 0))
        done, latest, watermark = {}, 0, 0
        batches = [order[i : i + batch] for i in range(0, len(order), batch)]
        for part in [*batches, [], None]:
            for row in part or ():
                latest = max(latest, row["ts"])
                if row["ts"] <= watermark:
                    raise AssertionError("a late row")
                until = row["ts"] + max(0, row["delay_ms"]) * 1000
                pairs = list(zip(row["keys"], row["levels"], strict=True))
                for number, (key, level) in enumerate(pairs):
                    core = keys[hash(key) % buckets]
                    if row["kind"] == "event":
                        core.events([(row["ts"], key, level)])
                    else:
                        core.watches([(row["ts"], row["operation"], number, len(pairs), key, level, until)])
            for core in keys:
                opened, hits = core.advance(watermark)
                touched = set()
                for name, *rest in opened:
                    operations[hash(name) % buckets].opened([(name, *rest)])
                    touched.add(name)
                for name, *rest in hits:
                    operations[hash(name) % buckets].hit([(name, *rest)])
                    touched.add(name)
                for stage in operations:
                    for name, outcome, _, finished in stage.settle(-1, touched):
                        assert name not in done
                        done[name] = (outcome, finished)
            for stage in operations:
                for name, outcome, _, finished in stage.settle(watermark):
                    assert name not in done
                    done[name] = (outcome, finished)
            watermark = 2**60 if part == [] else max(watermark, latest - slack - 1)
            if restart:
                keys = [KeyCore.load(core.dump()) for core in keys]
                operations = [OperationCore.load(core.dump()) for core in operations]
        return done, keys, operations

    return answer


@pytest.mark.parametrize("workload", ["kafka", "hot-keys", "bursts", "huge-timeouts"])
def test_the_cores_answer_as_the_plainest_reading_of_the_rules_does(workload, answer, brute, trace_rows):
    """Every operation gets the outcome and the instant that a look at all events gives."""
    rows = trace_rows(workload, operations=300, events=600)
    assert brute(rows) == answer(rows)[0]


@pytest.mark.parametrize("seed", range(5))
def test_order_batches_and_restarts_change_nothing(seed, answer, brute, trace_rows):
    """Rows in disorder, in batches of any size, with the state saved and loaded in between: the same answers."""
    rng = random.Random(seed)
    rows = trace_rows("kafka", seed, operations=150, events=300, seconds=60)
    expected = brute(rows)
    for _ in range(3):
        batch, buckets = rng.randrange(1, 60), rng.choice((1, 2, 8))
        done, _, _ = answer(rows, buckets=buckets, batch=batch, slack=3_000_000, restart=True, rng=rng)
        assert expected == done


def test_a_row_delivered_twice_is_one_row(answer, brute, trace_rows):
    """Doubles of operations and events give no second answer and change none."""
    rows = trace_rows("kafka", operations=100, events=200)
    doubled = rows + rows[::3]
    assert brute(rows) == answer(doubled)[0]


def test_nothing_is_kept_of_what_is_done(answer, trace_rows):
    """Once every operation is answered, no operation is open, and watches never reached don't pile up."""
    rows = trace_rows("kafka", operations=2_000, events=100, unreachable=1.0)
    _, keys, operations = answer(rows, batch=100)
    assert [0, 0, 0] == [core.parked for core in operations]
    assert sum(core.waiting for core in keys) <= 3 * 256 * 2


@pytest.fixture
def one():
    """One operation on one key: arrival 10, deadline 20, level 5; and the given events."""

    def one(*events):
        core, operations = KeyCore(), OperationCore()
        core.events((at, "k", level) for at, level in events)
        core.watches([(10, "op", 0, 1, "k", 5, 20)])
        opened, hits = core.advance(100)
        operations.opened(opened)
        operations.hit(hits)
        ((_, outcome, _, finished),) = operations.settle(100, {"op"})
        return outcome, finished

    return one


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(9, 5)], ("immediate", 10)),
        ([(10, 5)], ("immediate", 10)),
        ([(11, 5)], ("satisfied", 11)),
        ([(19, 7)], ("satisfied", 19)),
        ([(20, 5)], ("expired", 20)),
        ([(15, 4)], ("expired", 20)),
        ([(12, 6), (11, 5), (15, 9)], ("satisfied", 11)),
        ([], ("expired", 20)),
    ],
)
def test_ties_and_thresholds(events, expected, one):
    """An event at the arrival counts, one at the deadline is too late, a lower level is none."""
    assert expected == one(*events)


def test_hits_may_come_before_the_operation_is_opened():
    """Of two buckets of one batch, either may hand over first."""
    core = OperationCore()
    core.hit([("op", 1, 12)])
    assert [] == core.settle(-1, {"op"})
    core.opened([("op", 2, 10, 20)])
    core.hit([("op", 0, 15)])
    assert [("op", "satisfied", 10, 15)] == core.settle(100, {"op"})
