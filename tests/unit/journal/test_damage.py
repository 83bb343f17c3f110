"""Damage is found and named, and files of older and newer versions are read correctly."""

import json
import shutil
import urllib.error
import urllib.request

import pyarrow.parquet as pq
import pytest

from purgatory.journal import Journal, JournalDamaged, JournalFormat, _reader, read, serve, verify
from purgatory.journal._cli import main
from purgatory.journal._segments import seal
from purgatory.journal.records import VERSION
from purgatory.journal.records.folder import END, End, dropped, end, open_name, tip
from purgatory.journal.records.parquet import write_groups
from purgatory.journal.summary import records_of


def spoil(path):
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def sealed(tmp_path, write):
    """A sealed segment among three."""
    for _ in range(3):
        write(tmp_path, 4_000)
    return sorted(tmp_path.glob("journal-*.parquet"))[1]


@pytest.fixture
def small(tmp_path, finish):
    """A sealed segment of twelve rows in Parquet."""
    with Journal(tmp_path, instance="broker-1") as journal:
        finish(journal, 12)
    (path,) = tmp_path.glob("journal-*.parquet")
    return path


@pytest.mark.slow
def test_no_byte_of_a_parquet_segment_can_change_unseen(small):
    """The rows are the same only where the checksum's own name has changed: then it is a file without one."""
    data, good = small.read_bytes(), list(read(small.parent))
    unnamed = []
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        small.write_bytes(changed)
        if given(read(small.parent)) == (0, small.name):
            assert not verify(small.parent).ok
            assert (0, small.name) == given(records_of(small))
        else:
            assert good == list(read(small.parent))
            unnamed.append(place)
    assert len(b"purgatory.crc32") + 2 >= len(unnamed)


@pytest.fixture
def of_before(small):
    """The same segment as it was written before there was a checksum of all of it."""
    table = pq.read_table(small)
    pq.write_table(table, small, compression="zstd", coerce_timestamps="us", write_page_checksum=True)
    return small


def test_a_segment_of_before_has_no_checksum_and_is_read(of_before):
    assert b"purgatory.crc32" not in of_before.read_bytes()
    assert ((12, None), True) == (given(read(of_before.parent)), verify(of_before.parent).ok)


def test_a_segment_of_before_has_all_columns_of_its_version(of_before):
    """Without a checksum, a column whose name or type has changed is named: its default would pass for it."""
    table = pq.read_table(of_before)
    checks = table.schema.get_field_index("checks")
    names = [name if name != "instance" else "instanbe" for name in table.column_names]
    narrow = table.set_column(checks, "checks", table.column("checks").cast("int32"))
    for changed, named in (
        (table.rename_columns(names), "no column 'instance'"),
        (table.drop_columns("error"), "no column 'error'"),
        (narrow, "'checks' is of type int32"),
    ):
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), of_before)
        with pytest.raises(JournalDamaged, match=f"{of_before.name}.*{named}"):
            list(read(of_before.parent))
        assert not verify(of_before.parent).ok


def test_other_tools_read_a_segment_with_a_checksum(small):
    table = pq.read_table(small)
    assert (12, "seq") == (table.num_rows, table.column_names[0])
    assert pq.read_metadata(small).metadata[b"purgatory.crc32"] != b"00000000"


@pytest.fixture
def frames(tmp_path, put):
    """A sealed segment of three frames, of four rows each, as the base install leaves it."""
    with Journal(tmp_path / "open") as journal:
        for _ in range(3):
            put(journal, 4)
        (path,) = (tmp_path / "open").glob(".open-*")
        (tmp_path / "sealed").mkdir()
        shutil.copy(path, tmp_path / "sealed")
    return seal(tmp_path / "sealed" / path.name, parquet=False)


def given(rows):
    """How many rows come, and whether the last word is an error that names the file."""
    count = 0
    try:
        for _ in rows:
            count += 1
    except JournalDamaged as error:
        return count, error.name
    return count, None


@pytest.mark.slow
def test_no_byte_of_a_sealed_segment_can_change_unseen(frames):
    data = frames.read_bytes()
    assert (12, None) == given(read(frames.parent))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 255
        frames.write_bytes(changed)
        for rows in (read(frames.parent), records_of(frames.parent), records_of(frames)):
            count, named = given(rows)
            assert frames.name == named, (place, count)
        assert given(read(frames.parent, 7)) in [(4, None), (0, frames.name)]
        assert not verify(frames.parent).ok


def test_a_damaged_journal_is_refused_in_a_line_by_every_command(frames, capsys, said):
    """``summary`` and ``tail`` give 2 and name the segment. With --allow-gaps they go on without."""
    spoil(frames)
    folder = str(frames.parent)
    verdict = verify(folder)
    assert (True, 4, False) == (verdict.damaged_bytes > 0, verdict.missing, verdict.ok)
    for command in (["summary", folder], ["summary", str(frames)], ["tail", "-n", "-1", folder]):
        assert 2 == main(command)
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{frames.name} is damaged or cut short" in line
        assert "row 4 is not in it" in line
    assert ": 8 records of" in said(0, "summary", "--allow-gaps", folder)
    assert 8 == len(said(0, "tail", "-n", "-1", "--allow-gaps", folder).splitlines())


def test_a_segment_that_is_gone_between_two_others_is_missed(tmp_path, sealed, said):
    """Rows that no file holds, with later ones there, are named. The oldest segments may have been deleted."""
    sealed.unlink()
    assert "rows 4000 to 7999 are missing" in said(2, "summary", tmp_path)
    assert (4_000, 8_000) == (len(list(read(tmp_path, 7_999))), len(list(read(tmp_path, allow_gaps=True))))
    min(tmp_path.glob("journal-*")).unlink()
    assert 8_000 == next(read(tmp_path)).seq


def test_the_newest_segments_are_missed_by_what_the_writer_left(tmp_path, sealed, write, said):
    """A closed journal says how far it goes: its last segments are missed like any, and no number is given again."""
    assert End(12_000) == end(tmp_path)
    max(tmp_path.glob("journal-*")).unlink()
    assert {"first": 0, "last": 11_999} == tip(tmp_path)
    assert (8_000, 4_000, 11_999) == (verify(tmp_path).rows, verify(tmp_path).missing, verify(tmp_path).last)
    with pytest.raises(JournalFormat, match="rows 8000 to 11999 are missing"):
        list(read(tmp_path))
    assert 8_000 == len(list(read(tmp_path, allow_gaps=True)))
    for command in (["summary"], ["tail", "-n", "3"]):
        assert "rows 8000 to 11999 are missing" in said(2, *command, tmp_path)
    last = said(0, "tail", "-n", "3", "--allow-gaps", tmp_path).splitlines()
    assert [7_997, 7_998, 7_999] == [json.loads(line)["seq"] for line in last]
    write(tmp_path, 10)
    assert [*range(8_000), *range(12_000, 12_010)] == [row.seq for row in read(tmp_path, allow_gaps=True)]


def test_rows_are_missed_though_no_segment_is_left_that_has_any(tmp_path, write):
    write(tmp_path, 100)
    (path,) = tmp_path.glob("journal-*")
    path.rename(tmp_path / open_name(0)).write_bytes(b"")
    assert (0, 100, 99) == (verify(tmp_path).rows, verify(tmp_path).missing, verify(tmp_path).last)
    with pytest.raises(JournalFormat, match="rows 0 to 99 are missing"):
        list(read(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "\xff", "[" * 100_000, '{"next": 7}', '{"next": null, "dropped": 0}'),
        *('{"next": 1e999, "dropped": 0}', '{"next": "7", "dropped": 0}', '{"next": -7, "dropped": 0}'),
        *('{"next": 7, "dropped": -1}', '{"next": 7.5, "dropped": 0}', '{"next": true, "dropped": 0}'),
        *(f'{{"next": {2**63}, "dropped": 0}}',),
    ],
)
def test_of_an_end_that_is_not_whole_nothing_is_believed(tmp_path, small, text):
    """A machine that lost power while it was written has a journal all the same, as one of before has."""
    (tmp_path / END).write_text(text, encoding="latin-1")
    assert End() == end(tmp_path)
    assert (12, True) == (tip(tmp_path)["last"] + 1, verify(tmp_path).ok)
    (tmp_path / END).unlink()
    assert 12 == len(list(read(tmp_path)))
    (tmp_path / END).mkdir()  # or it can't be read at all
    assert (End(), 12) == (end(tmp_path), len(list(read(tmp_path))))


def test_a_copy_of_a_folder_that_grows_begins_with_its_end(tmp_path, write):
    """Later segments are in the copy or not. Either way it has all that its end speaks of."""
    write(tmp_path / "live", 10)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "live" / END, tmp_path / "copy")
    listed = sorted((tmp_path / "live").glob("journal-*"))
    write(tmp_path / "live", 10)
    for path in listed:
        shutil.copy(path, tmp_path / "copy")
    assert (10, True) == (len(list(read(tmp_path / "copy"))), verify(tmp_path / "copy").ok)
    shutil.copy(tmp_path / "live" / END, tmp_path / "copy")
    assert (10, False) == (verify(tmp_path / "copy").missing, verify(tmp_path / "copy").ok)


@pytest.mark.parametrize("parquet", [True, False])
def test_a_segment_that_is_sealed_as_it_is_verified_is_looked_at_under_its_new_name(
    tmp_path, write, monkeypatch, parquet
):
    for _ in range(3):
        write(tmp_path, 10, parquet=False)
    files = sorted(tmp_path.glob("_journal-*"))
    for place, first in ((1, 10), (2, 20)):
        files[place] = files[place].rename(tmp_path / open_name(first))
    look = _reader._look

    def sealed_first(segment):
        if segment.path in files[1:]:
            seal(segment.path, parquet=parquet)
        return look(segment)

    monkeypatch.setattr(_reader, "_look", sealed_first)
    verdict = verify(tmp_path)
    assert (30, 0, 29, True) == (verdict.rows, verdict.first, verdict.last, verdict.ok)
    assert not list(tmp_path.glob(".open-*"))
    both = tmp_path / open_name(20)
    both.write_bytes(b"PURJ")

    def removed_first(segment):
        both.unlink(missing_ok=segment.path != both)
        return look(segment)

    monkeypatch.setattr(_reader, "_look", removed_first)
    assert (30, 0) == (verify(tmp_path).rows, verify(tmp_path).doubled)


@pytest.mark.parametrize(("count", "rows"), [(1, 30), (3, 10)])
def test_what_is_deleted_as_it_is_verified_is_not_missed(tmp_path, write, monkeypatch, count, rows):
    """The oldest segments may go at any time, also when some of them were looked at."""
    for _ in range(4):
        write(tmp_path, 10)
    files = sorted(tmp_path.glob("journal-*"))
    look, seen = _reader._look, []

    def deleted_first(segment):
        seen.append(segment.path)
        if segment.path == files[count - 1]:
            for path in files[:count]:
                path.unlink()
        return look(segment)

    monkeypatch.setattr(_reader, "_look", deleted_first)
    verdict = verify(tmp_path)
    assert (rows + 10 * (count - 1), 0, 39, True) == (verdict.rows, verdict.missing, verdict.last, verdict.ok)
    assert files == seen


def test_no_number_is_given_twice_after_a_kill_either(tmp_path, write, reopen):
    """Sealing a killed writer's segment records in the folder how far it goes."""
    write(tmp_path, 10, parquet=False)
    reopen(tmp_path)
    (tmp_path / END).unlink()
    assert 0 == main(["seal", str(tmp_path)])
    assert End(10) == end(tmp_path)
    (path,) = tmp_path.glob("journal-*")
    path.unlink()
    write(tmp_path, 1)
    assert [10] == [row.seq for row in read(tmp_path)]


@pytest.fixture
def run(tmp_path, finish, put):
    """A writer's life: rows that are written, and then as many as said that can't be."""

    def run(written, dropped):
        with Journal(tmp_path) as journal:
            put(journal, written)
            finish(journal, dropped, checks="none")

    return run


def test_what_was_dropped_after_the_last_row_is_in_the_folder(tmp_path, run, said):
    """A journal that is closed says it all, and the next one's first frame takes it over: it counts once."""
    run(4, 6)
    assert (6, End(4, 6)) == (dropped(tmp_path), end(tmp_path))
    assert "6 more were dropped by the writer" in said(0, "verify", tmp_path)
    for life, expected in (((0, 0), (6, End(4, 6))), ((0, 2), (8, End(4, 8))), ((3, 0), (8, End(7, 0)))):
        run(*life)
        assert expected == (dropped(tmp_path), end(tmp_path))
    run(1, 5)
    assert (13, 8, True) == (dropped(tmp_path), verify(tmp_path).rows, verify(tmp_path).ok)


def test_an_end_that_rows_follow_says_nothing_of_what_was_dropped(tmp_path, run):
    """The next writer's first frame records what it took over. Killed then, it leaves the end of before."""
    run(4, 6)
    before = (tmp_path / END).read_bytes()
    run(1, 0)
    (tmp_path / END).write_bytes(before)
    assert (6, End(4, 6)) == (dropped(tmp_path), end(tmp_path))


def test_the_newest_segments_are_missed_where_a_later_one_was_begun(tmp_path, sealed, said):
    """An open segment is begun once all rows before its number are in others: it proves them, though it is empty."""
    (tmp_path / END).unlink()
    max(tmp_path.glob("journal-*")).unlink()
    assert (8_000, True) == (tip(tmp_path)["last"] + 1, verify(tmp_path).ok)
    (tmp_path / open_name(12_000)).touch()
    assert {"first": 0, "last": 11_999} == tip(tmp_path)
    assert (8_000, 4_000, 11_999) == (verify(tmp_path).rows, verify(tmp_path).missing, verify(tmp_path).last)
    assert "4000 missing" in said(1, "verify", tmp_path)
    assert "rows 8000 to 11999 are missing" in said(2, "summary", tmp_path)


def test_a_journal_that_is_just_begun_misses_nothing(tmp_path):
    (tmp_path / open_name(0)).touch()
    assert (True, {"first": 0, "last": -1}, []) == (verify(tmp_path).ok, tip(tmp_path), list(read(tmp_path)))


def test_a_torn_tail_is_no_damage(frames):
    """A half written frame of a killed writer in an open segment is skipped. In the middle of one it is not."""
    data = frames.read_bytes()
    frames.unlink()
    torn = frames.with_name(open_name(0))
    for cut in range(1, 100):
        torn.write_bytes(data[:-cut])
        assert (8, None) == given(read(torn.parent))
        assert verify(torn.parent).ok
    torn.write_bytes(data[:30] + data[31:])
    assert (0, torn.name) == given(read(torn.parent))


def test_a_damaged_journal_is_not_served(frames):
    """Over HTTP a damaged journal is an error that says so: frames made of the rest would number it again."""
    spoil(frames)
    with serve(frames.parent, 0) as server, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(server.url)
    with refused.value as answer:
        assert 500 == answer.code
        assert frames.name in answer.read().decode()


@pytest.mark.parametrize("keep", [0, 3, 500, -500, -12, -8, -4, -1])
def test_a_segment_that_is_empty_or_cut_short_is_named_in_one_line(tmp_path, sealed, keep, said):
    """Arrow does not see it."""
    sealed.write_bytes(sealed.read_bytes()[:keep])
    out = said(1, "verify", tmp_path)
    (line,) = [line for line in out.splitlines() if sealed.name in line]
    assert "damaged or cut short" in line
    assert "8000 records" in out
    assert (4_000, sealed.name) == given(read(tmp_path))


@pytest.mark.parametrize(("version", "hint"), [(VERSION + 1, "upgrade the reader"), (1, "it was never released")])
def test_a_segment_of_another_version_is_refused(tmp_path, sealed, version, hint, said):
    table = pq.read_table(sealed)
    other = table.replace_schema_metadata({"purgatory.version": str(version)})
    with sealed.open("wb") as file:
        write_groups([other], other.schema, file)
    with pytest.raises(JournalFormat, match=f"{sealed.name}.*version {version}.*{hint}"):
        list(read(tmp_path))
    assert hint in said(2, "verify", tmp_path)
