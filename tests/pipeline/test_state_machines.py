"""The two state machines, without Spark: whatever order, batches and restarts, the answers are the same."""

import random

import pytest

from purgatory.pipeline._state.state_machines import KeyCore, OperationCore
from tests.support.memory import Memory, key_core, operation_core

#: What an answer repeats of its row.
ABOUT = ("Fetch", 1, 50)


class Bucket:
    """A core with its stores, which can be started again from what it saved."""

    def __init__(self, kind, **settings):
        self._kind, self._settings = kind, settings
        self.stores = [Memory() for _ in range(2 if kind is KeyCore else 1)]
        self.core = kind(None, *self.stores, **settings)

    def restart(self):
        self.core = self._kind(self.core.agenda, *self.stores, **self._settings)


@pytest.fixture
def answer():
    """Drive both cores over rows in batches, as the stream does. Gives the answers and the buckets."""

    def answer(rows, *, buckets=3, batch=7, slack=0, restart=False, rng=None, keep_us=None):
        keys = [Bucket(KeyCore, keep_us=keep_us) for _ in range(buckets)]
        operations = [Bucket(OperationCore) for _ in range(buckets)]
        order = sorted(rows, key=lambda row: row["ts"] + (rng.randrange(slack + 1) if rng else 0))
        done, latest, watermark = {}, 0, 0
        batches = [order[i : i + batch] for i in range(0, len(order), batch)]
        for part in [*batches, [], None]:
            for seq, row in enumerate(part or ()):
                latest = max(latest, row["ts"])
                if row["ts"] <= watermark:
                    raise AssertionError("a late row")
                until = row["ts"] + max(0, row["delay_ms"]) * 1000
                pairs = list(zip(row["keys"], row["levels"], strict=True))
                for number, (key, level) in enumerate(pairs):
                    core = keys[hash(key) % buckets].core
                    if row["kind"] == "event":
                        core.events([(row["ts"], key, level)])
                    else:
                        mark = hash((until, *pairs)) % 2**32
                        watch = (row["ts"], row["operation"], number, len(pairs), key, level, until, mark, seq, ABOUT)
                        core.watches([watch])
            handed = [([], []) for _ in range(buckets)]
            for bucket in keys:
                for place, some in enumerate(bucket.core.advance(watermark)):
                    for row in some:
                        handed[hash(row[0]) % buckets][place].append(row)
            for bucket, (opened, hits) in zip(operations, handed, strict=True):
                settled, refused = bucket.core.settle(opened, hits, watermark)
                assert [] == refused
                for name, outcome, _, finished, _, about in settled:
                    assert (name not in done, ABOUT) == (True, about)
                    done[name] = (outcome, finished)
            watermark = 2**60 if part == [] else max(watermark, latest - slack - 1)
            if restart:
                for bucket in (*keys, *operations):
                    bucket.restart()
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
    """Once every operation is answered nothing is left of any, nor of watches never reached: only the keys' levels."""
    rows = trace_rows("kafka", operations=2_000, events=100, unreachable=1.0)
    known = {row["keys"][0] for row in rows if row["kind"] == "event"}
    _, keys, operations = answer(rows, batch=100)
    assert [{}, {}, {}] == [bucket.stores[0] for bucket in operations]
    assert [{}, {}, {}] == [bucket.stores[1] for bucket in keys]
    assert len(known) == sum(bucket.core.kept for bucket in keys)


def test_at_most_half_of_what_is_kept_is_dead(one_by_one):
    """Watches that are not reached are swept as their deadlines pass, without a row that concerns them."""
    core = one_by_one([(n, f"op-{n}", 0, 1, f"k{n}", 1, 1_000 + n, 7, n, ABOUT) for n in range(1, 1_001)])
    assert 1_000 == core.kept
    for watermark in range(1_001, 2_002, 50):
        while core.next_us is not None and core.next_us <= watermark:
            core.advance(watermark)
        assert core.kept <= 2 * max(0, 2_000 - watermark) + 33
    assert (0, None) == (core.kept, core.next_us)


@pytest.fixture
def one_by_one():
    """A core that was given watches, each decided by itself."""

    def one_by_one(watches, **settings):
        core = key_core(**settings)
        for watch in watches:
            core.watches([watch])
            core.advance(watch[0])
        return core

    return one_by_one


def test_a_key_is_forgotten_once_its_level_counts_no_longer():
    """A level counts for a time after a row has named the key, by the rows' instants. Then it is dropped."""
    core = key_core(keep_us=100)
    core.events([(10, "k", 5), (50, "k", 3)])
    core.watches([(150, "in time", 0, 1, "k", 5, 900, 7, 1, ABOUT), (200, "more", 0, 1, "k", 9, 210, 7, 2, ABOUT)])
    assert [("in time", 0, 150, 7)] == core.advance(149)[1] + core.advance(150)[1]
    assert ([], 1) == (core.advance(299)[1], core.kept)
    core.watches([(301, "too late", 0, 1, "k", 5, 900, 7, 3, ABOUT)])
    assert [] == core.advance(300)[1]
    assert 0 == core.kept
    assert [] == core.advance(310)[1]
    core.events([(320, "k", 4), (350, "k", 5)])
    assert [("too late", 0, 350, 7)] == core.advance(400)[1]
    assert [] == core.advance(450)[1]
    assert (0, None) == (core.kept, core.next_us)


@pytest.mark.parametrize("batch", [1, 9, 400])
def test_when_a_key_is_forgotten_changes_no_answer(batch, answer, brute, trace_rows):
    """Whether a level counts is a matter of instants, whatever the batches."""
    rows = trace_rows("kafka", operations=200, events=400, seconds=100, ahead=0)
    keep = 500_000
    expected = brute(rows, keep)
    assert expected != brute(rows)
    assert expected == answer(rows, batch=batch, keep_us=keep, restart=True)[0]


@pytest.mark.parametrize("seed", range(6))
def test_keys_that_are_forgotten_all_the_time_change_no_answer(seed, answer, brute, trace_rows, monkeypatch):
    """Leaves that are swept whenever anything in them is dead, keys named now and then: as the rule has it."""
    monkeypatch.setattr("purgatory.pipeline._state.leaves._FEW", 0)
    rng = random.Random(seed)
    shape = {"operations": 250, "events": 350, "keys": rng.choice((5, 60)), "seconds": 100}
    rows = trace_rows("kafka", seed, **shape, ahead=rng.randrange(3), skew=rng.choice((0.0, 1.0)))
    for keep in (1, 400_000, 3_000_000, 20_000_000):
        expected = brute(rows, keep)
        for batch in (1, rng.randrange(2, 40), 300):
            given = {"batch": batch, "buckets": rng.choice((1, 3)), "slack": 2_000_000, "restart": True, "rng": rng}
            assert expected == answer(rows, keep_us=keep, **given)[0]


@pytest.mark.parametrize("waiting", [False, True])
def test_ever_new_keys_leave_no_more_than_those_named_of_late(waiting):
    """Over five hundred batches, each of keys that never come again: the kept state does not grow."""
    bucket = Bucket(KeyCore, keep_us=20_000)
    sizes = []
    for batch in range(500):
        at = 1_000 * batch
        names = [f"session-{batch}-{number}" for number in range(20)]
        bucket.core.events((at + 500, name, 7) for name in names)
        if waiting:
            bucket.core.watches((at + 400, f"of {name}", 0, 1, name, 7, at + 2_000, 7, 1, ABOUT) for name in names)
        hits = bucket.core.advance(at)[1]
        assert len(hits) == (20 if waiting and batch else 0)
        bucket.restart()
        sizes.append(len(bucket.core.agenda) + sum(map(len, (*bucket.stores[0].values(), *bucket.stores[1].values()))))
        assert bucket.core.kept <= 2 * 20 * 21 + 33 * len(bucket.stores[0])
    assert max(sizes[400:]) <= 1.05 * max(sizes[50:100])
    while bucket.core.next_us is not None:
        bucket.core.advance(max(at + 1_000, bucket.core.next_us))
    assert ({}, {}) == (bucket.stores[0], bucket.stores[1])


def test_an_event_opens_what_it_reaches_however_many_wait_on_the_key():
    """Of a key with very many watches, those are looked at whose level is reached, and the key itself."""
    bucket = Bucket(KeyCore)
    bucket.core.watches((1, f"op-{n}", 0, 1, "hot", n, 9_000, 7, n, ABOUT) for n in range(1, 10_001))
    bucket.core.advance(1)
    bucket.restart()
    opened = []
    bucket.stores[0].read = lambda number: opened.append(number) or bucket.stores[0][number]
    bucket.core.events([(2, "hot", 10)])
    bucket.core.watches([(3, "op", 0, 1, "hot", 5_000, 9_000, 7, 1, ABOUT)])
    assert [(f"op-{n}", 0, 2, 7) for n in range(1, 11)] == bucket.core.advance(5)[1]
    assert 2 == len(opened) < len(bucket.stores[0])


@pytest.fixture
def one():
    """One operation on one key: arrival 10, deadline 20, level 5, and the given events."""

    def one(*events):
        core, operations = key_core(), operation_core()
        core.events((at, "k", level) for at, level in events)
        core.watches([(10, "op", 0, 1, "k", 5, 20, 7, 1, ABOUT)])
        ((_, outcome, _, finished, *_),), _ = operations.settle(*core.advance(100), 100)
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


def test_hits_count_for_operations_opened_with_them_and_before():
    """An operation on three keys is hit as it is opened, and later. A completed operation is owed nothing."""
    core = operation_core()
    assert ([], []) == core.settle([("op", 3, 10, 90, 7, 1, ABOUT)], [("op", 1, 10, 7)], 10)
    assert ([], []) == core.settle([], [("op", 0, 15, 7)], 20)
    assert ([("op", "satisfied", 10, 15, 7, ABOUT)], []) == core.settle([], [("op", 2, 12, 7)], 20)
    assert ([], []) == core.settle([], [("op", 2, 12, 7)], 95)


@pytest.mark.parametrize("apart", [False, True])
def test_a_name_is_refused_while_an_operation_has_it(apart):
    """From an operation's arrival to its answer its name is taken, from the answer on free. In any batches."""
    rows = [
        ("op", 1, at, at + 50, mark, seq, ABOUT) for seq, (at, mark) in enumerate([(10, 1), (10, 2), (39, 3), (40, 4)])
    ]
    hits = [("op", 0, 20, 2), ("op", 0, 39, 3), ("op", 0, 40, 1), ("op", 0, 45, 4)]
    core = operation_core()
    if apart:
        found = [
            core.settle(rows[:2], [], 15),
            core.settle(rows[2:3], hits[:2], 39),
            core.settle(rows[3:], hits[2:], 45),
        ]
    else:
        found = [core.settle(rows[::-1], hits, 45)]
    assert [("op", "satisfied", 10, 40, 1, ABOUT), ("op", "satisfied", 40, 45, 4, ABOUT)] == [
        one for done, _ in found for one in done
    ]
    assert [("op", 10, 1), ("op", 39, 2)] == [one for _, refused in found for one in refused]
    assert 0 == core.parked
