"""Small files of the data folder that are damaged or missing: a clear line, and a way back."""

import shutil
import time

import pytest
from structlog.testing import capture_logs

from examples.broker.storage.replica_folders import find_topics
from examples.broker.storage.topics import DamagedFile, Topic, TopicStore
from examples.broker.tests.support import append

DAMAGED = [b"", b"{", b"[1]", b"\xff\xfe", b'{"topics": {"t": {"parts": 1}}, "producer_ids": 0}', b'{"topics": {}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_topics_stop_the_node(tmp_path, content):
    """The error names the file and says what to do."""
    (tmp_path / "topics.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"topics\.json is damaged .*: restore it, or move it away"):
        TopicStore(tmp_path)


def test_topics_are_found_by_their_folders(tmp_path, open_log):
    for name in ("a-b-0", "a-b-2", "c-0"):
        open_log(tmp_path / name)
    (tmp_path / "a-b-2" / "topic_id").write_text("4b1f")
    assert {"a-b": Topic("a-b", 3, (), topic_id="4b1f"), "c": Topic("c", 1, ())} == find_topics(tmp_path)


def test_other_files_are_ignored(tmp_path, open_log):
    """A copy in a log's folder, or a folder that is no partition's, does not stop the node."""
    append(open_log(), b"x")
    for name in ("copy.log", "1.log", "00000000000000000000.log.old"):
        (tmp_path / "t-0" / name).write_bytes(b"copy")
    for name in ("t-copy", "é-0"):
        shutil.copytree(tmp_path / "t-0", tmp_path / name)

    assert {"t": Topic("t", 1, ())} == find_topics(tmp_path)
    assert 1 == open_log().next_offset


def test_a_replaced_disk_gives_no_producer_id_twice(tmp_path, monkeypatch):
    """The ids of an empty folder begin above all that the node has given on its earlier disk."""
    earlier = TopicStore(tmp_path / "earlier")
    given = [earlier.next_producer_id() for _ in range(1_500)]
    later = time.time() + 2
    monkeypatch.setattr(time, "time", lambda: later)
    assert max(given) < TopicStore(tmp_path / "replaced").next_producer_id()


@pytest.mark.parametrize("content", [*DAMAGED[:4], b'{"t-0": 1}', b'{"t-0": ["a", 2]}'])
def test_a_damaged_checkpoint_is_moved_aside(tmp_path, content):
    """The node goes on without the lower bounds, and keeps the damaged file for inspection."""
    (tmp_path / "checkpoint.json").write_bytes(content)
    with capture_logs() as lines:
        store = TopicStore(tmp_path)
    assert (0, 0) == store.checkpoint_of("t-0")
    assert content == (tmp_path / "checkpoint.damaged").read_bytes()
    assert ["a damaged checkpoint is moved aside"] == [line["event"] for line in lines]
