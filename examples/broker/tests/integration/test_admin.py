"""Settings, partitions and groups, by admin clients of other projects."""

import time

import confluent_kafka
import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from examples.broker.tests.integration.conftest import patiently


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def settings(admin, topic):
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return admin.describe_configs([resource])[resource].result(60)


def refusal(future):
    with pytest.raises(KafkaException) as caught:
        future.result(60)
    return caught.value.args[0].code()


def test_a_topics_settings_are_shown(admin, topic):
    """A topic's own settings are distinguished from defaults, and changeable settings from fixed ones."""
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "5000"})])[topic].result(60)
    shown = settings(admin, topic)
    assert ("5000", False, False) == (
        shown["max.message.bytes"].value,
        shown["max.message.bytes"].is_default,
        shown["max.message.bytes"].is_read_only,
    )
    assert ("1", True) == (shown["min.insync.replicas"].value, shown["min.insync.replicas"].is_default)
    assert ("delete", True) == (shown["cleanup.policy"].value, shown["cleanup.policy"].is_read_only)


def test_a_nodes_settings_are_shown(admin):
    """The settings of a node are shown by the node itself."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    shown = admin.describe_configs([resource])[resource].result(60)
    assert ("1", True) == (shown["broker.id"].value, shown["broker.id"].is_read_only)


def test_settings_are_changed_one_by_one(admin, topic, broker):
    """A single setting is set and taken back, the others stay. A record that is too large then is rejected."""
    admin.create_topics([NewTopic(topic, 1, 1, config={"segment.bytes": "100000"})])[topic].result(60)

    def change(operation, value=None, name="max.message.bytes"):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    def produce():
        errors = []
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(topic, b"x" * 2_000, on_delivery=lambda error, _: errors.append(error and error.code()))
        producer.flush(60)
        return errors

    change(AlterConfigOpType.SET, "1000").result(60)
    assert ("1000", "100000") == tuple(settings(admin, topic)[x].value for x in ("max.message.bytes", "segment.bytes"))
    assert [KafkaError.MSG_SIZE_TOO_LARGE] == produce()
    change(AlterConfigOpType.DELETE).result(60)
    assert [None] == produce()
    assert "100000" == settings(admin, topic)["segment.bytes"].value
    assert KafkaError.INVALID_CONFIG == refusal(change(AlterConfigOpType.SET, "none"))
    assert KafkaError.INVALID_CONFIG == refusal(change(AlterConfigOpType.DELETE, name="max.mesage.bytes"))
    assert KafkaError.INVALID_CONFIG == refusal(change(AlterConfigOpType.APPEND, "1"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_settings_are_replaced_as_a_whole(admin, topic):
    """The older way of changing settings takes back those that it doesn't name."""
    admin.create_topics([NewTopic(topic, 1, 1, config={"segment.bytes": "100000"})])[topic].result(60)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "1000"})
    admin.alter_configs([resource])[resource].result(60)
    shown = settings(admin, topic)
    assert ("1000", True) == (shown["max.message.bytes"].value, shown["segment.bytes"].is_default)


@pytest.mark.parametrize(
    ("name", "value"), [("cleanup.policy", "compact"), ("flush.messages", "1"), ("no.such.setting", "1")]
)
def test_a_setting_that_would_be_unsafe_to_ignore_is_refused(admin, topic, name, value):
    """A topic is not created with a setting that this broker does not have."""
    future = admin.create_topics([NewTopic(topic, 1, 1, config={name: value})])[topic]
    assert KafkaError.INVALID_CONFIG == refusal(future)
    assert topic not in admin.list_topics(timeout=60).topics


def test_a_harmless_setting_is_stored_and_has_no_effect(admin, topic, broker, eventually):
    """A setting that ordinary scripts set is stored and shown, and the log says that it has no effect."""
    admin.create_topics([NewTopic(topic, 1, 1, config={"compression.type": "lz4"})])[topic].result(60)
    shown = settings(admin, topic)["compression.type"]
    assert ("lz4", False) == (shown.value, shown.is_default)
    eventually(lambda: f"settings=['compression.type'] topic={topic}" in broker.leader.log)


def test_records_expire(admin, topic, broker, eventually):
    """Records older than ``retention.ms`` are deleted. A client that reads from the beginning gets the younger ones."""
    config = {"retention.ms": "3600000", "segment.ms": "1000"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    now = int(time.time() * 1_000)
    for timestamp in (now - 7_200_000, now - 7_100_000, now):
        producer.produce(topic, b"x", timestamp=timestamp)
        assert 0 == producer.flush(60)
    first = {TopicPartition(topic, 0): OffsetSpec.earliest()}
    eventually(lambda: admin.list_offsets(first)[TopicPartition(topic, 0)].result(60).offset == 2)


def test_a_topic_is_made_with_the_nodes_own_numbers(admin, topic):
    """-1 partitions and -1 replicas stand for what the node has for topics that are made by being asked for."""
    admin.create_topics([NewTopic(topic, -1, -1)])[topic].result(60)
    assert [1] == [
        len(part.replicas) for part in admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
    ]


def test_a_topic_grows_under_its_clients(admin, topic, broker):
    """A topic with more partitions takes records for the new ones, and doesn't shrink."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(3):
        producer.produce(topic, b"x", partition=partition)
    assert 0 == producer.flush(60)
    assert KafkaError.INVALID_PARTITIONS == refusal(admin.create_partitions([NewPartitions(topic, 2)])[topic])


def test_topics_grow_before_their_node_knows_them(admin, topic):
    """Who creates topics without waiting may add partitions to them at once."""
    names = [f"{topic}-{number}" for number in range(20)]
    for made in admin.create_topics([NewTopic(name, 5, 1) for name in names], operation_timeout=0).values():
        made.result(60)
    for grown in admin.create_partitions([NewPartitions(name, 6) for name in names]).values():
        grown.result(60)


def test_replicas_are_assigned_where_there_is_one_node(admin, topic):
    """A topic is made, and grows, with its replicas where the client says, if that is here. Otherwise it is refused."""
    admin.create_topics([NewTopic(topic, 2, replica_assignment=[[1], [1]])])[topic].result(60)
    admin.create_partitions([NewPartitions(topic, 3, replica_assignment=[[1]])])[topic].result(60)
    parts = admin.list_topics(topic, timeout=60).topics[topic].partitions
    assert {index: [1] for index in range(3)} == {index: part.replicas for index, part in parts.items()}
    elsewhere = admin.create_topics([NewTopic(f"{topic}-2", 1, replica_assignment=[[2]])])[f"{topic}-2"]
    assert 39 == refusal(elsewhere)  # INVALID_REPLICA_ASSIGNMENT
    assert 39 == refusal(admin.create_partitions([NewPartitions(topic, 4, replica_assignment=[[2]])])[topic])
    assert 39 == refusal(admin.create_partitions([NewPartitions(topic, 5, replica_assignment=[[1]])])[topic])


def test_followers_grow_along(start_cluster, topic, eventually):
    """Replicas of the new partitions are in sync, so that acks=all is acknowledged."""
    cluster = start_cluster(2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    eventually(lambda: 2 == len(admin.list_topics(timeout=60).brokers))
    admin.create_topics([NewTopic(topic, 1, 2)])[topic].result(60)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    # Whichever node it asks: one that has not heard of the partition yet makes the client refuse it by itself.
    for address in cluster.addresses:
        eventually(lambda address=address: 2 == len(patiently(address, topic).topics[topic].partitions))
    delivered = []
    producer.produce(topic, b"x", partition=1, on_delivery=lambda error, _: delivered.append(error))
    assert 0 == producer.flush(60)
    assert [None] == delivered
    eventually(lambda: 2 == len(admin.list_topics(topic, timeout=60).topics[topic].partitions[1].isrs))


def test_offsets_and_groups_are_deleted(admin, topic, broker):
    """Unused offsets are removed. Then the group. Then there is none of that name."""
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    parts = [TopicPartition(topic, index, 5) for index in range(2)]
    consumer.commit(offsets=parts, asynchronous=False)
    kafka_python = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    kafka_python.delete_group_offsets(topic, [PythonTopicPartition(topic, 0)])
    assert [-1001, 5] == [part.offset for part in consumer.committed(parts, timeout=60)]
    consumer.close()
    kafka_python.close()
    admin.delete_consumer_groups([topic])[topic].result(60)
    request = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, index) for index in range(2)])]
    found = admin.list_consumer_group_offsets(request)[topic].result(60)
    assert [-1001, -1001] == [part.offset for part in found.topic_partitions]
    assert KafkaError.GROUP_ID_NOT_FOUND == refusal(admin.delete_consumer_groups([topic])[topic])


def test_a_group_in_use_is_not_deleted(admin, topic, broker):
    """A group with a member stays."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        assert KafkaError.NON_EMPTY_GROUP == refusal(admin.delete_consumer_groups([topic])[topic])
    finally:
        consumer.close()


def test_offsets_by_a_meaningless_time_are_refused(admin, topic):
    """An unknown special timestamp is an error, not the end of the log."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    part = TopicPartition(topic, 0)
    found = admin.list_offsets({part: confluent_kafka.admin.OffsetSpec.for_timestamp(-99)})
    with pytest.raises(KafkaException):
        found[part].result(60)


def test_a_node_alone_needs_no_election(admin, topic):
    """Electing a leader where there is one node is answered, for each partition by itself."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    parts = [TopicPartition(topic, 0), TopicPartition(topic, 7)]
    results = admin.elect_leaders(ElectionType.PREFERRED, parts).result(60)
    codes = [error.code() for error in results.values()]
    assert [KafkaError.ELECTION_NOT_NEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART] == codes


def test_everything_is_authorized(admin, topic):
    """Without an authorizer, a client that asks for its rights gets all of them."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    names = TopicCollection([topic])
    described = admin.describe_topics(names, include_authorized_operations=True)[topic].result(60)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(60)
    group = admin.describe_consumer_groups([topic], include_authorized_operations=True)[topic].result(60)
    assert {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"} == {
        operation.name for operation in described.authorized_operations
    }
    assert {"CLUSTER_ACTION", "IDEMPOTENT_WRITE"} < {operation.name for operation in cluster.authorized_operations}
    assert {"READ", "DESCRIBE", "DELETE"} == {operation.name for operation in group.authorized_operations}
    assert not admin.describe_topics(names)[topic].result(60).authorized_operations


def test_a_commit_without_metadata_has_empty_metadata(admin, broker, topic):
    """A commit without metadata is read by another client as an empty string, not as null."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    consumer.close()
    reader = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=topic)
    committed = reader.committed(PythonTopicPartition(topic, 0), metadata=True)
    reader.close()
    assert (5, "") == (committed.offset, committed.metadata)
