"""The walks' sums and what is made of them on the driver, without Spark, against sorting everything."""

import random

import numpy as np
import pyarrow as pa
import pytest

from purgatory.journal.records import JOURNAL
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline.walks import cases, closer, exact, kernels
from purgatory.pipeline.walks.grouped import groups

BASE = 1_767_261_600_000_000
WINDOW_US = 10_000_000


@pytest.fixture
def batch():
    """Record batches of a journal from (created, wait, keys, outcome) or whole rows."""

    def batch(rows):
        plain = {"purgatory": "p", "type": "T", "instance": "", "checks": 2, "delay_ms": 500}
        made = []
        for seq, row in enumerate(rows):
            made.append({"seq": seq, **plain, "keys": ["a"], "outcome": "satisfied", **row})
        return pa.RecordBatch.from_pylist(made, arrow_schema(JOURNAL))

    return batch


def seeded(seed, count=800):
    """Rows of two purgatories with waits from nothing to minutes, many of them at the same instants."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        created = BASE + rng.randrange(0, 40_000) * 1000
        wait = rng.choice((0, 1, rng.randrange(900), rng.randrange(30_000), rng.randrange(90_000_000)))
        outcome = rng.choice(("satisfied", "satisfied", "immediate", "expired"))
        rows.append({"purgatory": rng.choice("pq"), "created": created, "finished": created + wait, "outcome": outcome})
    return rows


def together(part, rows, summary, size=100):
    """A summary as several tasks and the driver make it."""
    tables = []
    for start in range(0, len(rows), size):
        tables += kernels.walk([rows.slice(start, size)], {part: summary})
    blobs = [blob for table in tables for blob in table.column("blob").to_pylist()]
    return kernels.unpacked(part, blobs)


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_sorted_waits(batch, seed):
    """Looking only into the bins that percentiles lie in gives what sorting all the waits gives."""
    rows = seeded(seed)
    whole = batch(rows)
    bins = together("bins", whole, lambda rows, _: kernels.bins(rows, WINDOW_US))
    wanted = exact.wanted_bins(bins)
    inside = together("inside", whole, lambda rows, _: closer.inside(rows, WINDOW_US, wanted))
    expected = {}
    for row in rows:
        if row["outcome"] in kernels.GOOD:
            window = row["finished"] - row["finished"] % WINDOW_US
            expected.setdefault((row["purgatory"], window), []).append((row["finished"] - row["created"]) / 1000)
    found = {(row["purgatory"], row["window_us"]): row for row in exact.latency(bins, inside)}
    assert expected.keys() == found.keys()
    for group, waits in expected.items():
        for name, share in exact.PERCENTILES.items():
            assert found[group][name] == pytest.approx(np.quantile(waits, share), rel=1e-9)


@pytest.mark.parametrize("sortable", [0, 100, 10**9])
@pytest.mark.parametrize("seed", range(3))
def test_peaks_are_those_of_a_sweep(batch, seed, sortable):
    """However often slots are cut before events are looked at, the peak and its instant are the sweep's."""
    rows = seeded(seed)
    whole = batch(rows)
    moves = together("moves", whole, lambda rows, _: kernels.moves(rows, 1_000_000))

    search = exact.Peaks(moves, 1_000_000, sortable=sortable)
    while search.wanted.slots:
        look = (search.wanted.width_us, search.wanted.into_us, search.wanted.slots)
        search.narrow(together("moves", whole, lambda rows, _, look=look: closer.moves_inside(rows, *look)))
    found = {r["purgatory"]: (r["peak"], r["at_us"]) for r in search.found()}
    for name in "pq":
        mine = [row for row in rows if row["purgatory"] == name and row["finished"] > row["created"]]
        events = sorted([(row["created"], 1) for row in mine] + [(row["finished"], -1) for row in mine])
        level, best = 0, (0, 0)
        for at, change in events:
            level += change
            if level > best[0]:
                best = (level, at)
        assert best == found[name]


def test_rows_that_can_not_be_true_are_left_out_and_counted(batch):
    """An unknown outcome, a missing instant, an end before the beginning: none of them is summed up."""
    good = {"created": BASE, "finished": BASE + 5}
    rows = batch(
        [
            good,
            {**good, "outcome": "lost"},
            {**good, "outcome": None},
            {**good, "purgatory": None},
            {**good, "finished": None},
            {**good, "finished": BASE - 1},
            {**good, "created": 5},
            {**good, "checks": -1},
            {**good, "checks": None},
            {**good, "delay_ms": None},
        ]
    )
    kept, bad = kernels.columns(rows)
    assert (1, 9) == (len(kept.wait), len(bad))
    reasons = ["unknown outcome"] * 2 + ["no purgatory", "no instant", "finished before it was created"]
    reasons += ["an instant out of range", "a negative number of checks", "no number of checks", "no timeout"]
    assert reasons == cases.problems(bad)


def test_the_second_look_goes_over_the_rows_once(batch, monkeypatch):
    """However many purgatories and types there are, a batch is gone through as often, and all of them are found."""
    calls = []
    plain = kernels.among_words
    monkeypatch.setattr(kernels, "among_words", lambda *given: calls.append(given) or plain(*given))
    counts = []
    for kinds in (2, 300):
        made = [
            {"purgatory": f"p{n % kinds}", "type": f"t{n % 7}", "created": BASE, "finished": BASE + 10 * n + 1}
            for n in range(2_100)
        ]
        rows, _ = kernels.columns(batch(made))
        bins = kernels.bins(rows, WINDOW_US)
        moves = exact.Peaks(kernels.moves(rows, 1_000), 1_000).wanted
        calls.clear()
        inside = closer.inside(rows, WINDOW_US, exact.wanted_bins(bins))
        cut = closer.moves_inside(rows, moves.width_us, moves.into_us, moves.slots)
        counts.append(len(calls))
        assert len({(row["purgatory"], row["type"]) for row in made}) == len(
            list(groups(inside, ("purgatory", "type")))
        )
        assert kinds == len(set(cut["purgatory"].to_pylist()))
    assert counts[0] == counts[1]


def test_operations_without_keys_count_under_none(batch):
    """No keys at all, or an empty list, is one row without a key; two keys are two rows."""
    instants = {"created": BASE, "finished": BASE + 5_000, "outcome": "expired"}
    rows, _ = kernels.columns(batch([{**instants, "keys": keys} for keys in (["a", "b"], [], None, ["a"])]))
    found = {row["key"]: row["operations"] for row in kernels.keys(rows, WINDOW_US).to_pylist()}
    assert {"a": 2, "b": 1, None: 2} == found


def test_dictionaries_and_plain_words_add_up_alike(batch):
    """Whether a file gave its words as dictionaries or as text makes no difference."""
    whole = batch(seeded(1))
    coded = whole
    for name in kernels.REPEATED:
        place = coded.schema.get_field_index(name)
        coded = coded.set_column(place, name, coded.column(name).dictionary_encode())

    def sums(rows):
        table = kernels.outcomes(kernels.columns(rows)[0], WINDOW_US)
        return table.sort_by([(name, "ascending") for name in table.column_names[:4]])

    assert sums(whole).equals(sums(coded))


@pytest.mark.parametrize(
    ("wait", "expected"),
    [(0, 0), (1, 1), (999, 999), (1_000, 1_000), (1_001, 2_000), (1_000_001, 1_010_000), (9_999_999, 10_000_000)],
)
def test_waits_are_rounded_up_to_few_bins(wait, expected):
    """Exact up to a millisecond, milliseconds up to a second, three digits beyond."""
    assert [expected] == kernels.wait_bin(np.array([wait])).tolist()


def test_bins_keep_the_order_of_the_waits():
    """A longer wait never lies in a lower bin: the running sum over bins is one over waits."""
    rng = np.random.default_rng(1)
    waits = np.sort((10 ** rng.uniform(0, 14, 20_000)).astype(np.int64))
    assert (np.diff(kernels.wait_bin(waits)) >= 0).all()
