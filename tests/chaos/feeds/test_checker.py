"""The checker finds each kind of broken promise in a history, and allows what the promises allow."""

import pytest

from tests.chaos.feeds.checker import (
    Applied,
    Client,
    Poll,
    Segment,
    Sent,
    Worker,
    check,
    check_client,
    check_history,
)

EPOCH = 7


def place(number, group=""):
    """A place in the feed. With a partition, one of Kafka."""
    return ("", (EPOCH, number)) if group == "" else (group, number)


def sent(number, group="", **changed):
    """Event ``number``, which was accepted at place ``number``. Its row of the truth ends at byte ``10 * number``."""
    given = {"uid": f"e{number}p", "key": f"k{group}", "outcome": "accepted", "place": place(number, group)}
    return Sent(row=10 * number, **{**given, **changed})


def segment(*numbers, start=0, read=0, group="", is_back=False):
    """A segment that begins after place ``start`` and has applied these events."""
    applied = [Applied(f"e{number}p", place(number, group)) for number in numbers]
    return Segment(read, is_back=is_back, start=dict([place(start, group)]), applied=applied)


def worker(*segments, **given):
    return Worker("worker", list(segments), **given)


def complaints(events, *workers):
    return check(events, workers)[0]


def the_complaint(events, *workers):
    """The only complaint."""
    (found,) = complaints(events, *workers)
    return found.removeprefix("worker: ")


EVENTS = [sent(number) for number in (1, 2, 3, 4)]


def test_a_history_without_a_fault_has_no_complaint():
    """A worker that applied every event once and in order kept the promises."""
    assert [] == complaints(EVENTS, worker(segment(1, 2, 3, 4)))


# -- lost


def test_a_hole_is_a_lost_event():
    """Events around a lost one were applied. The hole is seen, and the event is missed."""
    hole, missed = complaints(EVENTS, worker(segment(1, 2, 4)))

    assert hole.startswith("worker: lost: e4p at ('', (7, 4)) was applied directly after (7, 2)")
    assert missed.startswith("worker: lost: e3p at ('', (7, 3)) was not applied")


def test_a_hole_in_a_partition_is_a_lost_event():
    """Offsets of Kafka have holes of their own, so only the publisher's answer shows the loss."""
    events = [sent(number, group=0) for number in (1, 3, 7)]

    assert the_complaint(events, worker(segment(1, 7, group=0))).startswith("lost: e3p")


def test_an_event_at_the_end_is_lost():
    """A worker that was there at the end has applied everything."""
    assert the_complaint(EVENTS, worker(segment(1, 2, 3))).startswith("lost: e4p")


def test_a_killed_worker_has_not_lost_what_came_after_it():
    """A worker that was killed need not have the end."""
    assert [] == complaints(EVENTS, worker(segment(1, 2, 3), is_last=False))


def test_a_gap_that_the_reload_has_read_loses_nothing():
    """Trimmed events are in the state that the reload read."""
    assert [] == complaints(EVENTS, worker(segment(1), segment(4, start=3, read=30)))


def test_a_gap_that_the_reload_has_not_read_loses_events():
    """A reload that read too early does not have the last trimmed event."""
    found = the_complaint(EVENTS, worker(segment(1), segment(4, start=3, read=20)))

    assert found.startswith("lost: e3p at ('', (7, 3)) was neither applied nor")


def test_an_event_that_may_have_been_accepted_is_not_lost():
    """Whether an uncertain event was applied is open."""
    events = [*EVENTS, sent(5, outcome="uncertain", place=None)]

    assert [] == complaints(events, worker(segment(1, 2, 3, 4)))
    assert [] == complaints(events, worker(segment(1, 2, 3, 4, 5)))


# -- doubled


def test_an_event_that_was_applied_twice_at_one_place_is_found():
    """The same event again, at its place."""
    found = complaints(EVENTS, worker(segment(1, 2, 2, 3, 4)))

    assert any(text.startswith("worker: doubled: e2p") for text in found), found


def test_an_event_that_was_applied_at_two_places_is_found():
    """A feed that accepted an id twice gives the event another place."""
    events = [sent(1, uid="e1i"), sent(2)]
    doubled = segment(1, 2, 3)
    doubled.applied[0].uid = doubled.applied[2].uid = "e1i"

    assert the_complaint(events, worker(doubled)).startswith("doubled: e1i")


def test_an_event_that_was_applied_again_after_a_reload_is_found():
    """A reload without a position goes on after the end that was noted before it."""
    found = complaints(EVENTS, worker(segment(1, 2), segment(2, 3, 4, start=1, read=20)))

    assert any(text.startswith("worker: doubled: e2p") for text in found), found


def test_a_reload_that_names_a_position_may_apply_events_again():
    """A reload that returns an earlier position asks for the events after it."""
    assert [] == complaints(EVENTS, worker(segment(1, 2), segment(2, 3, 4, start=1, read=20, is_back=True)))


def test_an_id_that_was_trimmed_may_be_applied_again():
    """A server that forgets ids with their events accepts a trimmed one again, and only that one."""
    again = segment(1, 2, 3)
    again.applied[0].uid = again.applied[2].uid = "e1i"
    events = [sent(1, uid="e1i", key="a", place=place(3)), sent(2)]

    assert [] == check(events, [worker(again)], [place(1)])[0]
    assert [] != check(events, [worker(again)], [place(0), place(3), (0, 1)])[0]


# -- out of order


def test_events_that_were_applied_in_another_order_are_found():
    """Two events of a partition have changed places."""
    events = [sent(number, group=0) for number in (1, 2, 3)]

    found = complaints(events, worker(segment(1, 3, 2, group=0)))

    assert "worker: order: e2p at (0, 2) was applied after 3" in found


def test_events_of_a_key_that_were_accepted_in_another_order_are_found():
    """An event that was sent after the answer to another one comes after it."""
    events = [sent(2), sent(1)]

    assert the_complaint(events).startswith("order: e1p was accepted at")


def test_an_event_that_was_applied_at_another_place_is_found():
    """The publisher and the worker name the same position."""
    events = [sent(1), sent(2, place=place(9))]

    found = complaints(events, worker(segment(1, 2)))

    assert "worker: order: e2p was accepted at ('', (7, 9)) and applied at ('', (7, 2))" in found


# -- what should not be there


def test_a_rejected_event_that_was_applied_is_found():
    """A publisher that was told that its event was rejected relies on it."""
    events = [sent(1), sent(2, outcome="rejected", place=None)]

    assert the_complaint(events, worker(segment(1, 2))).startswith("rejected: e2p")


def test_an_event_of_no_publisher_is_found():
    """An applied event was sent."""
    assert the_complaint([sent(1)], worker(segment(1, 2))).startswith("unknown: e2p")


def test_what_a_worker_saw_itself_is_passed_on():
    """A worker that had not applied what ``applied`` promised says so."""
    assert "broken: 3 counts as applied" == the_complaint([], worker(broken=["3 counts as applied"]))


# -- polls


def poll(outcome, ended, changed=10.0):
    return Poll("k", 0.0, ended, outcome, changed)


@pytest.mark.parametrize(("outcome", "ended", "kind"), [("EXPIRED", 20.0, "missed:"), ("SATISFIED", 12.0, "late:")])
def test_a_poll_that_waited_although_its_event_was_there_is_found(outcome, ended, kind):
    """It timed out, or the next event answered it."""
    assert the_complaint([], worker(polls=[poll(outcome, ended)])).startswith(kind)


@pytest.mark.parametrize(
    "each",
    [poll("SATISFIED", 10.1), poll("EXPIRED", 20.0, None), poll("EXPIRED", 10.1), poll("CANCELLED", 20.0, None)],
    ids=["answered", "without an event", "at the moment of the event", "cancelled"],
)
def test_a_poll_that_was_answered_or_had_no_event_is_none(each):
    """A poll may time out if its worker had no event for it."""
    assert [] == complaints([], worker(polls=[each]))


def test_time_in_which_a_worker_stood_still_does_not_count():
    """A stopped worker cannot answer. Overlapping stops count once."""
    late = poll("SATISFIED", 16.0)

    assert [] == complaints([], worker(polls=[late], excused=[(9.0, 14.0), (11.0, 15.5)]))
    assert the_complaint([], worker(polls=[late], excused=[(9.0, 12.0), (10.0, 12.0)])).startswith("late:")


# -- events that the server has lost


def test_an_event_that_the_server_lost_before_it_was_read_is_no_complaint():
    """Nobody can know of it. An event that another one replaced is not missed either, after a reload."""
    events = [*EVENTS, sent(5, uid="lost")]
    replaced = Segment(0, is_back=False, start={"": (EPOCH, 0)}, applied=[*segment(1, 2, 3).applied, lost_at(4)])
    assert [] == check(events, [worker(segment(1, 2, 3, 4))], lost=["lost"])[0]
    events = [*EVENTS, sent(4, uid="lost")]
    assert [] == check(events, [worker(replaced, segment(4, start=3, read=40))], lost=["lost"])[0]


def lost_at(number):
    return Applied("lost", place(number))


def test_a_worker_that_keeps_a_lost_event_is_found():
    """Its last segment is compared with what the server has."""
    history = {place(number): f"e{number}p" for number in (1, 2, 3, 4)}
    kept = Segment(0, is_back=False, start={"": (EPOCH, 0)}, applied=[*segment(1, 2, 3).applied, lost_at(4)])
    assert [] == check_history(worker(segment(1, 2, 3, 4)), history)
    (found,) = check_history(worker(kept), history)
    assert "lost was applied at ('', (7, 4)), where e4p is" in found
    (found,) = check_history(worker(segment(1, 2, 4)), history)
    assert "e3p at ('', (7, 3)) was not applied" in found


# -- clients


def client_complaints(*runs, applied=(1, 2, 3, 4), events=EVENTS):
    """The complaints about a client with these runs, where workers have applied these events."""
    client = Client(0, [[Applied(f"e{number}p", place(number)) for number in run] for run in runs])
    return check_client(client, events, {place(number) for number in applied}, set(), ["", "k"])


def test_a_client_that_began_again_has_no_complaint():
    """What was between two runs it knows that it missed."""
    assert [] == client_complaints([1, 2], [4])


def test_a_client_misses_nothing_at_the_place_of_a_repeated_id():
    """No worker applies the event there, because all have applied it before."""
    assert [] == client_complaints([1, 2, 4], applied=[1, 2, 4])
    answered_later = [*EVENTS[:1], sent(3, uid="e2p"), EVENTS[3]]
    assert [] == client_complaints([1, 2, 4], events=answered_later)


@pytest.mark.parametrize(("run", "text"), [([1, 2, 4], "e3p of k"), ([2, 1], "came after"), ([1, 1], "came after")])
def test_a_client_that_misses_an_event_is_found(run, text):
    """Within a run each event of the key comes once and in order."""
    assert any(text in found for found in client_complaints(run))
