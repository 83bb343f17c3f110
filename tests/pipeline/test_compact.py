"""Small files of a stream's answers put together while it goes on: readers see each row once, kills notwithstanding."""

import contextlib
import json
import os
import queue
import threading
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.spark import places
from purgatory.pipeline.spark.compact import compact
from purgatory.pipeline.spark.lease import AnotherHolds, Lease

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_200), pytest.mark.filterwarnings("ignore")]

ROWS = 5
DAY = 86_400
FEWEST = 16
OUT = "an swers-ü"
"""A name that the log has to escape."""


@pytest.fixture
def feed(tmp_path):
    """Put so many files more into the source, each a batch's."""
    count = [0]

    def feed(files):
        (tmp_path / "in").mkdir(exist_ok=True)
        for _ in range(files):
            rows = {"n": range(count[0] * ROWS, (count[0] + 1) * ROWS), "part": ["done"] * ROWS}
            aside = tmp_path / f".{count[0]}"
            pq.write_table(pa.table(rows), aside)
            os.utime(aside, (count[0], count[0]))  # read in this order
            aside.rename(tmp_path / "in" / f"{count[0]:05}.parquet")
            count[0] += 1
        return count[0] * ROWS

    return feed


@pytest.fixture
def sink(spark, tmp_path, feed):
    """Start Spark's own file sink on the source, one file a batch: what the stream's answers go to."""

    def sink(*, once=True):
        feed(0)
        writer = (
            spark.readStream.schema("n long, part string")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / "in"))
            .repartition(1)
            .writeStream.format("parquet")
            .partitionBy("part")
            .option("path", str(tmp_path / OUT))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        query = (writer.trigger(availableNow=True) if once else writer).start()
        if once:
            query.awaitTermination()
        return query

    return sink


@pytest.fixture
def read(spark, tmp_path):
    """What a reader sees: how many rows, how many of them different, and from how many files."""

    def read():
        frame = spark.read.parquet(str(tmp_path / OUT))
        files = frame.inputFiles()
        numbers = Counter(row["n"] for row in frame.collect())
        assert {1} >= set(numbers.values())
        assert sorted(numbers) == list(range(len(numbers)))
        return len(numbers), len(files)

    return read


def lying(tmp_path):
    return len(list((tmp_path / OUT).glob("part=*/*.parquet")))


def test_readers_beside_a_stream_and_its_compaction_see_each_row_once(spark, tmp_path, feed, sink, read):
    """Hundreds of batches, compactions and readers at once: no gap, no double, and files by the dozen."""
    rows = feed(200)
    query = sink(once=False)
    seen, going = [], threading.Event()

    def reader():
        while not going.wait(0.1):
            seen.append(read()[0])

    out = str(tmp_path / OUT)
    while not (tmp_path / OUT / "_spark_metadata" / "9.compact").exists():
        time.sleep(0.1)
    looking = threading.Thread(target=reader)
    looking.start()
    try:
        while query.isActive and read()[0] < rows:
            compact(spark, out, after_s=0, grace_s=0)
    finally:
        going.set()
        looking.join()
        query.stop()
    assert query.exception() is None
    assert len(seen) > 1
    assert seen == sorted(seen)
    for _ in range(2):  # the stream's next summary confirms what the one before said
        compact(spark, out, after_s=0, grace_s=0)
        rows = feed(10)
        sink()
    compact(spark, out, after_s=0, grace_s=0)
    found, files = read()
    assert rows == found
    assert files <= 2 * FEWEST + 10
    assert lying(tmp_path) <= files + 4 * FEWEST


class Killed(BaseException):
    """As if by a signal."""


def test_a_compaction_that_is_killed_anywhere_leaves_all_as_it_was(spark, tmp_path, feed, sink, read, monkeypatch):
    """Before each thing that it does to the files: the rows are there once, and the next run goes on."""
    monkeypatch.setattr("purgatory.pipeline.spark.compact._FEWEST", 5)
    out = str(tmp_path / OUT)
    left, died = [0], []

    def dying(do):
        def dying(*given):
            left[0] -= 1
            if left[0] < 0:  # and does nothing more: a signal leaves nobody to tidy up
                raise Killed
            return do(*given)

        return dying

    for step in range(15):
        rows = feed(10)
        sink()
        with monkeypatch.context() as patched:
            for name in ("overwrite", "move", "remove"):
                patched.setattr(places, name, dying(getattr(places, name)))
            left[0] = step
            with contextlib.suppress(Killed):
                compact(spark, out, after_s=0, grace_s=0)
        died.append(left[0] < 0)
        assert rows == read()[0]
    assert all(died[:11])
    compact(spark, out, after_s=0, grace_s=0)
    found, files = read()
    assert (rows, True) == (found, files < 25)
    named = {path.rpartition("/")[2] for path in spark.read.parquet(out).inputFiles()}
    for note in (tmp_path / OUT / "_compaction").iterdir():
        assert note.name.endswith((".json", ".crc"))
        named |= {path.rpartition("/")[2] for path in json.loads(note.read_text())["instead_of"]}
    assert not {path.name for path in (tmp_path / OUT).glob("part=*/compacted-*")} - named


STEPS = ("overwrite", "move", "remove")
"""What changes files."""


class Stepped:
    """A compaction in a thread of its own that stops before each of its steps."""

    def __init__(self, spark, out):
        self._spark, self._out = spark, out
        self._may, self._stopped = queue.Queue(), queue.Queue()
        self._ended = False
        self.taken = 0
        self.error = None
        self._thread = threading.Thread(target=self._run)
        self._thread.stepped = self
        self._thread.start()
        self._stopped.get(timeout=120)

    def _run(self):
        try:
            compact(self._spark, self._out, after_s=0, grace_s=0)
        except Exception as error:
            self.error = error
        self._ended = True
        self._stopped.put(None)

    def step(self, do, *given):
        """In the thread: before a step."""
        self._stopped.put(None)
        self._may.get(timeout=120)
        self.taken += 1
        return do(*given)

    def go_on(self, steps=1_000):
        """Let it do so many steps."""
        while steps and not self._ended:
            self._may.put(None)
            self._stopped.get(timeout=120)
            steps -= 1
        return self


def stepped(do):
    def stepping(*given):
        here = getattr(threading.current_thread(), "stepped", None)
        return do(*given) if here is None else here.step(do, *given)

    return stepping


@pytest.mark.parametrize("lease", ["as it is", "no use"])
def test_two_compactions_at_once_lose_nothing(spark, tmp_path, feed, sink, read, monkeypatch, lease):
    """One stopped before any of its steps, the other run meanwhile as a whole or in part: each row is there once.

    The lease as it is: the one that comes second takes the other for dead. No use: neither of them looks at it.
    """
    monkeypatch.setattr("purgatory.pipeline.spark.compact._FEWEST", 5)
    if lease == "no use":
        monkeypatch.setattr(Lease, "still", lambda self: None)
    out = str(tmp_path / OUT)
    for name in STEPS:
        monkeypatch.setattr(places, name, stepped(getattr(places, name)))
    errors, taken = [], 0
    # The steps of the first, then of the second before the first goes on; and whether the stream writes meanwhile.
    turns = [*((step, 1_000, False) for step in (2, 3, 4, 5, 8, 10)), (1, 1, False), (1, 2, False), (4, 3, False)]
    turns += [(3, 1_000, True), (5, 4, True), (8, 7, True)]
    for first, second, meanwhile in turns if lease == "no use" else turns[1::3]:
        rows = feed(10)
        sink()
        if not meanwhile:  # delete what the turn before has replaced, so that all steps are of merging
            compact(spark, out, after_s=DAY, grace_s=0)
        one = Stepped(spark, out).go_on(first)
        other = Stepped(spark, out).go_on(second)
        assert rows == read()[0]
        if meanwhile:
            rows = feed(10)
            sink()
        one.go_on()
        assert rows == read()[0]
        other.go_on()
        assert rows == read()[0]
        errors += [error for error in (one.error, other.error) if error is not None]
        taken = max(taken, one.taken)
    assert taken > 5
    assert errors
    expected = (AnotherHolds, places.PlaceUnusable) if lease == "as it is" else Exception
    assert all(isinstance(error, expected) for error in errors), errors
    for _ in range(3):
        rows = feed(10)
        sink()
        compact(spark, out, after_s=0, grace_s=0)
        assert rows == read()[0]
    named = {path.rpartition("/")[2] for path in spark.read.parquet(out).inputFiles()}
    assert len(named) < 25
    for note in (tmp_path / OUT / "_compaction").glob("*.json"):
        named |= {path.rpartition("/")[2] for path in json.loads(note.read_text())["instead_of"]}
    assert not {path.name for path in (tmp_path / OUT).glob("part=*/*.parquet")} - named


def test_a_compaction_beside_another_is_refused_until_that_one_is_dead(spark, tmp_path, feed, sink):
    """Whoever comes second is told so in a line, unless the first has said nothing for as long as readers are given."""
    feed(20)
    sink()
    out = str(tmp_path / OUT)
    now = time.time()
    with Lease(spark, f"{out}/_compaction/lease", silent_s=60, now=lambda: now).held():
        with pytest.raises(AnotherHolds, match="_compaction/lease: wait until it is done"):
            compact(spark, out, after_s=0, now_s=now + 3_000)
        assert 20 == lying(tmp_path)
        assert 1 == compact(spark, out, after_s=0, now_s=now + 4_000).after


def test_what_is_young_or_few_stays_as_it_is(spark, tmp_path, feed, sink, read):
    """Files younger than asked for are named as they were; replaced ones stay for those who read them."""
    feed(20)
    sink()
    out = str(tmp_path / OUT)
    assert 20 == compact(spark, out, after_s=600).after
    assert 1 == compact(spark, out, after_s=0).after
    assert 1 == compact(spark, out, after_s=0, grace_s=0).after  # one is few, and no later summary confirms it
    assert 21 == lying(tmp_path)
    feed(10)
    sink()
    now = time.time()
    assert 0 == compact(spark, out, after_s=DAY, now_s=now).deleted
    assert 20 == compact(spark, out, after_s=DAY, now_s=now + 4_000).deleted
    assert 150 == read()[0]


def test_an_output_that_isnt_there_is_refused(spark, tmp_path):
    """A folder that no stream has written to is one line."""
    with pytest.raises(places.PlaceMissing, match="_spark_metadata doesn't exist"):
        compact(spark, str(tmp_path))
