import json
import zlib
from array import array
from itertools import product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.journal import verify
from purgatory.journal._segments import seal
from purgatory.journal._serve import from_rows
from purgatory.journal.records import JOURNAL
from purgatory.journal.records.errors import JournalFormat
from purgatory.journal.records.folder import open_name
from purgatory.journal.records.frames import HEAD_BYTES, Batch, decode, encode, frame_at, packed, scan
from purgatory.journal.records.ranges import read_range


def batch(first=0, rows=3, checks=None):
    numbers = {name: packed(range(rows)) for name in ("created", "delay_ms", "finished")}
    numbers["checks"] = packed(checks or range(rows))
    group = ["fetch", "Fetch", None, ["orders-1"], "", "satisfied", None, None, None]
    return Batch(JOURNAL, first, 0, [group], array("I", [0] * rows), numbers)


def altered(data, change):
    """The same frame with its header's JSON changed, and a right checksum."""
    length = int.from_bytes(data[HEAD_BYTES : HEAD_BYTES + 4], "little")
    header = json.loads(data[HEAD_BYTES + 4 : HEAD_BYTES + 4 + length])
    change(header)
    text = json.dumps(header).encode()
    payload = len(text).to_bytes(4, "little") + text + data[HEAD_BYTES + 4 + length :]
    head = bytearray(data[: HEAD_BYTES - 4])
    head[8:12] = len(payload).to_bytes(4, "little")
    return bytes(head) + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little") + payload


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=50))
def test_a_frame_gives_back_what_was_put_in(checks):
    data = encode(batch(7, len(checks), checks))
    (frame,) = scan(data)
    assert checks == [row.checks for row in decode(data, frame).rows()]
    assert (7, 6 + len(checks)) == (frame.first, frame.last)


@given(st.data())
def test_a_frame_cut_at_any_byte_leaves_those_before_it(data):
    """Whatever byte the file ends at, the whole frames before it are read and the torn one is not."""
    whole = [encode(batch(0)), encode(batch(3)), encode(batch(6))]
    text = b"".join(whole)
    cut = data.draw(st.integers(0, len(text) - 1))
    expected = [n * 3 for n in range(3) if sum(map(len, whole[: n + 1])) <= cut]
    assert expected == [frame.first for frame in scan(text[:cut])]


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_never_read_as_data(place, mask):
    """A frame with any byte changed is not accepted, and its neighbours are still found."""
    whole = encode(batch(0)), encode(batch(3)), encode(batch(6))
    broken = bytearray(whole[1])
    broken[place % len(broken)] ^= mask
    assert [0, 6] == [frame.first for frame in scan(whole[0] + bytes(broken) + whole[2])]


def test_a_newer_writer_s_columns_are_skipped_and_missing_ones_get_their_default():
    """A reader reads a frame that has columns it doesn't know and lacks some that it knows.

    A record of an earlier writer says nothing about its end.
    """

    def change(header):
        assert ["error", "ended_by", "normal_ends"] == header["texts"][-3:]
        header["texts"] = ["region", *header["texts"][:-3]]
        header["groups"] = [["eu", *group[:-3]] for group in header["groups"]]
        header["columns"] = [("weight" if name == "checks" else name, *rest) for name, *rest in header["columns"]]

    data = altered(encode(batch()), change)
    rows = list(decode(data, frame_at(data, 0)).rows())
    assert [("fetch", ("orders-1",), "satisfied", None, 0)] * 3 == [
        (row.purgatory, row.keys, row.outcome, row.error, row.checks) for row in rows
    ]
    assert [(None, False, None)] * 3 == [(row.ended_by, row.is_censored, row.normal_ends) for row in rows]


@pytest.mark.parametrize(("version", "hint"), [(99, "upgrade the reader"), (1, "it was never released")])
def test_an_unknown_version_is_refused(version, hint):
    data = bytearray(encode(batch()))
    data[4:6] = version.to_bytes(2, "little")
    head, payload = bytes(data[: HEAD_BYTES - 4]), bytes(data[HEAD_BYTES:])
    data[HEAD_BYTES - 4 : HEAD_BYTES] = zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little")
    with pytest.raises(JournalFormat, match=f"version {version}.*{hint}"):
        decode(bytes(data), frame_at(bytes(data), 0))


def test_an_unknown_schema_is_refused():
    data = altered(encode(batch()), lambda header: header.update(schema="diary"))
    with pytest.raises(JournalFormat, match="diary"):
        decode(data, frame_at(data, 0))


def test_many_small_frames_are_read_as_one_batch(tmp_path):
    frames = [encode(batch(first)) for first in range(0, 300, 3)]
    frames[50] = b"damaged"
    (tmp_path / open_name(0)).write_bytes(b"".join(frames))
    (part,) = read_range(tmp_path, JOURNAL, 9, 289)
    assert [*range(10, 150), *range(153, 290)] == part.column("seq").to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["open", "sealed"])
def test_operations_with_many_keys_are_not_held_all_at_once(tmp_path, form):
    """A row of 1,000 keys is 8 bytes in a frame and 12 KB in Arrow, which cannot hold 2 GB of keys in one batch."""
    groups = [["fetch", "Fetch", None, [f"orders-{n}" for n in range(1_000)], "", "satisfied", None, None, None]]
    data = b"".join(encode(attrs.evolve(batch(first, 2_000), groups=groups)) for first in range(0, 16_000, 2_000))
    (tmp_path / open_name(0)).write_bytes(data)
    if form == "sealed":
        seal(tmp_path / open_name(0))
    parts = list(read_range(tmp_path, JOURNAL, 0, 16_000))
    assert max(part.nbytes for part in parts) < 128 << 20
    assert list(range(1, 16_000)) == [seq for part in parts for seq in part.column("seq").to_pylist()]
    assert (16_000, True) == (verify(tmp_path).rows, verify(tmp_path).ok)


def test_half_a_character_is_another_name_and_is_written_out():
    """Names of backslashes, half characters (lone surrogates) and what these are written as are as many names."""
    names = {"".join(parts) for count in range(1, 6) for parts in product(["\\", "ud800", "\ud800", "x"], repeat=count)}
    names = ["svc\udc80", "svc\udc81", "svc?", *sorted(names)]
    groups = [[name, "Fetch", name, ["a", "\udc80"], "", "satisfied", "KeyError: \udcff", None, None] for name in names]
    numbers = {name: column[:1] * len(names) for name, column in batch().numbers.items()}
    data = encode(Batch(JOURNAL, 0, 0, groups, array("I", range(len(names))), numbers))
    (frame,) = scan(data)
    rows = list(decode(data, frame).rows())
    found = [row.purgatory for row in rows]
    assert len(names) == len(set(found))
    assert found == [row.operation for row in rows]
    assert all(name == text for name, text in zip(names, found, strict=True) if name.isascii() and "ud800" not in name)
    assert ["svc\\udc80", "svc\\udc81", "svc?"] == found[:3]
    assert (("a", "\\udc80"), "KeyError: \\udcff") == (rows[0].keys, rows[0].error)
    assert "".join(found).encode()
    again = encode(from_rows(JOURNAL, rows), read=True)  # as it is served to readers elsewhere
    (frame,) = scan(again)
    assert found == [row.purgatory for row in decode(again, frame).rows()]
