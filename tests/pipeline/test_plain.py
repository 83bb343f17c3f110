"""The pipeline without Spark: workloads, grids, purge runs, the command line's errors."""

import json
import os

import attrs
import numpy as np
import pyarrow as pa
import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.journal.records import JOURNAL, KEEP_KEYS_MS
from purgatory.journal.records.instants import seconds
from purgatory.pipeline._arguments import parser
from purgatory.pipeline._cli import main
from purgatory.pipeline._spark.errors import describe
from purgatory.pipeline._spark.places import for_spark, inside, is_folder, is_table
from purgatory.pipeline._spark.session import WrongSetting, configure
from purgatory.pipeline._summaries.choices import Grid, WrongGrid, choose
from purgatory.pipeline._summaries.idle import NEVER, simulate_purges
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import report_on
from purgatory.pipeline.stream import StreamSettings
from tests.support import Waiting, workloads
from timer import MockTimer


@pytest.mark.parametrize("workload", workloads.WORKLOADS)
def test_the_same_seed_makes_the_same_trace(workload):
    """A workload is a function of its seed."""
    shape = attrs.evolve(workloads.WORKLOADS[workload], operations=200, events=400)
    assert workloads.trace(shape, 5).equals(workloads.trace(shape, 5))
    assert not workloads.trace(shape, 5).equals(workloads.trace(shape, 6))


def test_levels_count_up_by_one_on_each_key(trace_rows):
    """An event's level is the number of the key's events so far."""
    seen = {}
    for row in trace_rows("kafka", operations=10, events=500):
        if row["kind"] == "event":
            (key,), (level,) = row["keys"], row["levels"]
            assert seen.get(key, 0) + 1 == level
            seen[key] = level


def test_no_operation_names_a_key_twice(trace_rows):
    """The keys of one operation are distinct."""
    for row in trace_rows("hot-keys", operations=500, events=10):
        if row["kind"] == "operation":
            assert len(row["keys"]) == len(set(row["keys"]))


@pytest.mark.parametrize("limit", [0, 1, 3, 8, 50])
def test_keys_are_forgotten_as_the_library_forgets_them(limit):
    """Keys are created again as often as in a purgatory under whose keys operations come and go, one at a time."""
    keys = np.random.default_rng(limit).zipf(1.3, 2_000) % 20
    purgatory = DelayedOperationPurgatory("p", timer=MockTimer(), purge_interval=limit)
    for key in keys.tolist():
        purgatory.try_complete_else_watch(Waiting(), [key])
        purgatory.cancel_for_key(key)
    created = purgatory.forgotten_keys + purgatory.known_keys
    at = np.arange(len(keys)) * 2
    again = np.array([next((n * 2 - 1 for n in range(m + 1, len(keys)) if keys[n] == keys[m]), NEVER) for m in at // 2])
    distinct = len(set(keys.tolist()))
    assert [(created - distinct, min(limit, distinct))] == simulate_purges(at, again, keys, [limit])
    purgatory.shutdown()


def test_choice_prefers_the_shortest_timeout_that_will_do():
    """Of the timeouts of a type that meet the target, the first is chosen. A null is never chosen."""
    rows = [
        {"purgatory": "p", "type": kind, "timeout_ms": t, "expiry_share": s + extra}
        for kind, extra in (("A", 0), ("B", 0.005))
        for t, s in ((100, 0.2), (500, 0.009), (900, 0.001))
    ]
    rows.append({"purgatory": "p", "type": "A", "timeout_ms": 2_000, "expiry_share": None})
    found = {"timeouts": rows, "wheels": [], "purges": [], "shards": []}
    expected = [("timeout_ms", "p · A", 500), ("timeout_ms", "p · B", 900)]
    assert expected == [(each.setting, each.of, each.value) for each in choose(found, Grid())]
    assert 900 == choose(found, Grid(target_expiry=0.0001))[0].value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timeouts_ms = []", "timeouts_ms must be a list"),
        ("timeouts_ms = [0]", "at least 1"),
        ("wheel_sizes = [1]", "at least 2"),
        ("colour = 3", "unknown colour"),
        ("timeouts_ms = 5", "timeouts_ms must be a list"),
        ("timeouts_ms = [", "grid.toml"),
        ("target_expiry = 'few'", "target_expiry must be a number of at least 0, got 'few'"),
        ("max_late_ms = -1", "max_late_ms must be a number of at least 0, got -1"),
    ],
)
def test_a_wrong_grid_is_refused_with_a_reason(tmp_path, text, message):
    """A grid that can't be right raises, and says what is wrong."""
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(WrongGrid, match=message):
        Grid.read(path)


def test_a_grid_of_json_must_be_an_object(tmp_path):
    """A list is valid JSON, and is not a grid."""
    path = tmp_path / "grid.json"
    path.write_text("[1]")
    with pytest.raises(WrongGrid, match=r"grid.json must hold an object with settings, got \[1\]"):
        Grid.read(path)


@pytest.mark.parametrize("field", attrs.fields(Grid), ids=lambda field: field.name)
def test_a_grid_file_may_leave_out_any_setting(tmp_path, field):
    """A file with one setting is valid, and the other settings have their defaults."""
    path = tmp_path / "grid.json"
    value = [7, 9] if isinstance(field.default, tuple) else 0.25
    path.write_text(json.dumps({field.name: value}))
    expected = tuple(value) if isinstance(value, list) else value
    assert attrs.evolve(Grid(), **{field.name: expected}) == Grid.read(path)


def test_where_every_tick_is_too_long_all_wheels_of_the_shortest_are_compared():
    """The choice is the wheel with the fewest re-insertions, and not the first one of the table."""
    rows = [
        {"tick_ms": t, "wheel_size": s, "reinsertions": n, "levels": 2, "reinsertions_each": 0.1, "late_ms_at_most": t}
        for t, s, n in ((10, 10, 90), (10, 64, 20), (50, 10, 1))
    ]
    chosen = choose({"timeouts": [], "wheels": rows, "purges": [], "shards": []}, Grid(max_late_ms=5))
    assert [("tick_ms", 10), ("wheel_size", 64)] == [(each.setting, each.value) for each in chosen]


def test_a_grid_file_that_cannot_be_read_is_named_once(tmp_path):
    """The message names the file once, and says what to give."""
    path = tmp_path / "nope"
    with pytest.raises(WrongGrid) as caught:
        Grid.read(path)
    message = f"cannot read the grid file {path}: No such file or directory; give a TOML or JSON file"
    assert message == str(caught.value)


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("60s", 60), ("5m", 300), ("250ms", 0.25), ("1h", 3600)])
def test_lengths_of_time(text, expected):
    """A length of time is written as people write it."""
    assert expected == seconds(text)


FAILED = "[STREAM_FAILED] Query [id = 7] terminated with exception: [FAILED_READ_FILE] Encountered error. KD001"
GONE = "java.io.FileNotFoundException: File x/trace-00000000000000000000-00000000000000000149.parquet does not exist"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{FAILED}\nYou can invalidate.\n=== Streaming Query ===\nId: 7\n+- LocalRelation <empty>\n", FAILED),
        (f"Job aborted: Lost\n\tat org.Here(Here.scala:1)\nCaused by: {GONE}\n\t... 23 more\nDriver stacktrace:", GONE),
        ("", "RuntimeError"),
    ],
)
def test_cause_of_spark_s_report_is_one_line(text, expected):
    """One line of it: the cause's own, or the first. Never a plan's or a stack's."""
    assert expected == describe(RuntimeError(text))


@pytest.mark.parametrize(("given", "keep"), [([], KEEP_KEYS_MS), (["forever"], None), (["90m"], 5_400_000)])
def test_stream_and_replay_keep_keys_alike(given, keep):
    """What isn't said is the same for both, and what is said means the same."""
    option = ["--keep-keys", *given] if given else []
    for words in (["stream", "--in", "x", "--checkpoint", "z"], ["replay", "--trace", "x"]):
        assert keep == parser().parse_args([*words, "--out", "y", *option]).keep_ms


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--journal", "x", "--out", "y", "--window", "soon"],
        ["whatif", "--out", "y"],
        ["nonsense"],
        ["report", "--journal", "", "--out", "o"],
        ["report", "--journal", "j", "--out", "o", "--window", "99999999999999999d"],
        ["report", "--journal", "j", "--out", "o", "--window", f"1{'0' * 400}"],
    ],
)
def test_wrong_arguments_are_refused(arguments, capsys):
    """A wrong command line exits with status 2 and a usage line."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert 2 == raised.value.code
    assert "usage: purgatory pipeline" in capsys.readouterr().err


def test_settings_for_spark_are_handed_to_it(monkeypatch):
    """A master and settings go before what the environment says of a session's start, quoted as they must be."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    configure("spark://host:7077", None, ["spark.driver.extraJavaOptions=-Da=b -Dc"])
    expected = "--master spark://host:7077 --conf 'spark.driver.extraJavaOptions=-Da=b -Dc' --verbose pyspark-shell"
    assert expected == os.environ["PYSPARK_SUBMIT_ARGS"]


@pytest.mark.parametrize("setting", ["spark.x", "x=1", "=1", ""])
def test_what_is_no_setting_is_refused(setting):
    """A setting has a name of Spark's and a value."""
    with pytest.raises(WrongSetting, match="write --conf spark.NAME=VALUE"):
        configure(None, None, [setting])


def test_settings_come_too_late_under_spark_submit(monkeypatch):
    """Where spark-submit has started the JVM, it is to be given them."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    configure(None, None, [])
    with pytest.raises(WrongSetting, match="started by spark-submit"):
        configure("local[2]", None, [])


@pytest.mark.parametrize("change", [{"buckets": 3}, {"partitions": 0}, {"files_out": 0}, {"files_per_batch": 0}])
def test_stream_settings_that_cant_be_are_refused(change):
    """Buckets are a power of two. Nothing is less than one."""
    with pytest.raises(ValueError, match=next(iter(change))):
        StreamSettings(**change)


@pytest.mark.parametrize("command", ["report", "whatif"])
def test_a_folder_that_cant_be_written_is_refused_before_the_work(tmp_path, capsys, command, monkeypatch):
    """A page's folder that can't be made is one line, and nothing was gone over."""
    monkeypatch.setattr(Local, "open", None)
    workloads.write(tmp_path / "journal", workloads.journal(50, seconds=60), JOURNAL, files=1)
    (tmp_path / "file").touch()
    assert 2 == main([command, "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "file" / "out")])
    assert f"{tmp_path}/file/out cannot be used: " in capsys.readouterr().err


def test_what_an_earlier_report_set_aside_is_no_part_of_the_next(tmp_path):
    """A report into the folder of an earlier one leaves no table of that one behind."""
    table = workloads.journal(50, seconds=60)
    place = table.schema.get_field_index("outcome")
    lost = table.set_column(place, "outcome", pa.array(["lost", *table["outcome"].to_pylist()[1:]]))
    for name, rows in (("before", lost), ("after", table)):
        workloads.write(tmp_path / name, rows, JOURNAL, files=1)
        assert 0 == main(["report", "--journal", str(tmp_path / name), "--out", str(tmp_path / "out"), "--quiet"])
        assert (name == "before") == (tmp_path / "out" / "tables" / "quarantine").exists()


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("s3a://bucket/x", None),
        ("dbfs:/x", None),
        ("file:/tmp/x", None),
        ("main.ops.answers", is_table),
        ("./main.ops.answers", is_folder),
        ("var/a.b.c", is_folder),
        ("a.b", is_folder),
        ("12:30", is_folder),
        ("/tmp/a:b/c", is_folder),
    ],
)
def test_place_is_an_address_a_table_or_a_folder(place, kind):
    """A name that is neither a table nor a folder is an address."""
    assert [kind] == ([each for each in (is_table, is_folder) if each(place)] or [None])


def test_name_inside_a_place():
    """A folder is below a folder. A table is beside a table."""
    assert ("out/x", "s3a://b/out/x") == (inside("out", "x"), inside("s3a://b/out/", "x"))
    assert inside("main.ops.report", "x") == "main.ops.report_x"


def test_folder_of_this_machine_is_named_by_its_address(tmp_path, monkeypatch):
    """Spark would look for a plain path in its default file system. What is not here is left to Spark."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    assert f"file://{tmp_path}/a b" == for_spark("a b")
    assert ("nowhere", "main.ops.x", "hdfs://x/y") == tuple(map(for_spark, ("nowhere", "main.ops.x", "hdfs://x/y")))


def test_missing_package_on_a_server_is_named():
    """The line says what to install, and where."""
    error = RuntimeError("PythonException: ...\n  File x\nModuleNotFoundError: No module named 'purgatory'\n")
    expected = "install 'delayed-operation-purgatory[spark]' in the Python of its workers"
    assert expected in describe(error)


def test_report_is_a_call(tmp_path):
    """A program gets the page's path."""
    workloads.write(tmp_path / "journal", workloads.journal(50, seconds=60), JOURNAL, files=1)
    page = report_on(tmp_path / "journal", tmp_path / "out", title="A heading")
    assert tmp_path / "out" / "index.html" == page
    assert "A heading" in page.read_text(encoding="utf-8")
