"""One process a data folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.broker.storage.folder_lock import FolderInUse, FolderLock, folder_id

ROOT = Path(__file__).parents[5]
HOLD = """
import sys
from pathlib import Path
from examples.broker.storage.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_held_folder_is_refused(tmp_path, holder):
    """A second owner gets an error with the folder, and the process that has it."""
    with pytest.raises(FolderInUse, match=f"{tmp_path} is in use by process {holder.pid}"):
        FolderLock(tmp_path)


def test_a_killed_holder_leaves_the_folder_free(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(60)
    FolderLock(tmp_path).release()


def test_a_folder_is_free_once_it_is_released(tmp_path):
    """Until then it is rejected in the same process as well."""
    for _ in range(2):
        lock = FolderLock(tmp_path / "new")
        with pytest.raises(FolderInUse):
            FolderLock(tmp_path / "new")
        lock.release()


def test_a_folder_belongs_to_one_node(tmp_path):
    """It has an id of its own, which stays. A node with another id is rejected, with the way out."""
    found = folder_id(tmp_path, 3)
    assert found == folder_id(tmp_path, 3)
    assert found != folder_id(tmp_path.parent, 3)
    with pytest.raises(OSError, match="belongs to node 3, got node 4: pass its id, or another --data"):
        folder_id(tmp_path, 4)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"node_id": 3}', '{"node_id": null, "folder_id": "a"}'])
def test_a_damaged_owner_stops_the_node(tmp_path, content):
    (tmp_path / "node.json").write_text(content)
    with pytest.raises(OSError, match=r"node\.json is damaged .*: remove it, if this folder belongs to node 3"):
        folder_id(tmp_path, 3)
