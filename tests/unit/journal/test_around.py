"""The command line, the HTTP endpoint and the metrics."""

import json
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from purgatory.journal import JournalCollector, JournalStats, serve
from purgatory.journal.records.frames import decode, scan


def test_verify_says_sound(tmp_path, write, said):
    """`verify` on a good folder prints the counts and exits with 0."""
    write(tmp_path, 20)
    assert "20 records, sequence 0 to 19" in said(0, "verify", tmp_path)


def test_verify_says_not_sound(tmp_path, write, said):
    """`verify` on a folder with a hole exits with 1."""
    write(tmp_path, 20)
    write(tmp_path, 20)
    write(tmp_path, 20)
    (tmp_path / "journal-00000000000000000020-00000000000000000039.parquet").unlink()
    assert "20 missing" in said(1, "verify", tmp_path)


def test_a_folder_without_a_journal_is_named(tmp_path, said):
    """A wrong folder gives a message and exit status 2, not a traceback."""
    assert "nowhere" in said(2, "verify", tmp_path / "nowhere")


def test_tail_prints_the_last_records_as_json_lines(tmp_path, write, said):
    """`tail -n 2` prints the two last records, one JSON object a line."""
    write(tmp_path, 20)
    assert [18, 19] == [json.loads(line)["seq"] for line in said(0, "tail", "-n", "2", tmp_path).splitlines()]


def test_seal_turns_frames_into_parquet(tmp_path, write, said):
    """`seal` makes Parquet of segments that were sealed without pyarrow."""
    write(tmp_path, 20, parquet=False)
    assert "journal-00000000000000000000-00000000000000000019.parquet\n" == said(0, "seal", tmp_path)


def test_http_gives_frames_after_a_sequence_number(tmp_path, write):
    """The endpoint gives the rows above a sequence number, and where the journal ends."""
    write(tmp_path, 100)
    with serve(tmp_path, 0) as server:
        with urllib.request.urlopen(f"{server.url}?after=41&limit=10", timeout=30) as answer:
            data = answer.read()
        rows = [row.seq for frame in scan(data) for row in decode(data, frame).rows()]
        assert list(range(42, 52)) == rows
        with urllib.request.urlopen(f"{server.url}/tip", timeout=30) as answer:
            assert {"first": 0, "last": 99} == json.load(answer)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{server.url}?after=x", timeout=30)


def test_metrics_are_read_at_scrape():
    """Every counter of a journal is exported under the journal's name."""

    class Fake:
        def stats(self):
            return JournalStats(1, 2, 3, 4, 5, 6, 7, 8, 9)

    registry = CollectorRegistry()
    registry.register(JournalCollector({"broker": Fake()}))
    names = (
        "rows_written_total",
        "rows_dropped_total",
        "buffered_rows",
        "write_errors_total",
        "seal_errors_total",
        "segments_deleted_total",
        "deleted_bytes_total",
    )
    values = [registry.get_sample_value(f"purgatory_journal_{name}", {"journal": "broker"}) for name in names]
    assert [1, 2, 3, 4, 5, 8, 9] == values
