"""Groups of a node in a cluster that does not know the offsets topic."""

from types import SimpleNamespace

import pytest

from examples.broker.groups.state.group import Group
from examples.broker.groups.state.known_groups import KnownGroups
from examples.broker.groups.state.store import GroupStore
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.protocol.messages import groups as m
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.metadata import KnownPartition, Metadata
from examples.broker.service.handlers.groups import GroupHandlers
from examples.broker.storage.topics import OFFSETS_TOPIC


@pytest.fixture
def store():
    store = GroupStore(SimpleNamespace(partitions={}), SimpleNamespace(topics={}), write_timeout_ms=1)
    store.make_topic = lambda: None
    return store


def test_no_group_is_mapped_to_a_partition(store):
    """Without the number of partitions, every group would be in the first."""
    groups = KnownGroups(store)
    with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
        groups.find("g")
    codes = []
    store.commit(
        Group("g"), {("t", 0): SimpleNamespace(offset=1, metadata="", leader_epoch=0, topic_id="")}, codes.append
    )
    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == codes


def test_a_full_disk_has_no_group(store):
    """If the offsets topic cannot be created, a write is answered, and the client asks again."""

    def full():
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)

    store.make_topic = full
    codes = []
    store.save(Group("g"), codes.append)
    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == codes


def test_the_coordinator_is_not_available(store):
    """A client asks again, and does not get the leader of the first partition."""
    metadata = Metadata({1: ("host", 1)})
    metadata.learn((OFFSETS_TOPIC, 0), KnownPartition(Leadership(1, 0, (1,)), (1,)))
    handlers = GroupHandlers(SimpleNamespace(store=store), metadata)
    answers = []
    handlers.find_coordinator(m.FindCoordinatorRequest("g"), 2, answers.append)
    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == [answer.error_code for answer in answers]


def test_groups_leave_with_a_deleted_topic(store):
    """A partition that leaves after its topic is forgotten takes its groups along."""
    groups = KnownGroups(store)
    groups.add_loaded((OFFSETS_TOPIC, 0), {"g": Group("g")})
    assert ["g"] == [group.group_id for group in groups.release((OFFSETS_TOPIC, 0))]
