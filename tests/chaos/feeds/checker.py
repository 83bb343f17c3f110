"""What the files of a run say: whether an event was lost, doubled or out of order, and whether a poll missed its event.

Everything here is a pure function of what was read. A place is a group and a number: ``("", (epoch, offset))`` in a
feed with one order, and ``(partition, offset)`` in Kafka, which has an order per partition.

**What a worker has to have applied.** A segment is what a worker does from one reload to the next. It begins at a
position, and ends at the last event that was applied. Every accepted event between the two was applied in it, once, and
in the order of places. An event before the start of a segment was applied earlier, or the reload has read it.
"""

import bisect
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.chaos.feeds.clients import key_of

#: How long a poll may wait after its worker has the event, and how long if it timed out, in seconds. The first is less
#: than the time between two events of a key, so that the next event does not hide that a poll missed one. The second is
#: for a timeout at the very moment of the event.
LATE_S, MISSED_S = 1.0, 0.25


@dataclass
class Sent:
    """An event that a publisher has sent."""

    uid: str
    key: str
    row: int  # the size of the truth with its row
    outcome: str = "uncertain"
    place: tuple | None = None  # where it was accepted

    @property
    def has_id(self):
        return self.uid.endswith("i")


@dataclass
class Applied:
    uid: str
    place: tuple


@dataclass
class Segment:
    """From one reload to the next."""

    read: int  # how much of the truth the reload has read
    is_back: bool  # whether the reload has named a position, from which events may be applied again
    start: dict | None = None  # by group, up to where events are in the state. None if no event was applied
    applied: list = field(default_factory=list)


@dataclass
class Client:
    """A client that asks any worker."""

    number: int
    runs: list  # what it was given, from one beginning to the next


@dataclass
class Poll:
    key: str
    parked: float
    ended: float
    outcome: str
    changed: float | None  # when the worker had another state of the key


@dataclass
class Worker:
    """One process, from its start to its end."""

    name: str
    segments: list = field(default_factory=list)
    polls: list = field(default_factory=list)
    excused: list = field(default_factory=list)  # when it stood still, or did not follow: from, to
    broken: list = field(default_factory=list)
    is_last: bool = True  # whether it was there at the end, and so has everything


def check(sent, workers, trims=(), lost=()):
    """All complaints, and counts of what was seen.

    ``trims`` are the places up to which ids were forgotten, and ``lost`` are events that the server has lost. A worker
    that has applied one of these has seen a gap, and one that has not cannot know of it.
    """
    events = {event.uid: event for event in sent}
    for uid in lost:
        if events[uid].outcome == "accepted":
            events[uid].outcome = "lost"
    complaints = check_accepted_order(sent)
    counts = Counter(event.outcome for event in sent)
    for worker in workers:
        found = [f"broken: {text}" for text in worker.broken]
        for segment in worker.segments:
            found += check_segment(segment, events)
        found += check_doubled(worker, events, trims)
        found += check_lost(worker, sent)
        found += [text for poll in worker.polls if (text := check_poll(poll, worker.excused))]
        complaints += [f"{worker.name}: {text}" for text in found]
        counts.update(poll.outcome for poll in worker.polls)
        counts["applied"] += sum(len(segment.applied) for segment in worker.segments)
        counts["gaps"] += max(0, len(worker.segments) - 1)
    return complaints, counts


def check_accepted_order(sent):
    """The events of a key were accepted in the order in which they were sent, one after the answer to the other."""
    complaints = []
    latest = {}
    for event in sent:
        if event.outcome != "accepted" or event.place is None:
            continue
        group, number = event.place
        before = latest.get(event.key)
        if before is not None and (before.place[0] != group or before.place[1] >= number):
            complaints.append(f"order: {event.uid} was accepted at {event.place}, after {before.uid} at {before.place}")
        latest[event.key] = event
    return complaints


def check_segment(segment, events):
    """Events follow each other without a hole in one order, go up in Kafka's, and none was rejected."""
    complaints = []
    latest = dict(segment.start or {})
    for applied in segment.applied:
        group, number = applied.place
        before = latest.get(group)
        if before is not None and number <= before:
            complaints.append(f"order: {applied.uid} at {applied.place} was applied after {before}")
        elif group == "" and before is not None and number != (before[0], before[1] + 1):
            complaints.append(f"lost: {applied.uid} at {applied.place} was applied directly after {before}")
        latest[group] = number
        event = events.get(applied.uid)
        if event is None:
            complaints.append(f"unknown: {applied.uid} was never sent")
        elif event.outcome == "rejected":
            complaints.append(
                f"rejected: {applied.uid} was applied, and its publisher was told that it was not accepted"
            )
        elif event.outcome == "accepted" and not event.has_id and event.place != applied.place:
            complaints.append(f"order: {applied.uid} was accepted at {event.place} and applied at {applied.place}")
    return complaints


def check_doubled(worker, events, trims):
    """No event was applied twice, except one with an id that the server has forgotten, or that comes after a reload."""
    complaints = []
    seen = {}
    latest = {}
    for segment in worker.segments:
        here = set()
        if segment.is_back:
            latest = {}
        for applied in segment.applied:
            uid, (group, number) = applied.uid, applied.place
            if uid in here:
                is_allowed = is_forgotten(events.get(uid), seen[uid], applied.place, trims)
            else:
                is_allowed = uid not in seen or segment.is_back or (uid in events and events[uid].has_id)
            if not is_allowed:
                complaints.append(f"doubled: {uid} was applied at {applied.place} and at {seen[uid]}")
            elif group in latest and number <= latest[group]:
                complaints.append(f"order: {uid} at {applied.place} was applied after {latest[group]}, over a reload")
            here.add(uid)
            seen[uid] = applied.place
            if uid not in events or events[uid].outcome != "lost":
                latest[group] = number
    return complaints


def is_forgotten(event, first, second, trims):
    """Whether the place where an id was accepted was trimmed before it was accepted again."""
    return (
        event is not None
        and event.has_id
        and any(group == first[0] == second[0] and first[1] <= number < second[1] for group, number in trims)
    )


def check_lost(worker, sent):
    """Each accepted event was applied, or was read by the reload that went past it."""
    complaints = []
    applied = {each.uid for segment in worker.segments for each in segment.applied}
    gone = {event.uid for event in sent if event.outcome == "lost"}  # others may have their places
    ends = defaultdict(list)  # by group: the last place of a segment, and the segment
    for segment in worker.segments:
        last = dict(segment.start or {})
        last.update(each.place for each in segment.applied if each.uid not in gone)
        for group, number in last.items():
            if not ends[group] or number > ends[group][-1][0]:
                ends[group].append((number, segment))
    for event in sent:
        if event.outcome != "accepted" or event.uid in applied or event.place is None:
            continue
        group, number = event.place
        place = bisect.bisect_left(ends[group], number, key=lambda each: each[0])
        if place == len(ends[group]):
            if worker.is_last:
                complaints.append(f"lost: {event.uid} at {event.place} comes after all that was applied")
            continue
        segment = ends[group][place][1]
        if number > segment.start.get(group, number) and not event.has_id:
            complaints.append(f"lost: {event.uid} at {event.place} was not applied, and events around it were")
        elif event.row > segment.read:
            complaints.append(f"lost: {event.uid} at {event.place} was neither applied nor in the state of the reload")
    return complaints


def check_history(worker, history):
    """What a worker has applied since its last reload is what the server has, event by event."""
    complaints = []
    for segment in worker.segments[-1:]:
        applied = {each.place: each.uid for each in segment.applied}
        for place, uid in applied.items():
            if place in history and history[place] != uid:
                complaints.append(f"{worker.name}: lost: {uid} was applied at {place}, where {history[place]} is")
        if applied:
            first, last = min(applied), max(applied)
            missing = [place for place in history if first < place < last and place not in applied]
            complaints += [f"{worker.name}: lost: {history[place]} at {place} was not applied" for place in missing]
    return complaints


def check_client(client, sent, applied, lost, keys):
    """Each run of a client has the events of its key once and in order, without one missing between two.

    ``applied`` are the places of the events that workers have applied. Kafka answers a repeated id with a later place.
    A worker that has lost its state or whose history was trimmed may apply it there, and others do not.
    """
    complaints = []
    key = key_of(client.number, keys)
    accepted = [event for event in sent if event.key == key and event.outcome == "accepted"]
    places = {event.place: event.uid for event in accepted if event.place in applied}
    for run in client.runs:
        got, given = [each.place for each in run], {each.uid for each in run} | lost
        name = f"client {client.number}"
        complaints += [
            f"{name}: order: {place} came after {before}"
            for before, place in itertools.pairwise(got)
            if place <= before or place[0] != before[0]
        ]
        for place, uid in places.items():
            if got and got[0][0] == place[0] and got[0] < place < got[-1] and uid not in given:
                complaints.append(f"{name}: lost: {uid} of {key} at {place} was never given")
    return complaints


def check_poll(poll, excused):
    """A poll was answered once its worker had the event. None, or the complaint."""
    if poll.changed is None:
        return None
    late_s = lateness_s(poll, excused)
    if poll.outcome == "EXPIRED":
        if late_s > MISSED_S:
            return f"missed: the poll of {poll.key} timed out {late_s:.3f} s after its event ({poll})"
    elif late_s > LATE_S:
        return f"late: the poll of {poll.key} was answered {late_s:.3f} s after its event ({poll})"
    return None


def lateness_s(poll, excused):
    """How long a poll waited although its worker had the event, without the time in which the worker stood still."""
    late_s = poll.ended - poll.changed
    begin, covered_s = poll.changed, 0.0
    for since, until in excused if late_s > MISSED_S else ():  # in the order of their starts
        since, until = max(since, begin), min(until, poll.ended)
        if until > since:
            covered_s += until - since
            begin = until
    return late_s - covered_s
