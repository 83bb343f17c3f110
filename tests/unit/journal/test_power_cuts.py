"""The state after a power cut: a disk that has forgotten what was not synced."""

import itertools
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from purgatory.journal import Journal, _segments, read, verify
from purgatory.journal.records.folder import END, End, end

#: What a power cut leaves. A file system may write the names of a folder before the contents of its files.
MODELS = ("only what was synced", "names, but no contents that were not synced", "contents, but no names")


@attrs.frozen
class Remains:
    """What is left after a power cut: the names in each folder, and the contents of files, by inode.

    A name has an inode, and says whether that is a folder.
    """

    names: dict[int, dict[str, tuple[int, bool]]]
    contents: dict[int, bytes]
    acknowledged: int

    def restore(self, inode, path):
        """Write a folder as it is after the power cut."""
        path.mkdir(parents=True)
        for name, (child, is_folder) in self.names.get(inode, {}).items():
            if is_folder:
                self.restore(child, path / name)
            else:
                (path / name).write_bytes(self.contents.get(child, b""))


class Disk:
    """Remembers what was synced, and what a power cut just before and after each sync would leave.

    Args:
        root: the folder whose disk this is. It is there already.
        model: of ``MODELS``.

    Attributes:
        acknowledged: how many rows the journal must not lose from now on.
        cuts: what each power cut would leave.
        is_over: whether to note no further cuts.
    """

    def __init__(self, root, model):
        self.acknowledged, self.is_over = 0, False
        self.cuts = []
        self._root = root
        self._model = model
        self._inode = root.stat().st_ino
        self._names, self._contents = {self._inode: {}}, {}
        self._kept = []  # open files, so that no inode is used twice
        self._lock = threading.Lock()

    def fsync(self, descriptor):
        """In the place of ``os.fsync``, without the time that a disk takes."""
        if self.is_over:
            return
        with self._lock:
            self._cut()
            status = os.fstat(descriptor)
            self._kept.append(os.dup(descriptor))
            if stat.S_ISDIR(status.st_mode):
                self._names[status.st_ino] = _names(descriptor)
            else:
                self._contents[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._cut()

    def cut(self):
        """Note what a power cut now would leave."""
        with self._lock:
            self._cut()

    def _cut(self):
        names, contents, acknowledged = dict(self._names), dict(self._contents), self.acknowledged
        for path, _, files in os.walk(self._root):
            inode = Path(path).stat().st_ino
            if self._model == MODELS[1]:
                names[inode] = _names(path)
            elif self._model == MODELS[2]:
                for file in files:
                    with suppress(FileNotFoundError), Path(path, file).open("rb") as opened:
                        contents[os.fstat(opened.fileno()).st_ino] = opened.read()
        self.cuts.append(Remains(names, contents, acknowledged))

    def restored(self, folder):
        """The disks that the power cuts would leave, each with the number of rows that it must have."""
        for number, cut in enumerate(self.cuts):
            cut.restore(self._inode, folder / str(number))
            yield folder / str(number), cut.acknowledged


def _names(folder):
    with os.scandir(folder) as entries:
        return {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries}


@pytest.fixture(params=MODELS)
def disk(request, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", request.param)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    yield disk
    for descriptor in disk._kept:
        os.close(descriptor)


@pytest.mark.parametrize("parquet", [False, None], ids=["frames", "parquet"])
@pytest.mark.parametrize("sync", ["flush", "always"])
def test_power_cut_at_any_point_loses_nothing_that_was_acknowledged(disk, tmp_path, finish, sync, parquet):
    """At each point of a journal's life the rows that ``flush()`` acknowledged are on the disk, and none is doubled."""
    folder = tmp_path / "disk" / "var" / "journal"
    with Journal(folder, sync=sync, parquet=parquet, segment_bytes=1_000, chunk=4, interval_ms=1) as journal:
        for number in range(1, 7):
            finish(journal, 3)
            assert journal.flush(30)
            disk.acknowledged = 3 * number
            disk.cut()
    disk.cut()
    disk.is_over = True
    assert 20 < len(disk.cuts)
    for number, (restored, acknowledged) in enumerate(disk.restored(tmp_path / "after")):
        left = restored / "var" / "journal"
        rows = [row.seq for row in read(left)] if acknowledged else []
        assert list(range(max(acknowledged, len(rows)))) == rows
        if acknowledged:
            assert verify(left).ok
        if acknowledged and number % 8 == 0:
            with Journal(left, parquet=parquet) as again:
                assert acknowledged <= again._next


def test_end_of_a_closed_journal_survives_a_power_cut(disk, tmp_path, finish):
    """The ``.end`` file says which number follows."""
    folder = tmp_path / "disk" / "journal"
    with Journal(folder, parquet=False) as journal:
        finish(journal, 5)
    disk.cut()
    disk.is_over = True
    *_, (restored, _) = disk.restored(tmp_path / "after")
    assert End(5, 0) == end(folder) == end(restored / "journal")


def test_sealing_that_is_repeated_syncs_the_name_before_it_removes_the_rows(disk, tmp_path, monkeypatch, finish):
    """If the sync of a rename failed, the next attempt does it, although the file is there already."""
    folder = tmp_path / "disk" / "journal"
    counter = itertools.count()

    def fails_once(place):
        if next(counter) == 0:
            raise OSError
        sync_folder(place)

    sync_folder = _segments.sync_folder
    with Journal(folder, sync="flush", parquet=False) as journal:
        finish(journal, 3)
        assert journal.flush(30)
        disk.acknowledged = 3
        monkeypatch.setattr(_segments, "sync_folder", fails_once)
    disk.cut()
    disk.is_over = True
    Journal(folder).close()
    for restored, acknowledged in disk.restored(tmp_path / "after"):
        if acknowledged:
            assert [0, 1, 2] == [row.seq for row in read(restored / "journal")]
    assert (folder / END).exists()
