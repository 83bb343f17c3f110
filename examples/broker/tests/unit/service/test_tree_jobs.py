"""A node's writes about topics into the tree, on a store of its own."""

import asyncio
from unittest.mock import Mock

import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import NoNode, Set
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.service.cluster.tree_client import TreeClient, TreeJobs
from examples.broker.service.event_loop import OnLoop
from examples.broker.tests.support import rejected


@pytest.fixture
def jobs(tree_store):
    return TreeJobs(tree_store, 1)


def test_a_topic_keeps_its_id_as_it_grows(jobs):
    jobs.create_topic("t", {0: (1, 2)}, {})
    before = jobs.read_topics(["t"])["t"]
    jobs.grow_topic("t", {1: (2, 1)})
    after = jobs.read_topics(["t"])["t"]
    assert (1, 2) == (before.partitions, after.partitions)
    assert before.topic_id == after.topic_id != ""
    jobs.create_topic("u", {0: (1, 2)}, {})
    assert jobs.read_topics(["u"])["u"].topic_id != before.topic_id


def test_topics_are_read_after_a_sync(jobs, tree_store, monkeypatch):
    """A server of a ZooKeeper that is behind could answer with an earlier topic of that name, or with none."""
    jobs.create_topic("t", {0: (1, 2)}, {})
    late = []
    monkeypatch.setattr(
        tree_store, "sync", lambda: late.append(1) or jobs.create_topic(f"late-{len(late)}", {0: (1,)}, {})
    )
    assert {"t", "late-1"} == jobs.read_topics(["t", "late-1"]).keys()
    assert {"t", "late-2"} == jobs.topic_ids(["t", "late-2"]).keys()


def setting(name, value):
    return lambda before: {**before, name: value}


def settings_of(jobs, name):
    return dict(jobs.read_topics([name])[name].settings)


@pytest.mark.parametrize("between", [{}, {"segment.bytes": "3", "max.message.bytes": "4"}])
def test_a_setting_is_added_to_those_in_the_tree(jobs, between):
    """A change begins from the tree's content. If another node writes before it is written, it is made once more."""
    jobs.create_topic("t", {0: (1, 2)}, {"segment.ms": "1"})
    others = list(between.items())

    def late(before):
        if others:
            jobs.change_settings("t", setting(*others.pop()))
        return {**before, "retention.ms": "2"}

    expected = {"segment.ms": "1", "retention.ms": "2", **between}
    assert expected == jobs.change_settings("t", late) == settings_of(jobs, "t")


def test_no_settings_without_their_topic(jobs):
    with rejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        jobs.change_settings("t", setting("segment.ms", "1"))


def test_a_refused_change_leaves_the_tree_as_it_was(jobs):
    jobs.create_topic("t", {0: (1, 2)}, {"segment.ms": "1"})
    with rejected(ErrorCode.INVALID_CONFIG):
        jobs.change_settings("t", Mock(side_effect=BrokerError(ErrorCode.INVALID_CONFIG)))
    assert {"segment.ms": "1"} == settings_of(jobs, "t")


def test_ids_of_topics_that_are_there(jobs):
    """The ids of topics are those of their assignments. One that is asked to be deleted counts as gone."""
    jobs.create_topic("t", {0: (1, 2)}, {})
    jobs.create_topic("u", {0: (1, 2)}, {})
    jobs.delete_topic("u")
    assert {"t": jobs.read_topics(["t"])["t"].topic_id} == jobs.topic_ids(["t", "u", "v"])


def test_invalid_settings_of_another_tool_have_no_effect(jobs, tree_store):
    """A setting that this broker would reject is left out. All are if their content cannot be decoded."""
    jobs.create_topic("t", {0: (1, 2)}, {"retention.ms": "7 days", "mine": "1", "segment.ms": " 05"})
    assert {"segment.ms": "5"} == settings_of(jobs, "t")
    tree_store.multi([Set(layout.config_path("t"), b"7 days")])
    assert {} == settings_of(jobs, "t")


@pytest.mark.parametrize("error", [NoNode("/t", "missing"), ValueError(), TypeError(), BrokerError(ErrorCode.NONE)])
async def test_a_job_that_fails_is_reported(error):
    client, failed = TreeClient(None, OnLoop(lambda: None)), asyncio.get_running_loop().create_future()
    client.run(Mock(side_effect=error), failed=failed.set_result)
    assert isinstance(await asyncio.wait_for(failed, 60), BrokerError)
    client.close()


def test_a_report_replaces_an_old_one_at_once(jobs, tree_store, monkeypatch):
    """The old one may be of an earlier session. Without any, a controller would let the node lead for a moment."""
    writes, multi = [], tree_store.multi
    monkeypatch.setattr(tree_store, "multi", lambda operations: multi(operations) or writes.append(operations))
    for is_offline, expected in ((True, ["1"]), (True, ["1"]), (False, []), (False, [])):
        jobs.report_offline(is_offline=is_offline)
        assert expected == tree_store.children(layout.OFFLINE)
    assert [1, 2, 1] == [len(operations) for operations in writes]
