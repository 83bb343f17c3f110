"""What the broker's unit tests share: any message of the protocol, logs, replicas and trees."""

import functools
from typing import Annotated, get_args, get_origin

import attrs
import pytest
from hypothesis import strategies as st

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.protocol.wire import fields_of
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.replica_manager import ReplicaManager
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.storage.disk import Fsync
from examples.broker.storage.log import Log
from examples.broker.storage.topics import TopicStore
from purgatory import ActionQueue

_RANGES = {"b": 8, "h": 16, "i": 32, "q": 64}


def _values(hint, version, nulls):
    if get_origin(hint) is Annotated:
        wire = get_args(hint)[1]
        if hasattr(wire, "char"):
            if wire.char == "?":
                return st.booleans()
            half = 1 << (_RANGES[wire.char] - 1)
            return st.integers(-half, half - 1)
        plain = st.text(max_size=6) if wire.text else st.binary(max_size=6)
        return st.none() | plain if type(None) in get_args(get_args(hint)[0]) else plain
    if get_origin(hint) is list:
        return st.lists(_values(get_args(hint)[0], version, nulls), max_size=3)
    if attrs.has(hint):
        return messages(hint, version, nulls)
    inner = next(part for part in get_args(hint) if part is not type(None))
    plain = _values(inner, version, nulls)
    return st.none() | plain if nulls else plain


@functools.cache
def messages(message, version, nulls=True):
    """Any value of the message as this version can carry it: fields of other versions keep their defaults."""
    wanted = ((field.name, hint) for field, hint, present in fields_of(message, version) if present)
    return st.builds(message, **{name: _values(hint, version, nulls) for name, hint in wanted})


@pytest.fixture(scope="session")
def any_message():
    return messages


@pytest.fixture
def open_log(tmp_path):
    """Open a log. One that is still open on the same folder is closed before."""
    opened = {}

    def open_log(folder=tmp_path / "t-0", **settings):
        if folder in opened:
            opened.pop(folder).close()
        opened[folder] = Log(folder, **settings)
        return opened[folder]

    yield open_log
    for log in opened.values():
        log.close()


@pytest.fixture
def make_replicas(tmp_path, mock_timer):
    """Make the replica manager of node 1, by default alone. It is closed in the end."""
    made = []

    def make_replicas(ports=(1,), folder=tmp_path, **settings):
        store = TopicStore(folder, durably=settings.get("fsync") is Fsync.ALWAYS)
        cluster, settings = Cluster(ports=ports), ReplicationSettings(**settings)
        made.append(ReplicaManager(cluster, settings, store, mock_timer, ActionQueue()))
        return made[-1]

    yield make_replicas
    for replicas in made:
        replicas.shut_down()
        replicas.close()


@pytest.fixture
def tree_store(tmp_path):
    """A tree of its own."""
    store = EmbeddedStore(tmp_path / "tree.sqlite", thread=False)
    store.start()
    layout.make_roots(store)
    yield store
    store.close()
