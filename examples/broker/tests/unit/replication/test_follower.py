"""A follower whose leader has fewer records, after an unclean election."""

import asyncio

import pytest

from examples.broker.protocol.apis import ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages.common import by_topic
from examples.broker.protocol.messages.controller import EpochEndOfPartition, OffsetForLeaderEpochResponse
from examples.broker.protocol.messages.records import FetchedPartition, FetchResponse
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.peers.follower import _Fetcher
from examples.broker.storage.topics import TopicStore
from examples.broker.tests.unit.replication.conftest import KEY


class Link:
    """Answers as a leader whose log ends at 1."""

    async def ask(self, api, *_):
        if api == ApiKey.FETCH:
            part = FetchedPartition(0, ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=1, log_start_offset=0)
            return FetchResponse(topics=by_topic([("t", part)]))
        return OffsetForLeaderEpochResponse(topics=by_topic([("t", EpochEndOfPartition(0, 0, 0, 1))]))


@pytest.mark.parametrize("is_aligned", [False, True])
def test_a_cut_is_saved_before_records_are_appended(leader, tmp_path, is_aligned):
    """A node that is killed after it has new records does not hide those below its former log start."""
    leader.commit(5)
    leader.delete(3)
    leader.manager.checkpoint()
    assert (3, 5) == TopicStore(tmp_path).checkpoint_of("t-0")
    leader.manager.lead_or_follow(KEY, Leadership(2, 1, (2,), version=1), (1, 2, 3))
    leader.partition.is_aligned = is_aligned
    fetcher = _Fetcher(leader.manager, 2, Link())
    step = fetcher._fetch_once if is_aligned else fetcher._align
    asyncio.run(step({KEY: leader.partition}))
    assert (1, 1) == TopicStore(tmp_path).checkpoint_of("t-0")
