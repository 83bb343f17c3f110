"""The requests that one event of the controller sends to the nodes."""

from examples.broker.controller.context import Context
from examples.broker.controller.partitions.requests import Requests
from examples.broker.controller.tree.layout import BrokerInfo
from examples.broker.protocol.messages.controller import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from examples.broker.replication.leadership import Leadership
from examples.broker.tests.unit.controller.conftest import Channel

KEYS = [("t", index) for index in range(2_500)]


def test_a_large_change_is_sent_in_pieces():
    """No request names more than 1,000 partitions, and only the last piece of an update says that it is the last."""
    brokers = {1: BrokerInfo(1, "host", 9001), 2: BrokerInfo(2, "host", 9002)}
    context = Context(brokers=brokers, leaderships=dict.fromkeys(KEYS, Leadership(1, 0, (1,))))
    channel = Channel()
    requests = Requests(1, context, channel)
    for key in KEYS:
        requests.leader_and_isr([2], key)
        requests.stop_replica(2, key, delete=False)
    requests.send()
    updates = channel.of(UpdateMetadataRequest, 1)
    assert [1_000, 1_000, 500] == [len(each.states) for each in channel.of(LeaderAndIsrRequest, 2)]
    assert [1_000, 1_000, 500] == [len(each.states) for each in updates]
    assert [False, False, True] == [each.is_last for each in updates]
    assert [1_000, 1_000, 500] == [len(each.partitions) for each in channel.of(StopReplicaRequest, 2)]


def test_an_update_without_partitions_is_sent():
    """A change of the nodes alone is one piece."""
    channel = Channel()
    requests = Requests(1, Context(brokers={1: BrokerInfo(1, "host", 9001)}), channel)
    requests.metadata()
    requests.send()
    assert [([], True)] == [(each.states, each.is_last) for each in channel.of(UpdateMetadataRequest)]
