"""Small files of the data folder that are damaged or missing: a clear line, and a way back."""

import pytest
from structlog.testing import capture_logs

from examples.broker.storage.log import Log
from examples.broker.storage.topics import DamagedFile, Topic, TopicStore

DAMAGED = [b"", b"{", b"[1]", b"\xff\xfe", b'{"topics": {"t": {"parts": 1}}, "producer_ids": 0}', b'{"topics": {}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_topics_stop_the_node(tmp_path, content):
    """The error names the file and says what to do."""
    (tmp_path / "topics.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"topics\.json is damaged .*: restore it, or move it away"):
        TopicStore(tmp_path)


def test_topics_are_found_by_their_folders(tmp_path):
    """Without the file, topics have the partitions of their folders, and no producer id is given a second time."""
    store = TopicStore(tmp_path)
    store.add(Topic("a-b", 3, (1,)), Topic("c", 1, (1,)))
    given = [store.next_producer_id() for _ in range(3)]
    for name in ("a-b-0", "a-b-2", "c-0"):
        Log(tmp_path / name).close()
    (tmp_path / "topics.json").unlink()

    with capture_logs() as lines:
        again = TopicStore(tmp_path)
    assert {"a-b": Topic("a-b", 3, (1,)), "c": Topic("c", 1, (1,))} == again.topics
    assert max(given) < again.next_producer_id()
    assert ["topics.json is missing"] == [line["event"] for line in lines]


def test_an_empty_folder_is_not_worth_a_line(tmp_path):
    """A new node has no topics, and says nothing of it."""
    with capture_logs() as lines:
        assert {} == TopicStore(tmp_path).topics
    assert [] == lines


@pytest.mark.parametrize("content", [*DAMAGED[:4], b'{"t-0": 1}', b'{"t-0": ["a", 2]}'])
def test_a_damaged_checkpoint_is_moved_aside(tmp_path, content):
    """The node goes on without the lower bounds, and keeps the damaged file for inspection."""
    (tmp_path / "checkpoint.json").write_bytes(content)
    with capture_logs() as lines:
        store = TopicStore(tmp_path)
    assert (0, 0) == store.checkpoint_of("t-0")
    assert content == (tmp_path / "checkpoint.damaged").read_bytes()
    assert ["a damaged checkpoint is moved aside"] == [line["event"] for line in lines]
