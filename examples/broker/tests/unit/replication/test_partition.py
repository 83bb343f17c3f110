"""One partition's arithmetic: in-sync replicas, high and low watermark, and the condition of an acks=all write."""

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.replication.followers import FetchClock, Followers
from examples.broker.replication.leadership import Leadership
from examples.broker.replication.partition import Partition
from examples.broker.tests.support import batch_of, outcome, rejected, with_attributes

LAG_S = 3.0
BATCH = batch_of(b"x")


@pytest.fixture
def make(tmp_path, open_log):
    def make(node=1, replicas=(1, 2, 3), min_isr=1):
        """Make a partition that node 1 leads."""
        log = open_log(tmp_path / f"{len(list(tmp_path.iterdir()))}")
        partition = Partition(("t", 0), log, node_id=node, replicas=replicas)
        if node == 1:
            partition.lead(Leadership(1, 0, replicas), replicas, 0.0)
        else:
            partition.follow(Leadership(1, 0, replicas), replicas)
        partition.min_isr, partition.max_batch_bytes = min_isr, 1_000
        return partition

    return make


@pytest.fixture
def pair(make):
    """A partition with one follower."""
    return make(replicas=(1, 2))


def append(partition, acks=-1, count=1):
    return partition.append(batch_of(*[b"x"] * count), acks=acks)


def fetch(partition, node, offset, at=1.0, log_start=0):
    """Note a fetch at this time, or on the clock of a session."""
    clock = at if isinstance(at, FetchClock) else FetchClock(at)
    return partition.follower_fetches(node, offset, log_start, clock)


def send(partition, *sequences, epoch=0):
    """Send batches of an idempotent producer with acks=all. Gives the offset or the error code of each."""
    batches = (batch_of(b"x", producer=(9, epoch, sequence)) for sequence in sequences)
    answers = (outcome(partition.append, data, acks=-1) for data in batches)
    return [answer[0] if isinstance(answer, tuple) else answer for answer in answers]


def lagging(partition, now):
    """The nodes without which the leader wishes for its in-sync replicas."""
    partition.adapt_isr(now, LAG_S)
    return set() if partition.wanted_isr is None else partition.isr - partition.wanted_isr


def settle(partition):
    """Have the coordination store accept what the leader wishes for."""
    return partition.settle_isr(partition.wanted_isr, partition.version + 1)


def test_alone_what_is_appended_is_committed(make):
    partition = make(replicas=(1,))
    assert [(0, 2), (2, 3)] == [append(partition, count=2), append(partition)]
    assert 3 == partition.high_watermark
    assert ErrorCode.NONE is partition.enough_replicas_have(3)


def test_the_high_watermark_is_the_lowest_end_in_sync(make):
    """It moves when the last in-sync replica asks for what comes after, and not back when one has lost its records."""
    partition = make()
    append(partition, count=5)
    for node, offset, watermark in ((2, 5, 0), (3, 3, 3)):
        fetch(partition, node, offset)
        assert watermark == partition.high_watermark
    assert None is partition.enough_replicas_have(5)
    assert fetch(partition, 3, 5)
    assert ErrorCode.NONE is partition.enough_replicas_have(5)
    assert not fetch(partition, 2, 0)
    assert 5 == partition.high_watermark


def test_who_lags_leaves_the_isr_and_comes_back(pair):
    """A replica behind for longer than the limit counts until that is written. At the watermark it is in again."""
    append(pair)
    assert (set(), {2}) == (lagging(pair, LAG_S), lagging(pair, LAG_S + 0.1))
    assert ({1, 2}, 0) == (pair.isr, pair.high_watermark)
    assert settle(pair)
    assert ({1}, 1, None) == (pair.isr, pair.high_watermark, pair.wanted_isr)
    append(pair)
    fetch(pair, 2, 1, 5.0)
    assert pair.wanted_isr is None
    fetch(pair, 2, 2, 5.1)
    settle(pair)
    assert {1, 2} == pair.isr


def test_a_busy_follower_that_keeps_up_stays(pair):
    """A follower that always reaches where the end was at its last fetch is caught up, though never at the end."""
    for second in range(1, 20):
        append(pair)
        append(pair)
        fetch(pair, 2, 2 * second - 2, float(second))
        assert set() == lagging(pair, float(second))


def test_silence_in_a_session_says_that_nothing_changed(pair):
    """A follower at the end stays in sync by fetches that don't name the partition, until there are none any more."""
    clock = FetchClock(1.0)
    append(pair)
    fetch(pair, 2, 1, clock)
    clock.at = 50.0
    assert (set(), {2}) == (lagging(pair, 50.0 + LAG_S), lagging(pair, 50.1 + LAG_S))


@pytest.fixture
def clock(pair):
    """The clock of the session in which the follower has fetched at the end of the empty partition."""
    clock = FetchClock(1.0)
    fetch(pair, 2, 0, clock)
    return clock


def test_silence_does_not_excuse_a_follower_that_is_behind(pair, clock):
    """A follower that goes on fetching without having what was appended since leaves the ISR all the same."""
    clock.at = 10.0
    append(pair)
    clock.at = 10.1 + LAG_S
    assert (set(), {2}) == (lagging(pair, 10.0 + LAG_S), lagging(pair, 10.1 + LAG_S))


def test_a_session_that_dropped_a_partition_says_nothing_of_it(pair, clock):
    """Once the follower forgets the partition, its session's later fetches keep it in sync no longer."""
    pair.followers.stopped_fetching(2)
    clock.at = 50.0
    assert {2} == lagging(pair, 50.0)


def test_what_was_sent_counts_when_it_has_arrived(pair, clock):
    """A follower that asks for what comes after the end of its last answer was caught up when that was given."""
    append(pair)
    pair.followers.sent(2, 10.0, pair.log.next_offset)
    append(pair)
    clock.at = 10.1
    fetch(pair, 2, 1, clock)
    assert (set(), {2}) == (lagging(pair, 10.0 + LAG_S), lagging(pair, 10.1 + LAG_S))


def test_too_few_in_sync_replicas_refuse_before_and_after(make):
    """Below min.insync.replicas a write is rejected, and an earlier append gets an error of its own."""
    partition = make(replicas=(1, 2), min_isr=2)
    _, required = append(partition)
    assert {2} == lagging(partition, 10.0)
    settle(partition)
    assert ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND is partition.enough_replicas_have(required)
    assert ErrorCode.NOT_ENOUGH_REPLICAS is outcome(append, partition)
    assert (1, 2) == append(partition, acks=1)


def test_only_replicas_count(pair):
    """A fetch by a node without a replica, or out of range, changes nothing."""
    append(pair)
    with pytest.raises(BrokerError):
        fetch(pair, 3, 1)
    assert not fetch(pair, 2, 9)
    assert 0 == pair.high_watermark


def test_a_follower_refuses_to_lead(make):
    partition = make(node=2)
    answers = [outcome(append, partition), outcome(partition.delete_before, 0), partition.enough_replicas_have(0)]
    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3 == answers


def test_a_follower_takes_what_the_leader_sends(pair, make):
    """Records, watermark and log start come with the response. The watermark never passes the own end."""
    follower = make(node=2, replicas=(1, 2))
    append(pair, count=3)
    append(pair, count=3)
    follower.replicate(pair.log.read(0, 3, 1), leader_watermark=6, leader_start=2)
    assert (3, 3, 2) == (follower.log.next_offset, follower.high_watermark, follower.log.start_offset)


def test_the_low_watermark_waits_for_every_replica(pair):
    """Records are deleted everywhere when the last replica's log starts after them."""
    append(pair, count=5)
    fetch(pair, 2, 5)
    assert 4 == pair.delete_before(4)
    assert 0 == pair.low_watermark({1, 2})
    assert 4 == pair.low_watermark({1}), "a dead node deletes when it is back"
    assert fetch(pair, 2, 5, 1.1, log_start=4)
    assert 4 == pair.low_watermark({1, 2})
    assert 5 == pair.delete_before(-1)
    with rejected(ErrorCode.OFFSET_OUT_OF_RANGE):
        pair.delete_before(6)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(BATCH + BATCH, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(BATCH + b"x", ErrorCode.INVALID_RECORD, id="bytes behind the batch"),
        pytest.param(b"", ErrorCode.CORRUPT_MESSAGE, id="no batch"),
        pytest.param(batch_of(*[b"x"] * 200), ErrorCode.MESSAGE_TOO_LARGE, id="large"),
        *(
            # a codec that there isn't, or what only a broker writes or a transaction does: no reader would get past it
            pytest.param(with_attributes(BATCH, attributes), ErrorCode.INVALID_RECORD, id=f"attributes {attributes}")
            for attributes in (5, 6, 7, 0x10, 0x20, 0x31, -1)
        ),
    ],
)
def test_a_produce_is_one_valid_batch(make, data, code):
    """Anything else, or a batch above the limit, is rejected whole."""
    partition = make(replicas=(1,))
    with rejected(code):
        partition.append(data, acks=1)
    assert 0 == partition.log.next_offset


@pytest.mark.parametrize("attributes", [0, 1, 2, 3, 4, 8, 0x0C])
def test_every_codec_is_taken(make, attributes):
    assert (0, 1) == make().append(with_attributes(BATCH, attributes), acks=1)


FEW = ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.fixture
def rejecting(make):
    """A leader that has the batches 0 to 2 of a producer, and rejects further ones: too few replicas are in sync."""
    partition = make(min_isr=2)
    assert [0, 1, 2] == send(partition, 0, 1, 2)
    partition.settle_isr([1], 1)
    return partition


def test_nothing_overtakes_a_batch_that_was_rejected(rejecting):
    """After a replica has joined, later batches get the rejected one's error until that one has come again."""
    assert [FEW, FEW, FEW] == send(rejecting, 1, 2, 3), "1 and 2 are in the log, 3 is not"
    rejecting.settle_isr([1, 2], 2)
    assert [FEW, FEW, 1, 2, 3, 4] == send(rejecting, 4, 5, 1, 2, 3, 4)
    assert [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] == send(rejecting, 9)


def test_an_old_batch_that_was_rejected_blocks_nothing(rejecting):
    """A batch that is in the log, or is older than all that are remembered, need not come again."""
    rejecting.settle_isr([1, 2], 2)
    send(rejecting, *range(3, 20))
    rejecting.settle_isr([1], 3)
    send(rejecting, 0, 19)
    rejecting.settle_isr([1, 2], 4)
    assert [20] == send(rejecting, 20)


def test_a_new_epoch_does_not_wait_for_a_rejected_batch(rejecting):
    """A producer that numbers its records anew does not send the rejected batch again."""
    send(rejecting, 3)
    rejecting.settle_isr([1, 2], 2)
    assert [3] == send(rejecting, 0, epoch=1)


def test_nothing_overtakes_a_batch_that_came_before_its_leader(make):
    """A batch that a follower rejected must come again first after the follower has been elected."""
    partition = make(node=2)
    gone = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [gone, gone] == send(partition, 7, 6)
    partition.lead(Leadership(2, 1, (2,), version=1), (1, 2, 3), 0.0)
    assert [gone, gone, 0, 1, 2] == send(partition, 7, 8, 6, 7, 8)


def test_a_follower_need_not_see_a_rejected_batch_that_it_has_fetched(make):
    """The rejected batch came again at the leader, and reached the follower from there."""
    partition, leader = make(node=2), make()
    send(partition, 1, 0)
    send(leader, 0, 1)
    partition.replicate(leader.log.read(0, 2, 1_000), leader_watermark=2, leader_start=0)
    partition.lead(Leadership(2, 1, (2,), version=1), (1, 2, 3), 0.0)
    assert [2] == send(partition, 2)


def test_a_producer_is_known_after_its_batches_in_flight_were_cut_off(make):
    """A client has at most five batches in flight. After a cut of five, the earlier ones are still recognized."""
    partition = make()
    send(partition, *range(12))
    partition.log.truncate_to(7)
    assert [6, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 7] == send(partition, 6, 8, 7)


def test_sequences_of_rejected_batches_wrap(make):
    """After the largest sequence number comes 0, also where a batch was rejected."""
    partition = make(min_isr=2)
    last = 2**31 - 1
    partition.settle_isr([1], 1)
    send(partition, 0, last)
    partition.settle_isr([1, 2], 2)
    assert [FEW, 0, 1] == send(partition, 0, last, 0)


@pytest.fixture
def internal(make):
    """A leader and a follower of the internal topic, with three records. The follower is told of a log start of 2."""
    leader, follower = make(), make(node=2)
    follower.start_waits = True
    for _ in range(3):
        append(leader)
    follower.replicate(leader.log.read(0, 3, 1 << 20), leader_watermark=3, leader_start=2)
    return leader, follower


def test_a_follower_of_the_internal_topic_secures_records_before_it_hides_others(internal):
    """The records before the leader's new start are needed until a copy of them is on this node's disk."""
    leader, follower = internal
    for offset, start in ((3, 0), (4, 2)):
        assert 0 == follower.log.start_offset
        append(leader)
        data = leader.log.read(offset, offset + 1, 1 << 20)
        follower.replicate(data, leader_watermark=offset + 1, leader_start=2)
        assert start == follower.log.start_offset
        follower.log.sync()
    assert 5 == follower.log.secured_offset


@pytest.mark.parametrize("has_another_leader", [False, True])
def test_a_log_start_that_waits_for_the_disk_is_adopted_without_another_record(internal, has_another_leader):
    """A leader sends its log start once. Another leader may not have the records from there, and sends its own."""
    _, follower = internal
    follower.adopt_start()
    assert 0 == follower.log.start_offset
    if has_another_leader:
        follower.follow(Leadership(3, 7, (2, 3), 8), (1, 2, 3))
    follower.log.sync()
    follower.adopt_start()
    assert (0 if has_another_leader else 2) == follower.log.start_offset


def test_who_was_known_stays_as_known():
    """Followers may come and go. The state of those that remain is kept."""
    followers = Followers()
    followers.set_followers([2, 3], now=0.0)
    followers.fetched(2, 20, 0, FetchClock(1.0), 20)
    followers.set_followers([2, 4], now=5.0)
    assert (20, -1) == (followers.end_of(2), followers.end_of(4))
    assert {2} == followers.at_least(20)
    assert 3 not in followers
