"""The command line, the HTTP endpoint and the metrics."""

import json
import urllib.error
import urllib.request
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from purgatory.journal import JournalCollector, JournalStats, read, serve
from purgatory.journal.records.frames import decode, scan


def test_verify_says_whether_a_journal_is_sound(tmp_path, write, said):
    for _ in range(3):
        write(tmp_path, 20)
    assert list(range(60)) == [row.seq for row in read(tmp_path)], "each writer goes on with the sequence"
    assert "60 records, sequence 0 to 59" in said(0, "verify", tmp_path)
    sorted(tmp_path.glob("journal-*"))[1].unlink()
    assert "20 missing" in said(1, "verify", tmp_path)


@pytest.mark.parametrize("command", ["verify", "summary"])
def test_a_folder_without_a_journal_is_named(tmp_path, said, command):
    assert "nowhere" in said(2, command, tmp_path / "nowhere")


def test_tail_prints_the_last_records_as_json_lines(tmp_path, write, said):
    write(tmp_path, 20)
    assert [18, 19] == [json.loads(line)["seq"] for line in said(0, "tail", "-n", "2", tmp_path).splitlines()]


def test_seal_turns_frames_into_parquet(tmp_path, write, said):
    """``seal`` makes Parquet of segments that were sealed without pyarrow."""
    write(tmp_path, 20, parquet=False)
    assert "journal-00000000000000000000-00000000000000000019.parquet\n" == said(0, "seal", tmp_path)


def test_http_gives_frames_after_a_sequence_number(tmp_path, write):
    write(tmp_path, 100)
    with serve(tmp_path, 0) as server:
        with urllib.request.urlopen(f"{server.url}?after=41&limit=10", timeout=30) as answer:
            data = answer.read()
        assert list(range(42, 52)) == [row.seq for frame in scan(data) for row in decode(data, frame).rows()]
        with urllib.request.urlopen(f"{server.url}/tip", timeout=30) as answer:
            assert {"first": 0, "last": 99} == json.load(answer)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{server.url}?after=x", timeout=30)


def test_metrics_are_read_at_scrape():
    registry = CollectorRegistry()
    registry.register(JournalCollector({"broker": Mock(stats=lambda: JournalStats(1, 2, 3, 4, 5, 6, 7, 8, 9))}))
    names = ["rows_written_total", "rows_dropped_total", "buffered_rows", "write_errors_total", "seal_errors_total"]
    names += ["segments_deleted_total", "deleted_bytes_total"]
    values = [registry.get_sample_value(f"purgatory_journal_{name}", {"journal": "broker"}) for name in names]
    assert [1, 2, 3, 4, 5, 8, 9] == values
