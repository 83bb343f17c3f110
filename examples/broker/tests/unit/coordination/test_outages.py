"""What the store in a file logs while it is unreachable. The thread's work is done by the test."""

import sqlite3

from structlog.testing import capture_logs

from examples.broker.coordination import tree_file
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Unreachable


def test_an_outage_of_the_file_is_logged_once(tmp_path, monkeypatch):
    """One line when it begins and one when it ends, however often the thread looks."""
    store = EmbeddedStore(tmp_path / "tree.sqlite", poll_ms=1, thread=False)
    outcomes = [True, False, False, False, True, True, False, False]

    def poll():
        is_reachable = outcomes.pop(0)
        store._closed = not outcomes
        if not is_reachable:
            raise Unreachable("", "disk I/O error")

    monkeypatch.setattr(store, "poll", poll)
    with capture_logs() as lines:
        store._run()
    assert ["store unreachable", "store reachable again", "store unreachable"] == [line["event"] for line in lines]


def test_a_start_on_a_full_disk_uses_the_reserve(tmp_path, monkeypatch):
    """The space that is kept beside the file is released, and kept again once there is space."""
    path = tmp_path / "tree.sqlite"
    reserve, open_file = tmp_path / "tree.sqlite.reserve", EmbeddedStore._open

    def full(store):
        if reserve.exists():
            raise sqlite3.OperationalError("database or disk is full")
        return open_file(store)

    for is_full in (False, True):
        store = EmbeddedStore(path, thread=False)
        with monkeypatch.context() as patch:
            if is_full:
                patch.setattr(EmbeddedStore, "_open", full)
            store.start()
        assert 1_000_000 < reserve.stat().st_size
        store.close()


def test_a_full_disk_keeps_no_part_of_a_reserve(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    tree_file.keep_reserve(tmp_path / "tree.sqlite")
    assert [] == list(tmp_path.iterdir())
    assert not tree_file.release_reserve(tmp_path / "tree.sqlite")
