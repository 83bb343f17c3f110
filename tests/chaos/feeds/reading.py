"""Read the files of a run as what ``checker`` takes."""

from purgatory.feeds import KafkaFeed
from purgatory.feeds.engine import LogPosition
from tests.chaos.feeds.checker import Applied, Client, Poll, Segment, Sent, Worker
from tests.chaos.feeds.files import lines_of


def read_sent(folder, engine):
    """The events in the order of the truth. And by key the partition, for Kafka."""
    sent, row = {}, 0
    for key, number, uid in lines_of(folder / "truth"):
        row += len(f"{key} {number} {uid}\n")
        sent[uid] = Sent(uid, key, row)
    partitions = {}
    for path in folder.glob("published-*.log"):
        for uid, key, outcome, text in lines_of(path):
            event = sent[uid]
            event.outcome = outcome
            if outcome == "accepted":
                event.place = _place(engine, text)
                partitions[key] = event.place[0]
    return list(sent.values()), partitions


def _place(engine, text):
    """The place of an accepted event."""
    if engine != "kafka":
        position = LogPosition.parse(text)
        return "", (position.epoch, position.offset)
    ((partition, offset),) = _offsets(text).items()
    return partition, offset


def _offsets(text):
    offsets = _KAFKA.parse(text).offsets
    return {partition: offset for partition, offset in enumerate(offsets) if offset is not None}


_KAFKA = KafkaFeed.position_type


def read_clients(folder, engine):
    """The clients, each with its runs: what it was given from a beginning to the next one."""
    found = []
    for path in sorted(folder.glob("client-*.log")):
        client = Client(int(path.stem.partition("-")[2]), [[]])
        for kind, *parts in lines_of(path):
            if kind == "begin":
                client.runs.append([])
            else:
                client.runs[-1].append(Applied(parts[1], _place(engine, parts[0])))
        found.append(client)
    return found


def read_worker(path, engine, partitions, *, is_last):
    """One process."""
    worker = Worker(path.stem, is_last=is_last)
    for kind, *parts in lines_of(path):
        if kind == "reload":
            worker.segments.append(Segment(int(parts[0]), is_back=parts[1] != "-"))
        elif kind == "start":
            worker.segments[-1].start = _offsets(parts[0]) if engine == "kafka" else dict([_place(engine, parts[0])])
        elif kind == "apply":
            text, key, _, uid = parts
            if engine == "kafka":
                place = (partitions[key], _offsets(text)[partitions[key]]) if key in partitions else None
            else:
                place = _place(engine, text)
            if place is not None:
                worker.segments[-1].applied.append(Applied(uid, place))
        elif kind == "poll":
            key, parked, ended, outcome, changed = parts
            changed = None if changed == "-" else float(changed)
            worker.polls.append(Poll(key, float(parked), float(ended), outcome, changed))
        elif kind in {"pause", "away"}:
            worker.excused.append((float(parts[0]), float(parts[1])))
        elif kind == "broken":
            worker.broken.append(" ".join(parts))
    worker.excused.sort()
    return worker
