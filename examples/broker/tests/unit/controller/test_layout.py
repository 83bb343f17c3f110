"""The content of the tree's nodes: written and read back, and nonsense rejected."""

import json
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.broker.controller.events import EventQueue
from examples.broker.controller.tree import layout
from examples.broker.controller.tree.candidacy import epoch_in
from examples.broker.coordination.store import Node
from examples.broker.replication.leadership import Leadership
from tests.support import run_threads

nodes = st.lists(st.integers(0, 99), max_size=5, unique=True).map(tuple)
keys = st.tuples(st.text("abc.", min_size=1, max_size=5), st.integers(0, 99))


@given(st.integers(-1, 9), st.integers(0, 9), nodes, nodes)
def test_state_is_read_back(leader, epoch, isr, gone):
    """A leadership is read as it was written, with the version of its node."""
    state = Leadership(leader, epoch, isr, 7, gone)
    assert state == layout.state_of(layout.write_state(state), 7)


@given(st.dictionaries(keys, nodes, max_size=4))
def test_lists_are_read_back(targets):
    """Assignments, reassignments, partitions and settings are read as they were written."""
    assert targets == layout.reassignments_of(layout.write_reassignments(targets))
    assert list(targets) == layout.keys_of(layout.write_keys(list(targets)))
    assignment = {index: chosen for (_, index), chosen in targets.items()}
    assert assignment == layout.assignment_of(layout.write_assignment(assignment))
    assert assignment == layout.assignment_of(data := layout.write_assignment(assignment, "an id"))
    assert ("an id", "") == (layout.topic_id_of(data), layout.topic_id_of(layout.write_assignment(assignment)))
    assert {"a": "b"} == layout.config_of(layout.write_config({"a": "b"}))


def test_broker_is_read_back():
    """A node's registration is read as it was written."""
    info = layout.BrokerInfo(3, "host", 9092, "life")
    assert info == layout.BrokerInfo.read(3, info.write())


@pytest.mark.parametrize(("logs", "some"), [(40_000, False), (60_000, True)])
def test_a_registration_with_many_logs_is_small_enough_for_zookeeper(logs, some):
    """The ends of 40,000 logs are all read back. Of many more, some are left out. Empty logs take no space."""
    random = Random(1)
    ends = {f"orders-{random.getrandbits(24):x}-{number}": (3, random.getrandbits(30)) for number in range(logs)}
    empty = {f"empty-{number}": (-1, 0) for number in range(logs)}
    data = layout.BrokerInfo(3, "host", 9092, "life", ends=ends | empty).write()
    assert len(data) < 1 << 20
    found = layout.BrokerInfo.read(3, data).ends
    assert found.items() < ends.items() if some else ends == found


@pytest.mark.parametrize("field", ["leader", "leader_epoch", "isr"])
def test_numbers_fit_into_requests(field):
    """A number that a request to another node cannot carry is rejected. Otherwise it would end all requests to it."""
    content = {"leader": 1, "leader_epoch": 0, "isr": [1]}
    content[field] = [1 << 31] if field == "isr" else 1 << 31
    with pytest.raises(ValueError, match="must have 32 bits"):
        layout.state_of(json.dumps(content).encode(), 0)
    with pytest.raises(ValueError, match="must have 32 bits"):
        layout.assignment_of(b'{"partitions":{"2147483648":[1]}}')
    with pytest.raises(ValueError, match="must have 32 bits"):
        layout.BrokerInfo.read(1 << 31, layout.BrokerInfo(3, "host", 9092).write())
    assert 7 == epoch_in(Node(b"2147483648", 7))


def test_controller_is_written_as_tools_expect():
    """The controller is written in the form that other tools read."""
    content = json.loads(layout.write_controller(3))
    assert {"version": 1, "brokerid": 3} == {name: content[name] for name in ("version", "brokerid")}
    assert content["timestamp"].isdigit()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"brokers":3,"host":null}', b'{"partitions":3}', b'{"partitions":{"0":[1,1]}}']
)
def test_nonsense(data):
    """What makes no sense is a ValueError, whatever is wrong with it."""
    for read in (
        layout.assignment_of,
        layout.reassignments_of,
        layout.keys_of,
        layout.controller_of,
        layout.config_of,
        layout.known_of,
        lambda data: layout.BrokerInfo.read(1, data),
    ):
        with pytest.raises(ValueError):
            read(data)
    with pytest.raises(ValueError):
        layout.state_of(data, 0)


@pytest.mark.parametrize("name", ["leader", "leader_epoch", "isr", "gone"])
@pytest.mark.parametrize("value", ["null", "{}", "[null]", "1e999", "[" * 10_000 + "]" * 10_000])
def test_a_state_with_a_field_of_another_type(name, value):
    """A field that another tool has written with another type is a ValueError, as everything that cannot be decoded."""
    content = json.loads(layout.write_state(Leadership(1, 1, (1,)))) | {name: "here"}
    with pytest.raises(ValueError):
        layout.state_of(json.dumps(content).replace('"here"', value).encode(), 0)


def test_events_are_handled_in_order(no_threads_left):
    """Events are handled one at a time, each thread's own in their order, and a failure stops none."""
    queue, seen = EventQueue(), []
    queue.start()

    def put(name):
        for number in range(200):
            queue.put("count", lambda number=number: seen.append((name, number)))
        queue.put("fail", lambda: 1 / 0)

    run_threads(*[partial(put, name) for name in "abc"])
    queue.close()

    assert 600 == len(seen)
    for name in "abc":
        assert list(range(200)) == [number for who, number in seen if who == name]
    assert (3, 3) == (queue.figures["fail"].count, queue.figures["fail"].failed)
