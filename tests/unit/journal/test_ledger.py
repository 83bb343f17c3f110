"""The ledger: rows of operations that have left, until the writer comes for them. In whichever implementation runs."""

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import traceback
import weakref
from array import array
from functools import partial
from itertools import product

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.journal import Journal, JournalClosed, JournalLocked, read
from purgatory.journal._ledger import Ledger, Recorder
from tests.support import PATIENCE_S, Waiting, beside, cpython_only, park, run_threads
from timer import MockTimer


class Watch:
    """Stands for the core's list of watchers."""

    def __init__(self, key):
        self.key = key


class Source:
    """Stands for what the rows of one observer have in common."""


@contextlib.contextmanager
def forked():
    """A forked child, which is there when the block begins and ends after it."""
    over, end = os.pipe()
    is_there, say = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.write(say, b".")
        os.read(over, 1)
        os._exit(0)
    try:
        assert os.read(is_there, 1)
        yield
    finally:
        for descriptor in (end, over, is_there, say):
            os.close(descriptor)
        os.waitpid(child, 0)


def in_child(act):
    """Do this in a forked child, and wait for its end. It must not raise."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # a child that hangs is killed
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forks(test):
    """Mark a test that forks."""
    test = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")(test)


def filled(room, rows):
    """A ledger for so many rows, with that many in it."""
    ledger = Ledger(room)
    for number in range(rows):
        assert ledger.put(row(number))
    return ledger


SOURCE, WATCH = Source(), Watch("k")


def row(number, *, source=SOURCE, watches=(WATCH,), outcome=Outcome.SATISFIED, error=None):
    return (source, Waiting, watches, outcome, error, number, 5, number + 7, 1)


def numbers(lines, place=0):
    """A column of numbers, whether it came as an array or as bytes."""
    return list(array("q", lines[2 + place]))


def groups_of(lines):
    """The group of each row."""
    return [lines[0][place] for place in array("I", lines[1])]


def test_rows_come_out_as_they_went_in():
    ledger = filled(100, 5)
    assert 5 == len(ledger)
    first, second = ledger.take(2), ledger.take(10)
    assert ([0, 1], [2, 3, 4]) == (numbers(first), numbers(second))
    assert ([5, 5], [7, 8], [1, 1]) == tuple(numbers(first, place) for place in (1, 2, 3))
    assert 0 == len(ledger)
    nothing = ledger.take(5)
    assert ([], [], [[]] * 4) == (nothing[0], groups_of(nothing), [numbers(nothing, place) for place in range(4)])


def test_a_full_ledger_takes_no_more_until_there_is_room():
    ledger = Ledger(3)
    assert [True, True, True, False] == [ledger.put(row(number)) for number in range(4)]
    assert [0] == numbers(ledger.take(1))
    assert ledger.put(row(9))
    assert [1, 2, 9] == numbers(ledger.take(9))


@cpython_only
def test_rows_can_be_given_up_unseen():
    source = Source()
    before = sys.getrefcount(source)
    ledger = Ledger(2_000)
    for number in range(1_500):
        ledger.put(row(number, source=source))
    assert [0, 1_400] == [ledger.drop(0), ledger.drop(1_400)]
    assert [1_400, 1_401] == numbers(ledger.take(2))
    assert [98, 0] == [ledger.drop(500), ledger.drop(1)]
    assert (0, before) == (len(ledger), sys.getrefcount(source))


def test_order_survives_any_mixture_of_adding_and_taking():
    draw = random.Random(7)
    ledger, went_in, came_out = Ledger(5_000), 0, []
    for _ in range(300):
        for _ in range(draw.randrange(draw.choice([10, 900]))):
            went_in += ledger.put(row(went_in))
        if len(ledger):
            came_out += numbers(ledger.take(draw.randrange(1, draw.choice([20, 1_500]))))
    while len(ledger):
        came_out += numbers(ledger.take(700))
    assert list(range(went_in)) == came_out
    assert went_in > 20_000


def test_rows_that_are_alike_are_one_group():
    error, other, several = ValueError("no"), Watch("other"), (Watch("a"), Watch("b"))
    wanted = [
        (SOURCE, Waiting, (WATCH,), Outcome.SATISFIED, None),
        (SOURCE, Waiting, (other,), Outcome.SATISFIED, None),
        (SOURCE, Waiting, (WATCH,), Outcome.EXPIRED, None),
        (SOURCE, Waiting, (WATCH,), Outcome.EXPIRED, error),
        (SOURCE, Waiting, several, Outcome.SATISFIED, None),
        (SOURCE, Waiting, several[:1], Outcome.SATISFIED, None),
        (SOURCE, Waiting, several[1:], Outcome.SATISFIED, None),
        (SOURCE, Waiting, (), Outcome.IMMEDIATE, None),
        (Source(), Waiting, (WATCH,), Outcome.SATISFIED, None),
    ]
    draw = random.Random(3)
    rows = [draw.choice(wanted) for _ in range(3_000)]
    ledger = Ledger(len(rows))
    for source, _, watches, outcome, error_ in rows:
        # a tuple of its own for each, as the core makes them
        ledger.put(row(0, source=source, watches=(*watches,), outcome=outcome, error=error_))
    lines = ledger.take(len(rows))
    assert rows == groups_of(lines)
    assert len(wanted) == len(lines[0])


class Raising:
    """Equal to nothing and without a hash, once the test sets it."""

    broken = False

    def __hash__(self):
        if self.broken:
            raise RuntimeError("no hash any more")
        return 7

    def __eq__(self, other):
        if self.broken:
            raise RuntimeError("not to be compared")
        return self is other


class RaisingError(Raising, Exception):
    """An error that can't be compared."""

    broken = True


def test_nothing_of_the_user_s_is_asked_while_rows_are_grouped():
    """Keys and errors that raise when they are hashed or compared are distinguished by what they are."""
    watches = [(Watch(RaisingError()),), (Watch(RaisingError()), Watch(RaisingError()))]
    errors = [None, RaisingError(), RaisingError()]
    rows = [(under, error) for under in watches for error in errors]
    ledger = Ledger(20)
    for under, error in rows + rows:
        ledger.put(row(0, watches=under, error=error))
    lines = ledger.take(12)
    found = [(under, error) for _, _, under, _, error in groups_of(lines)]
    assert len(rows) == len(lines[0])
    assert [(list(map(id, under)), id(error)) for under, error in rows + rows] == [
        (list(map(id, under)), id(error)) for under, error in found
    ]


def test_a_key_that_raises_later_costs_no_row(tmp_path, recorded, counts):
    """Such a key is written by its label, and so is what follows."""
    key = Raising()
    with recorded(interval_ms=60_000) as (journal, fetch):
        for _ in range(6):
            park(fetch, key, "k").force_complete()
        key.broken = True
        assert journal.flush()
        key.broken = False
        assert (6, 0, 0) == counts(journal)
    assert 6 == len(list(read(tmp_path)))


@pytest.mark.native  # Python's own ledger leaves it to its writer that one takes at a time
def test_a_second_taker_gets_nothing_while_the_first_is_at_it():
    """A collection that takes rows in the middle of a ``take`` neither gets its rows nor leaves it removed ones."""
    ledger, found, refused = filled(5_000, 3_000), [], []

    def take(phase, _):
        if phase == "start" and not refused:
            try:
                found.extend(numbers(ledger.take(3_000)))
            except RuntimeError as error:
                refused.append(error)

    kept = [[] for _ in range(500)]  # so that the next list isn't one that lies ready
    thresholds = gc.get_threshold()
    gc.callbacks.append(take)
    gc.set_threshold(1)
    try:
        found.extend(numbers(ledger.take(3_000)))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(take)
    del kept
    assert list(range(3_000)) == found
    assert 0 == len(ledger)


@pytest.mark.native  # Python's own ledger has no mark that a thread takes rows
@cpython_only
@forks
def test_a_forked_child_can_drop_rows_that_another_thread_was_taking():
    """A thread that is inside ``take`` at the fork is not in the child, and leaves no mark in its ledger."""
    ledger, is_inside, end = filled(50, 9), threading.Event(), threading.Event()

    def stop_inside(phase, _):
        is_takers = threading.current_thread() is taker and 1 == gc.get_threshold()[0]
        if phase == "start" and is_takers and not is_inside.is_set():
            is_inside.set()
            end.wait(PATIENCE_S)

    def take():
        kept = [[] for _ in range(500)]  # so that the next list isn't one that lies ready
        gc.set_threshold(1)
        ledger.take(9)
        is_inside.set()  # since CPython 3.12 no collection begins inside
        del kept

    thresholds, taker = gc.get_threshold(), threading.Thread(target=take)
    gc.callbacks.append(stop_inside)
    try:
        taker.start()
        assert is_inside.wait(PATIENCE_S)
        there = len(ledger)

        def drop():
            ledger.after_fork()
            assert there == ledger.drop(9)

        in_child(drop)
    finally:
        end.set()
        taker.join()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(stop_inside)


# Python's own ledger leaves it to its writer that one takes at a time.
@pytest.mark.parametrize("takers", [1, pytest.param(2, marks=pytest.mark.native)])
def test_every_thread_s_rows_come_out_once_and_in_its_order(takers):
    """A taker that another one is ahead of gets an error, and no row."""
    ledger, found, over = Ledger(3_000), [[] for _ in range(takers)], threading.Event()
    threads, each = 4, 20_000 // takers
    refusal = [RuntimeError] * (takers - 1)

    def add(thread):
        for number in range(each):
            while not ledger.put(row(thread * each + number)):
                pass

    def take(mine):
        while not over.is_set() or len(ledger):
            with contextlib.suppress(*refusal):
                if len(ledger):
                    mine.extend(numbers(ledger.take(500)))

    with beside(*[partial(take, mine) for mine in found]):
        run_threads(*[partial(add, thread) for thread in range(threads)])
        over.set()
    assert list(range(threads * each)) == sorted(number for mine in found for number in mine)
    for mine, thread in product(found, range(threads)):
        own = [number for number in mine if number // each == thread]
        assert sorted(own) == own


def test_a_recorder_hands_on_what_has_no_room_and_what_is_not_the_core_s():
    """A row without room goes to ``refuse`` as ``put`` takes it, and anything else to ``other``."""
    ledger, refused, others = Ledger(1), [], []
    recorder = Recorder(ledger, SOURCE, lambda: 77, None, refused.append, lambda *given: others.append(given))
    operation, stranger = Waiting(40), object()
    recorder.finished(operation, Outcome.IMMEDIATE, None)
    recorder.finished(operation, Outcome.FORCED, None)
    recorder.finished(stranger, Outcome.FORCED, None)
    assert [(SOURCE, Waiting, (), Outcome.FORCED, None, 77, 40, 77, 0)] == refused
    assert [(SOURCE, stranger, Outcome.FORCED, None, 77)] == others
    lines = ledger.take(1)
    assert [(SOURCE, Waiting, (), Outcome.IMMEDIATE, None)] == groups_of(lines)
    assert ledger.put(refused[0])


def test_a_clock_that_fails_is_the_caller_s_to_hear_of():
    """An error of the given clock, or of the function that names the source, is raised. The purgatory contains it."""

    def fail(*_):
        raise OSError("stopped")

    ledger = Ledger(5)
    for clock, source_of in ((fail, None), (None, fail)):
        recorder = Recorder(ledger, SOURCE, clock, source_of, fail, fail)
        with pytest.raises(OSError, match="stopped"):
            recorder.finished(Waiting(5), Outcome.FORCED, None)
    assert 0 == len(ledger)


def test_a_clock_that_takes_to_fractions_is_cut_to_whole_nanoseconds():
    """An observer rejects such a clock when it is made. One that changes afterwards costs no row."""
    ledger = Ledger(5)
    recorder = Recorder(ledger, SOURCE, lambda: 77.9, None, pytest.fail, pytest.fail)
    recorder.finished(Waiting(5), Outcome.FORCED, None)
    lines = ledger.take(1)
    assert ([77], [77]) == (numbers(lines), numbers(lines, 2))


def test_an_operation_that_was_reschedule_waits_from_when_it_was_parked(tmp_path):
    """That instant is exact, whatever the operation was rescheduled by."""
    timer = MockTimer()
    with Journal(tmp_path) as journal:
        observer = journal.observer("leases", now_ns=timer.clock, epoch_ns=10**18)
        with DelayedOperationPurgatory("leases", timer=timer, observers=[observer]) as leases:
            timer.advance_clock(3)
            lease = park(leases, delay_ms=100)
            timer.advance_clock(60)
            assert lease.extend(100)
            lease._task_moved_by_ns += 500_000  # half a millisecond
            lease._task_deadline_ns += 500_000
            timer.advance_clock(101)
    (record,) = read(tmp_path)
    assert ("expired", 161, 161_000) == (record.outcome, record.delay_ms, record.waited_us)
    assert 10**15 + 3_000 == record.created


def test_nothing_of_an_operation_is_kept(recorded):
    with recorded(interval_ms=60_000) as (journal, fetch):
        operation = park(fetch)
        operation.force_complete()
        gone = weakref.ref(operation)
        del operation
        gc.collect()
        assert (1, None) == (journal.stats().buffered, gone())


@cpython_only
def test_references_are_given_up_with_the_rows():
    source, error = Source(), ValueError("no")
    before = sys.getrefcount(source), sys.getrefcount(error)
    ledger = Ledger(5_000)
    for number in range(3_000):
        ledger.put(row(number, source=source, error=error))
    lines = ledger.take(2_000)
    del lines
    for _ in range(2_000):
        ledger.put(row(1, source=source, error=error))
    assert sys.getrefcount(source) > before[0]
    del ledger
    gc.collect()
    assert before == (sys.getrefcount(source), sys.getrefcount(error))


def test_a_ledger_that_nobody_has_is_collected():
    source, ledger = Source(), Ledger(5)
    source.ledger = ledger
    ledger.put(row(1, source=source))
    gone = weakref.ref(source)
    del source, ledger
    gc.collect()
    assert gone() is None


def test_a_row_of_something_else_is_refused():
    ledger = Ledger(5)
    for wrong in ((), row(1)[:-1], (*row(1), 5), 5):
        with pytest.raises((TypeError, ValueError)):
            ledger.put(wrong)
    assert 0 == len(ledger)


@forks
def test_a_forked_child_writes_nothing_and_leaves_the_parent_s_journal_alone(tmp_path, recorded):
    with recorded() as (journal, fetch):
        operation = park(fetch)
        in_child(lambda: operation.force_complete() and journal.close())
        assert operation.force_complete()
        assert journal.flush()
    assert [("k",)] == [record.keys for record in read(tmp_path)]


@forks
def test_a_forked_child_doesn_t_keep_the_folder_from_the_next_writer(tmp_path):
    """A child that outlives its parent's journal holds no lock on it. While the parent writes, no other process may.

    Writers that were refused before the fork, and are kept with their errors, change nothing.
    """
    journal, kept = Journal(tmp_path), []
    for _ in range(20):
        with pytest.raises(JournalLocked) as refused:
            Journal(tmp_path)
        kept.append(refused.value)
    with forked():
        with pytest.raises(JournalLocked):
            Journal(tmp_path)
        journal.close()
        Journal(tmp_path).close()


@forks
def test_a_forked_child_s_copy_is_closed_whatever_was_held_at_the_fork(tmp_path, recorded, counts):
    """A child does not wait: its rows are dropped at once and counted, and ``flush`` says that the copy is closed."""
    with recorded(capacity=2, when_full="wait", patience_ms=60_000, interval_ms=60_000) as (journal, fetch):
        park(fetch, "before")
        fetch.cancel_for_key("before")

        def leave_five():
            for number in range(5):
                park(fetch, number).force_complete()
            assert (0, 5, 0) == counts(journal)
            with pytest.raises(JournalClosed):
                journal.flush()
            assert 0 == journal.close().written

        with contextlib.ExitStack() as held:
            for lock in (journal._wake._cond, journal._room, journal._counting, journal._sealer._thread._shutdown_lock):
                held.enter_context(lock)
            in_child(leave_five)
        assert journal.flush()
    assert [("before",)] == [record.keys for record in read(tmp_path)]
