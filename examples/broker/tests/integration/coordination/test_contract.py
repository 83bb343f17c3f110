"""What any store promises, held against the embedded one and a real ZooKeeper."""

import itertools
import threading
import time

import pytest

from examples.broker.coordination import store as s
from tests.support import eventually, run_threads


def test_created_node_is_read(store):
    """A node is read as it was created, at version 0."""
    store.multi([s.Create("/a", b"data")])

    assert s.Node(b"data", 0) == store.get("/a")


def test_writes_of_others_are_read_after_a_sync(stores):
    """All earlier writes of another process are read, whichever server this one is connected to."""
    writer, reader = stores.open(), stores.open()
    writer.multi([s.Create("/a", b"0")])
    for number in range(1, 50):
        writer.multi([s.Set("/a", b"%d" % number)])
        reader.sync()
        assert b"%d" % number == reader.get("/a").data


def test_create_if_absent(store):
    """A node that is there can't be created."""
    store.multi([s.Create("/a", b"1")])

    with pytest.raises(s.NodeExists):
        store.multi([s.Create("/a", b"2")])
    assert b"1" == store.get("/a").data


def test_create_needs_parent(store):
    """A node is created only under one that is there."""
    with pytest.raises(s.NoNode):
        store.multi([s.Create("/a/b")])


def test_missing_node(store):
    """What isn't there can't be read, set, deleted, checked or listed."""
    for call in (
        lambda: store.get("/a"),
        lambda: store.children("/a"),
        lambda: store.multi([s.Set("/a", b"")]),
        lambda: store.multi([s.Delete("/a")]),
        lambda: store.multi([s.Check("/a")]),
        lambda: store.watch_children("/a", lambda: None),
    ):
        with pytest.raises(s.NoNode):
            call()


def test_set_counts_version(store):
    """Every set makes the version one larger."""
    store.multi([s.Create("/a"), s.Set("/a", b"1"), s.Set("/a", b"2")])

    assert s.Node(b"2", 2) == store.get("/a")


def test_set_if_version(store):
    """A set that names another version than the node's changes nothing."""
    store.multi([s.Create("/a", b"0")])
    store.multi([s.Set("/a", b"1", version=0)])

    with pytest.raises(s.BadVersion):
        store.multi([s.Set("/a", b"2", version=0)])
    assert s.Node(b"1", 1) == store.get("/a")


def test_delete_if_version(store):
    """A delete that names another version than the node's leaves it there."""
    store.multi([s.Create("/a"), s.Set("/a", b"1")])

    with pytest.raises(s.BadVersion):
        store.multi([s.Delete("/a", version=0)])
    store.multi([s.Delete("/a", version=1)])

    with pytest.raises(s.NoNode):
        store.get("/a")


def test_recreated_node_starts_over(store):
    """A node deleted and created again is at version 0 again."""
    store.multi([s.Create("/a"), s.Set("/a", b"1")])
    store.multi([s.Delete("/a"), s.Create("/a", b"new")])

    assert s.Node(b"new", 0) == store.get("/a")


def test_delete_only_leaves(store):
    """A node with children isn't deleted."""
    store.multi([s.Create("/a"), s.Create("/a/b")])

    with pytest.raises(s.NotEmpty):
        store.multi([s.Delete("/a")])


def test_children_are_direct_and_sorted(store):
    """Children are the names directly below a node, sorted."""
    store.multi([s.Create("/a"), s.Create("/a/c"), s.Create("/a/b"), s.Create("/a/b/d"), s.Create("/ab")])

    assert ["b", "c"] == store.children("/a")
    assert [] == store.children("/a/c")


def test_multi_is_all_or_nothing(store):
    """When one operation of several fails, none is done, and its error says whose it was."""
    store.multi([s.Create("/a")])

    with pytest.raises(s.NodeExists) as caught:
        store.multi([s.Create("/b"), s.Set("/a", b"1"), s.Create("/a"), s.Create("/c")])

    assert "/a" == caught.value.path
    assert s.Node(b"", 0) == store.get("/a")
    with pytest.raises(s.NoNode):
        store.get("/b")


def test_check_guards_other_writes(store):
    """A write that depends on a node which it doesn't change fails once that node changed."""
    store.multi([s.Create("/epoch"), s.Create("/a")])
    store.multi([s.Check("/epoch", 0), s.Set("/a", b"1")])
    store.multi([s.Set("/epoch", b"2")])

    with pytest.raises(s.BadVersion):
        store.multi([s.Check("/epoch", 0), s.Set("/a", b"2")])
    assert b"1" == store.get("/a").data


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "//a", "/a/../b", "/a/./b"])
def test_bad_path(store, path):
    """A string that is not a path is rejected before anything is sent."""
    for call in (
        lambda: store.get(path),
        lambda: store.children(path),
        lambda: store.multi([s.Create(path)]),
        lambda: store.watch(path, lambda: None),
    ):
        with pytest.raises(ValueError, match="path"):
            call()


def test_sessions_share_one_tree(stores, store):
    """One session's writes are read by the next one."""
    store.multi([s.Create("/a", b"x")])

    assert b"x" == stores.open().get("/a").data


def test_one_creation_succeeds(stores):
    """Of several sessions that create one node at once, exactly one succeeds."""
    contenders = [stores.open() for _ in range(4)]
    stores.open().multi([s.Create("/round")])
    for number in range(5):
        won, barrier = [], threading.Barrier(len(contenders))

        def contend(mine, number=number, won=won, barrier=barrier):
            barrier.wait(60)
            try:
                mine.multi([s.Create(f"/round/{number}", ephemeral=True)])
            except s.NodeExists:
                return
            won.append(mine)

        run_threads(*(lambda mine=mine: contend(mine) for mine in contenders))
        assert 1 == len(won)


def test_set_if_version_counts_exactly(stores):
    """A counter that several sessions raise by version, retrying, loses no step."""
    sessions = [stores.open() for _ in range(3)]
    sessions[0].multi([s.Create("/count", b"0")])

    def count(mine):
        done = 0
        while done < 20:
            node = mine.get("/count")
            try:
                mine.multi([s.Set("/count", b"%d" % (int(node.data) + 1), node.version)])
                done += 1
            except s.BadVersion:
                pass

    run_threads(*(lambda mine=mine: count(mine) for mine in sessions))
    assert b"60" == sessions[0].get("/count").data


# -- sessions


def test_session_is_told(stores, told):
    """The start of a session is reported before ``start`` returns."""
    stores.open(on_session=told)

    assert [s.SessionChange.ESTABLISHED] == told.calls


def test_closing_ends_ephemeral_nodes(stores, store):
    """A session that is closed takes its ephemeral nodes along, and nothing else."""
    other = stores.open()
    other.multi([s.Create("/kept"), s.Create("/gone", ephemeral=True)])

    other.close()
    stores.stores.remove(other)

    assert b"" == store.get("/kept").data
    with pytest.raises(s.NoNode):
        store.get("/gone")


def test_ephemeral_has_no_children(store):
    """Nothing is created below an ephemeral node."""
    store.multi([s.Create("/a", ephemeral=True)])

    with pytest.raises(s.EphemeralParent):
        store.multi([s.Create("/a/b")])


def test_ephemeral_is_seen_by_all(stores):
    """An ephemeral node lives as long as its session, for every session, though no other session touches it."""
    for attempt in itertools.count():
        changes = []
        store, other = (stores.open(session_ms=2_000, on_session=changes.append) for _ in range(2))
        parent = f"/parent-{attempt}"
        store.multi([s.Create(parent), s.Create(f"{parent}/a", ephemeral=True)])

        time.sleep(2.5)  # longer than either would live unrenewed by its thread

        if ["a"] == other.children(parent):
            break
        # Now and then the whole machine stands still for longer than a session.
        assert eventually(lambda changes=changes: s.SessionChange.LOST in changes), changes
        assert attempt < 5
        store.close()
        other.close()


def test_expired_session(stores, told):
    """A session that others ended: its ephemeral nodes are gone, it can't write, gets a report, and begins a new
    one.
    """
    store = stores.open(on_session=told)
    store.multi([s.Create("/a", ephemeral=True)])

    stores.expire(store)

    assert eventually(lambda: told.calls[-2:] == [s.SessionChange.LOST, s.SessionChange.ESTABLISHED]), told.calls
    with pytest.raises(s.NoNode):
        store.get("/a")
    store.multi([s.Create("/a", ephemeral=True)])


def test_expired_session_writes_nothing(stores):
    """From the end of a session until the next is reported, a write of its owner raises or belongs to the next."""
    refused, writes = [], []
    store = stores.open()
    store.multi([s.Create("/w")])
    store.multi([s.Create("/mine", ephemeral=True)])
    stop = threading.Event()

    def write():
        while not stop.is_set():
            try:
                store.multi([s.Check("/mine"), s.Create(f"/w/{len(writes):05}")])
                writes.append(1)
            except s.StoreError as error:
                refused.append(type(error))

    thread = threading.Thread(target=write)
    thread.start()
    assert eventually(lambda: len(writes) > 5)
    stores.expire(store)
    reader = stores.open()
    done = len(reader.children("/w"))
    assert eventually(lambda: len(refused) > 5)
    stop.set()
    thread.join(60)

    assert set(refused) <= {s.SessionLost, s.NoNode} | {kind for kind in refused if issubclass(kind, OSError)}
    assert done == len(reader.children("/w"))


# -- watches


def test_watch_tells_of_each_kind(stores, store, told):
    """A watch on a node reports that it was created, set and deleted, by whichever session."""
    store.watch("/a", told)
    other = stores.open()

    for operation in (s.Create("/a"), s.Set("/a", b"1"), s.Set("/a", b"2"), s.Delete("/a"), s.Create("/a")):
        before = len(told.calls)
        other.multi([operation])
        assert eventually(lambda before=before: len(told.calls) > before), operation


def test_watch_tells_own_writes(store, told):
    """A session's own write sets off its own watch."""
    store.watch("/a", told)

    store.multi([s.Create("/a")])

    assert eventually(lambda: told.calls)


def test_change_after_the_call_is_told(stores, store):
    """A callback that reads misses nothing: the last read is of the last write."""
    store.multi([s.Create("/a", b"0")])
    seen = []
    store.watch("/a", lambda: seen.append(int(store.get("/a").data)))
    other = stores.open()

    for number in range(1, 101):
        other.multi([s.Set("/a", b"%d" % number)])

    assert eventually(lambda: seen and seen[-1] == 100), seen
    assert sorted(seen) == seen


def test_watch_of_children(stores, store, told):
    """A watch on children reports names that come and go, not of what is in them or below them."""
    store.multi([s.Create("/a"), s.Create("/a/b")])
    store.watch_children("/a", told)
    other = stores.open()

    other.multi([s.Set("/a/b", b"1"), s.Create("/a/b/c"), s.Set("/a", b"1")])
    time.sleep(0.3)
    assert [] == told.calls

    other.multi([s.Create("/a/d")])
    assert eventually(lambda: 1 <= len(told.calls))
    before = len(told.calls)
    other.multi([s.Delete("/a/d")])
    assert eventually(lambda: before < len(told.calls))


def test_watch_of_ephemeral(stores, store, told):
    """A watch reports that an ephemeral node goes with its session."""
    store.watch("/a", told)
    other = stores.open()
    other.multi([s.Create("/a", ephemeral=True)])
    assert eventually(lambda: told.calls)
    before = len(told.calls)

    other.close()
    stores.stores.remove(other)

    assert eventually(lambda: before < len(told.calls))


def test_cancelled_watch(store, told):
    """A cancelled watch reports nothing more. Another on the same node goes on."""
    second = []
    watch = store.watch("/a", told)
    store.watch("/a", lambda: second.append(1))

    watch.cancel()
    store.multi([s.Create("/a")])

    assert eventually(lambda: second)
    assert [] == told.calls


def test_new_session_sets_off_watches(stores, told):
    """With a new session every watch is called once, because changes in between are unknown, and goes on."""
    store = stores.open()
    store.multi([s.Create("/a")])
    store.watch("/b", told)

    stores.expire(store)
    assert eventually(lambda: told.calls)

    before = len(told.calls)
    assert eventually(lambda: _created(store, "/b"))
    assert eventually(lambda: before < len(told.calls))


def _created(store, path):
    try:
        store.multi([s.Create(path)])
    except s.StoreError:
        return False
    return True


def test_raising_callback_is_contained(store, told):
    """A callback that raises stops no other."""

    def fail():
        raise RuntimeError("on purpose")

    store.watch("/a", fail)
    store.watch("/a", told)

    store.multi([s.Create("/a")])
    assert eventually(lambda: told.calls)
    before = len(told.calls)
    store.multi([s.Set("/a", b"")])

    assert eventually(lambda: before < len(told.calls))


def test_closed_store_is_unreachable(stores, store):
    """A store that was closed while others still call it rejects them."""
    stop = threading.Event()
    seen = []

    def read():
        while not stop.is_set():
            try:
                store.children("/a")
            except s.StoreError as error:
                seen.append(error)
                if isinstance(error, OSError):
                    return

    store.multi([s.Create("/a")])
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    store.close()
    stores.stores.remove(store)
    for thread in threads:
        thread.join(60)
    stop.set()

    assert 3 == len(seen)


def test_no_thread_left(stores, no_threads_left):
    """A store that is closed leaves no thread."""
    stores.open().close()
    stores.stores.clear()
