"""The internal topic, whose live records are copied to its end: nothing is lost, and nothing comes back."""

import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broker.groups import compaction
from examples.broker.groups.compaction import Compaction
from examples.broker.groups.state import store as store_module
from examples.broker.groups.state.group import GroupState
from examples.broker.groups.state.live_records import LiveRecords, Rewriting
from examples.broker.groups.state.values import Commit, Identity
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.steps import run_at_once
from examples.broker.replication import settings as replication_settings

PARTITION = ("__consumer_offsets", 0)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Copy small logs in small pieces, and begin a segment every few records."""
    monkeypatch.setattr(compaction, "_LEAST_BYTES", 0)
    monkeypatch.setattr(store_module, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(replication_settings, "_INTERNAL_SEGMENT", 1_000)


def compaction_of(groups):
    return Compaction(groups.coordinator.store, groups.replicas, turn_ms=0, run_actions=groups.run)


@pytest.fixture
def compact(groups):
    """Do what is due, and give the log."""
    due = compaction_of(groups)

    async def compact():
        await due.look(PARTITION)
        return log_of(groups)

    return compact


@pytest.fixture
def behind(groups):
    """The partition after 100 commits of the group "g", which a follower in sync does not have."""
    for number in range(100):
        commit(groups, "g", number)
    partition = groups.replicas.partitions[PARTITION]
    partition.followers.set_followers([2], 0.0)
    partition.isr = {1, 2}
    return partition


def log_of(groups):
    return groups.replicas.partitions[PARTITION].log


def state_of(groups):
    """The groups as a new coordinator would find them."""
    before = groups.coordinator.store.live
    groups.coordinator.store.live = {}
    found = run_at_once(groups.coordinator.store.load(PARTITION))
    groups.coordinator.store.live = before
    return {name: (group.offsets, group.generation, sorted(group.members)) for name, group in found.items()}


def commit(groups, group, offset, partition=0, metadata=""):
    codes = groups.commit("", -1, {("t", partition): Commit(offset, metadata)}, group=group)
    assert {("t", partition): ErrorCode.NONE} == codes


async def test_a_log_of_replaced_records_becomes_small(groups, compact):
    """Only the latest record of each key is left, once the copy is on the disk."""
    for number in range(300):
        commit(groups, f"g{number % 3}", number)
    before = state_of(groups)
    log = await compact()
    assert 0 == log.start_offset
    groups.replicas.sync()
    await compact()
    assert (300, 303) == (log.start_offset, log.next_offset)
    assert log.size < 1_000
    assert before == state_of(groups)
    assert {"g0": 297, "g1": 298, "g2": 299} == {name: offsets["t", 0].offset for name, (offsets, *_) in before.items()}


async def test_members_large_texts_and_deletions_are_kept(groups, compact, restart):
    """A generation with its members, commits with the longest text, deleted groups, and one whose members expired."""
    one, two = groups.stable(2)
    groups.commit(one, 1, {("t", 0): Commit(5, "m" * 4_096), ("t", 1): Commit(6, "é" * 2_048)})
    for name in ("deleted", "expired", "offset deleted"):
        commit(groups, name, 1)
        commit(groups, name, 1, partition=1)
    groups.coordinator.commits.delete_group("deleted", lambda _: None)
    groups.coordinator.commits.delete_offsets("offset deleted", [("t", 1)], lambda _: None)
    for _ in range(600):
        commit(groups, "expired", 2)
    before = state_of(groups)
    await compact()
    groups.replicas.sync()
    log = await compact()
    assert log.start_offset > 600
    assert before == state_of(groups)
    again = restart(groups)
    assert (GroupState.STABLE, [one, two]) == (again.group.state, list(again.group.members))
    assert again.coordinator.groups.find("deleted") is None

    again.advance(3_000)
    assert (GroupState.EMPTY, {}) == (again.group.state, again.group.members)
    again.coordinator.commits.delete_group("g", lambda _: None)
    for _ in range(300):
        commit(again, "expired", 3)
    due = compaction_of(again)
    for _ in range(2):
        await due.look(PARTITION)
        again.replicas.sync()
    assert {"expired", "offset deleted"} == state_of(again).keys()
    assert log_of(again).distance(log_of(again).start_offset, log_of(again).next_offset) < 2_000


async def test_a_copy_does_not_replace_a_newer_record(groups, monkeypatch):
    """Commits and deletions go on between two batches of the copy."""
    monkeypatch.setattr(store_module, "_CHUNK_BYTES", 1)
    for name in "abcdef":
        commit(groups, name, 1)
    store = groups.coordinator.store
    copying = store.rewrite(PARTITION)
    for name in "fedcba":
        next(copying, None)
        if name > "c":
            commit(groups, name, 2)
        else:
            groups.coordinator.commits.delete_group(name, lambda _: None)
        groups.run()
    list(copying)
    groups.replicas.sync()
    assert store.forget_rewritten(PARTITION)
    found = {name: offsets["t", 0].offset for name, (offsets, *_) in state_of(groups).items()}
    assert dict.fromkeys("def", 2) == found


async def test_records_are_copied_as_the_log_has_them(groups, behind):
    """A commit that no replica has yet is copied as well. The acknowledged one before it would replace it."""
    answers = []
    groups.coordinator.commits.commit("g", Identity(""), {("t", 0): Commit(100)}, answers.append)
    assert (99, []) == (groups.group.offsets["t", 0].offset, answers)
    run_at_once(groups.coordinator.store.rewrite(PARTITION))
    assert 100 == state_of(groups)["g"][0]["t", 0].offset


async def test_nothing_is_deleted_before_the_replicas_have_the_copy(groups, behind, compact):
    """The start of the log moves after the high watermark and the disk have passed the copy."""
    log = await compact()
    groups.replicas.sync()
    await compact()
    assert 0 == log.start_offset
    behind.isr = {1}
    behind.advance_high_watermark()
    await compact()
    assert 100 == log.start_offset


async def test_a_rejected_copy_is_tried_again(groups, behind, compact):
    """Too few replicas in sync: nothing is deleted, and the next try copies everything."""
    behind.isr, behind.min_isr = {1}, 2
    with pytest.raises(BrokerError):
        await compact()
    behind.min_isr = 1
    for _ in range(2):
        log = await compact()
        groups.replicas.sync()
    assert 100 == log.start_offset
    assert 99 == state_of(groups)["g"][0]["t", 0].offset


def test_a_copy_ends_with_the_leadership(groups):
    """A node that no longer leads the partition appends nothing more, and deletes nothing."""
    for name in "abcdef":
        commit(groups, name, 1)
    copying = groups.coordinator.store.rewrite(PARTITION)
    next(copying)
    end = log_of(groups).next_offset
    groups.coordinator.release(PARTITION)
    list(copying)
    assert (end, {}) == (log_of(groups).next_offset, groups.coordinator.store.live)


@pytest.fixture
def crashes(monkeypatch):
    """Copies of a folder, one after each call that changes a file, with what was known at that time."""

    class Crashes:
        def __init__(self):
            self.copies, self.folder, self.knows = [], None, dict

        def note(self):
            folder, self.folder = self.folder, None
            if folder is not None:
                copy = folder.parent / f"crash-{len(self.copies)}"
                shutil.copytree(folder, copy)
                self.copies.append((copy, self.knows()))
                self.folder = folder

    crashes = Crashes()

    def watched(call):
        def calls(*arguments, **options):
            result = call(*arguments, **options)
            crashes.note()
            return result

        return calls

    for name in ("open", "pwrite", "pwritev", "ftruncate", "fsync", "unlink", "replace"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return crashes


async def test_a_crash_between_any_two_steps(tmp_path, make_groups, crashes):
    """However far copy and deletion have come, no commit goes back, and none that was deleted is there again."""
    tmp_path /= "data"
    groups = make_groups(tmp_path)
    acknowledged, sent, deleted = {}, {}, set()
    due = compaction_of(groups)
    crashes.knows = lambda: (dict(acknowledged), dict(sent), set(deleted))

    def work(number):
        name = f"g{number % 5}"
        if number % 11 == 10 and groups.coordinator.groups.find(name) is not None:
            acknowledged.pop(name)
            groups.coordinator.commits.delete_group(name, lambda _: deleted.add(name))
            return
        deleted.discard(name)
        sent[name] = number
        commit(groups, name, number, metadata="x" * (number % 90))
        acknowledged[name] = number

    for number in range(120):
        work(number)
        if number == 30:
            crashes.folder = tmp_path
        if number % 20 == 19:
            copying = groups.coordinator.store.rewrite(PARTITION)
            for _ in copying:
                work(number)
            groups.replicas.sync()
            await due.look(PARTITION)
    crashes.folder = None
    assert log_of(groups).start_offset > 100
    assert len(crashes.copies) > 150
    for folder, (acknowledged, sent, deleted) in crashes.copies:
        again = make_groups(folder)
        found = {name: offsets["t", 0].offset for name, (offsets, *_) in state_of(again).items()}
        assert found.keys() >= acknowledged.keys()
        assert not found.keys() & (deleted - acknowledged.keys())
        assert all(acknowledged.get(name, 0) <= offset <= sent[name] for name, offset in found.items())
        again.stop()
        shutil.rmtree(folder)


operations = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 3)), max_size=40)


@settings(deadline=None, max_examples=200)
@given(operations, operations)
def test_any_log_with_a_copy_is_read_as_the_same_state(before, during):
    """Whatever is written between the pieces of a copy, the log from the copy on has all live records."""
    live, log = LiveRecords(), []

    def write(key, deletes):
        pairs = [(key.encode(), None if deletes else b"%d" % len(log))]
        log.extend(pairs)
        live.note(pairs)

    for key, deletes, _ in before:
        write(key, deletes)
    live.rewriting = rewriting = Rewriting(len(log))
    writes = iter(during)
    for chunk in live.chunks(rewriting, 1):
        log.extend(chunk)
        live.note(chunk)
        assert dict(live) == state_after(log)  # a crash here
        for key, deletes, _ in writes:
            write(key, deletes)
            break
    for key, deletes, _ in writes:
        write(key, deletes)
    assert dict(live) == state_after(log) == state_after(log[rewriting.start :])
    assert live.size == sum(len(key) + len(value) + 16 for key, value in live)


def state_after(log):
    state = {}
    for key, value in log:
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state
