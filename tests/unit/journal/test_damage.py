"""What is damaged is found and named, and what an older or a newer program wrote is read for what it is."""

import random
import zlib
from array import array

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.journal import JournalFormat, read, verify
from purgatory.journal.cli import main
from purgatory.journal.records import TRACE, VERSION
from purgatory.journal.records.folder import sealed_name
from purgatory.journal.records.frames import HEAD_BYTES, Batch, decode, encode, frame_at, packed
from purgatory.journal.records.parquet import to_arrow, write, write_table


@pytest.fixture
def sealed(tmp_path, write):
    """A sealed segment among three."""
    for _ in range(3):
        write(tmp_path, 4_000)
    return sorted(tmp_path.glob("journal-*.parquet"))[1]


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_in_a_sealed_segment_are_found(tmp_path, sealed, seed):
    """Wherever among its pages bytes have changed, the segment isn't taken as sound."""
    rng = random.Random(seed)
    data = bytearray(sealed.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    start = rng.randrange(4, len(data) - footer - 200)
    data[start : start + 200] = rng.randbytes(200)
    sealed.write_bytes(data)
    assert not verify(tmp_path).sound
    with pytest.raises(JournalFormat, match=sealed.name):
        list(read(tmp_path))


@pytest.mark.parametrize("keep", [0, 3, 500, -1])
def test_a_segment_that_is_empty_or_cut_short_is_named_in_one_line(tmp_path, sealed, keep, capsys):
    """`verify` says which file it is, goes on with the others, and gives 1."""
    sealed.write_bytes(sealed.read_bytes()[:keep])
    assert 1 == main(["verify", str(tmp_path)])
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if sealed.name in line]
    assert "damaged or cut short" in line
    assert "8000 records" in out


def test_a_segment_of_a_newer_version_is_refused(tmp_path, sealed, capsys):
    """Sealed as Parquet too, what a newer program wrote is refused with advice, not misread."""
    table = pq.read_table(sealed)
    newer = table.replace_schema_metadata({"purgatory.version": str(VERSION + 1)})
    with sealed.open("wb") as file:
        write_table(newer, file)
    with pytest.raises(JournalFormat, match=f"{sealed.name}.*version {VERSION + 1}.*upgrade the reader"):
        list(read(tmp_path))
    assert 2 == main(["verify", str(tmp_path)])
    assert "upgrade the reader" in capsys.readouterr().err


def old_trace():
    """A frame of a trace as version 1 wrote it: the operation names its purgatory, the event none."""
    groups = [["operation", "produce", "op-1", ["a"], "DelayedProduce"], ["event", "", None, ["a"], ""]]
    numbers = {name: packed([1, 2]) for name in ("ts", "delay_ms", "levels")}
    batch = Batch(TRACE, 0, 0, groups, array("I", [0, 1]), {**numbers, "levels.n": array("q", [1, 1])})
    data = bytearray(encode(batch))
    data[4:6] = (1).to_bytes(2, "little")
    head, payload = bytes(data[: HEAD_BYTES - 4]), bytes(data[HEAD_BYTES:])
    data[HEAD_BYTES - 4 : HEAD_BYTES] = zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little")
    return batch, bytes(data)


def test_an_old_trace_is_of_one_purgatory(tmp_path):
    """In version 1 keys were of all purgatories together: so the rows are of one, in frames and in Parquet."""
    batch, data = old_trace()
    assert {""} == {row.purgatory for row in decode(data, frame_at(data, 0)).rows()}
    table = pa.Table.from_batches([to_arrow(batch)]).replace_schema_metadata({"purgatory.version": "1"})
    with (tmp_path / sealed_name(TRACE, 0, 1, parquet=True)).open("wb") as file:
        write_table(table, file)
    assert [("", "op-1"), ("", None)] == [(row.purgatory, row.operation) for row in read(tmp_path)]


def test_a_trace_of_this_version_names_its_purgatories(tmp_path):
    """What is written now is read with the purgatories that it names."""
    batch, _ = old_trace()
    write(tmp_path / sealed_name(TRACE, 0, 1, parquet=True), TRACE, [batch])
    assert ["produce", ""] == [row.purgatory for row in read(tmp_path)]
