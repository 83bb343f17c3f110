"""A follower's side of a fetch session: the partitions that it names and removes."""

from types import SimpleNamespace

import pytest

from examples.broker.protocol.messages.records import FetchRequest, FetchResponse
from examples.broker.replication.peers.incremental_fetch import IncrementalFetch

T0, T1 = ("t", 0), ("t", 1)


def replica(end=0):
    return SimpleNamespace(leader_epoch=0, log=SimpleNamespace(next_offset=end, start_offset=0))


@pytest.fixture
def asked():
    """Ask for partitions in a session that goes on. Give what is named and what is forgotten."""
    fetch = IncrementalFetch(1_000)

    def ask(partitions):
        request = FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=1)
        fetch.ask(request, partitions)
        fetch.answered(FetchResponse(session_id=7))
        named = [(topic.name, part.index) for topic in request.topics for part in topic.partitions]
        return named, [(topic.name, index) for topic in request.forgotten_topics for index in topic.partitions]

    ask.name_again = fetch.name_again
    return ask


def test_only_what_changed_is_named(asked):
    """The first request names all, the next one what moved, and what is followed no more is taken back."""
    assert ([T0, T1], []) == asked({T0: replica(), T1: replica()})
    assert ([T1], []) == asked({T0: replica(), T1: replica(5)})
    assert ([], [T0]) == asked({T1: replica(5)})
    assert ([], []) == asked({T1: replica(5)})


@pytest.mark.parametrize(("wanted", "named", "forgotten"), [([T0, T1], [T0], []), ([T1], [], [T0])])
def test_what_was_refused_is_named_again_or_taken_back(asked, wanted, named, forgotten):
    """Else the leader would answer each request at once, with the same error forever."""
    asked({T0: replica(), T1: replica()})
    asked.name_again(T0)
    assert (named, forgotten) == asked({key: replica() for key in wanted})
