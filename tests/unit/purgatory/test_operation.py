"""Operations: completed exactly once, checked by one thread at a time, never blocking a checking thread."""

import copy
import inspect
import pickle
import re
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from purgatory import (
    COMPILED,
    DelayedOperation,
    DelayedOperationPurgatory,
    InvalidOperation,
    InvalidSetting,
    Observer,
    Outcome,
    PurgatoryFull,
    ReservedName,
)
from purgatory._core.subclasses import FINAL, RESERVED
from tests.support.operations import Waiting, park, park_all, park_many, park_one, raising, satisfy
from tests.support.threads import eventually, in_thread, run_threads
from tests.unit.purgatory.tools import AddingAgain, Racing, at_check
from timer import DelayTypeError, DelayValueError, InlineExecutor, SystemTimer, TaskHeld, TimerTask


def test_operation_is_abstract():
    """An operation of one's own defines ``try_complete``. The other hooks default to nothing.

    A new one has no outcome, no keys and no checks. One call completes it, and says so.
    """
    assert issubclass(DelayedOperation, TimerTask)
    for kind in (DelayedOperation, type("Vague", (DelayedOperation,), {})):
        with pytest.raises(TypeError, match="abstract.*try_complete"):
            kind(5)

    class Least(DelayedOperation):
        def try_complete(self):
            return self.force_complete()

    least = Least(17)
    assert (None, False, (), 17) == (least.outcome, least.is_completed, least.keys, least.delay_ms)
    assert (0, 0) == (least.checks, least.created_ns)
    assert [True, False, False] == [least.maybe_try_complete(), least.maybe_try_complete(), least.force_complete()]
    assert (Outcome.SATISFIED, True, 1) == (least.outcome, least.is_completed, least.checks)


def test_outcome_says_whether_the_condition_held():
    """In a condition, an operation that expired or was cancelled is false, as the waits of the standard library are."""
    assert [True, True, False, False, True] == [bool(outcome) for outcome in Outcome]
    names = ["immediate", "satisfied", "expired", "cancelled", "forced"]  # those of logs, metrics and journals
    assert names == [outcome.value for outcome in Outcome] == [outcome.name.lower() for outcome in Outcome]


@pytest.mark.parametrize(
    "lock", [5, "lock", object(), SimpleNamespace(acquire=print), SimpleNamespace(acquire=1, release=1)]
)
def test_what_is_no_lock_is_refused(purgatory, lock):
    """An object that is not a lock is found when the operation is made, which is not initialized then."""
    operation = Waiting.__new__(Waiting)
    with pytest.raises(InvalidSetting, match="acquire"):
        DelayedOperation.__init__(operation, 1000, lock=lock)
    with pytest.raises(InvalidOperation, match="its __init__ does not call"):
        park_one(purgatory, operation)
    DelayedOperation.__init__(operation, 1000)
    assert 1000 == operation.delay_ms


@pytest.mark.parametrize("check", [1, 2])
def test_forcing_while_parking_is_immediate(purgatory, check):
    """A thread that forces an operation while it is being parked completes it, and the parking call did not."""
    forced = []
    operation = Waiting(look=at_check(check, lambda own: forced.append(in_thread(own.force_complete))))

    assert not purgatory.try_complete_else_watch(operation, ["a"])
    assert ([True], Outcome.IMMEDIATE, ["complete"]) == (forced, operation.outcome, operation.history)
    assert (0, 0) == (purgatory.parked, purgatory.num_delayed)
    assert (0, 1) == (purgatory.totals().forced, purgatory.totals().immediate)


@pytest.mark.guarantee("exactly once", "nothing is left behind")
def test_force_complete_takes_the_operation_out(purgatory, mock_timer):
    """Completing a parked operation directly leaves the timer at once, and no list holds on to it.

    It is not cancelled any more, and does not expire.
    """
    operation = park(purgatory, "a", "b", delay_ms=10)

    assert [True, False] == [operation.force_complete(), operation.force_complete()]
    assert (0, 0, 0) == (purgatory.num_delayed, mock_timer.size, purgatory.parked)
    assert ([], 0) == (purgatory.operations_for_key("a"), purgatory.check_and_complete("a"))
    assert not operation.cancel()
    mock_timer.advance_clock(20)
    operation.run()
    assert (Outcome.FORCED, ["complete"]) == (operation.outcome, operation.history)


@pytest.mark.interpreted
@pytest.mark.guarantee("exactly once")
def test_outcome_that_comes_before_the_decision_counts(purgatory, monkeypatch):
    """A thread that completes an operation just before another one decides its outcome is the only one."""
    operation = park(purgatory, "a")

    def complete_first():
        monkeypatch.undo()
        assert operation.force_complete()

    monkeypatch.setattr("purgatory._core.operation.has_room_for_outcome", complete_first)
    assert not operation.force_complete()
    assert (["complete"], 1) == (operation.history, purgatory.totals().forced)


def test_cancel_takes_the_operation_out_uncompleted(purgatory, mock_timer):
    """A cancelled operation is in no list and no timer. No hook runs, and nothing completes it any more."""
    operation = park(purgatory, "a", "b", delay_ms=10)

    assert [True, False] == [operation.cancel(), operation.cancel()]
    assert (Outcome.CANCELLED, False) == (operation.outcome, operation.is_completed)
    assert (0, 0) == (mock_timer.size, purgatory.parked)
    operation.ready = True
    assert [False, False] == [operation.force_complete(), operation.maybe_try_complete()]
    assert 0 == purgatory.check_and_complete("a")
    assert not mock_timer.advance_clock(20)
    assert [] == operation.history


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_operation_and_purgatory_cannot_be_copied(purgatory, how):
    """Two operations would share keys, deadline and outcome. Two purgatories would count what waits twice."""
    for original in (park(purgatory), purgatory):
        with pytest.raises(TypeError, match=f"cannot copy or pickle .*{type(original).__name__}"):
            how(original)


# -- maybe_try_complete


@pytest.mark.guarantee("exactly once", "no check is lost")
def test_check_does_not_wait_for_another(purgatory):
    """A thread that finds the operation being checked leaves at once. The checker looks again in its stead."""
    answers = []

    def look(operation):
        if operation.checks == 3:
            operation.ready = False
            answers.append(in_thread(purgatory.check_and_complete, "k"))  # comes back, though the lock is held here
        elif operation.checks == 4:
            operation.ready = True

    operation = park(purgatory, look=look)

    assert 1 == purgatory.check_and_complete("k")
    assert ([0], 4) == (answers, operation.checks)
    assert ["complete"] == operation.history


@pytest.mark.interpreted
@pytest.mark.guarantee("no check is lost")
def test_flag_is_cleared_before_the_check():
    """A flag that is set while ``try_complete`` runs is for the next check, not for this one."""
    seen = []

    def look(operation):
        seen.append(operation._op_recheck)
        operation._op_recheck = operation.checks < 3

    Waiting(look=look).maybe_try_complete()

    assert [False, False, False] == seen


@pytest.mark.guarantee("expiry and check exclude each other")
def test_checks_of_one_operation_never_overlap(purgatory):
    """However many threads check, ``try_complete`` is run by one at a time."""
    inside, overlaps = [], []

    def look(operation):
        inside.append(None)
        if len(inside) > 1:
            overlaps.append(len(inside))
        time.sleep(0.0002)
        inside.pop()

    park(purgatory, look=look)
    run_threads(*[lambda: [purgatory.check_and_complete("k") for _ in range(50)]] * 4)

    assert [] == overlaps


@pytest.mark.parametrize("lock", [None, threading.RLock()], ids=["no lock", "lock"])
def test_check_of_itself_inside_a_check_ends(purgatory, lock):
    """A ``try_complete`` that checks its own operation or key, also under a re-entrant lock, does not run forever."""

    def look(operation):
        if operation.checks < 5:
            operation.maybe_try_complete()
            purgatory.check_and_complete("k")

    operation = Waiting(lock=lock, look=look)
    assert not in_thread(operation.maybe_try_complete)
    assert not in_thread(purgatory.try_complete_else_watch, operation, ["k"])
    assert 1 == in_thread(satisfy, purgatory, "k", operation)
    assert operation.checks < 20


# -- shared locks


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
@pytest.mark.guarantee("no check is lost")
def test_check_missed_on_a_shared_lock_is_made_up(threaded, kind):
    """A check that finds the lock held by the user's own code is not dropped: it is made once the lock is free."""
    lock = kind()
    operation = park(threaded, lock=lock)
    with lock:
        assert 0 == in_thread(satisfy, threaded, "k", operation)
        assert not operation.is_completed

    assert eventually(lambda: operation.is_completed)
    assert Outcome.SATISFIED is operation.outcome


def test_shared_lock_of_the_checker_is_no_hindrance(purgatory):
    """Code that holds a re-entrant shared lock itself checks the operation there and then."""
    lock = threading.RLock()
    operation = park(purgatory, lock=lock)
    with lock:
        assert 1 == satisfy(purgatory, "k", operation)


@pytest.mark.guarantee("no check waits")
def test_expiry_missed_on_a_shared_lock_is_made_up(purgatory, mock_timer):
    """An expiry that finds the lock held leaves the executor's thread free, and happens once the lock is free.

    All other operations expire in the meantime.
    """
    lock = threading.Lock()
    operation, *others = park_all(purgatory, [Waiting(5, lock=lock), Waiting(5), Waiting(5)])
    with lock:
        in_thread(mock_timer.advance_clock, 5)
        assert [] == operation.history
        assert [["complete", "expire"]] * 2 == [other.history for other in others]

    assert eventually(lambda: operation.history == ["complete", "expire"])
    assert Outcome.EXPIRED is operation.outcome


# -- expiry


@pytest.mark.guarantee("never early")
def test_expiry_completes_then_expires(purgatory, mock_timer):
    """When its time is up an operation completes, then ``on_expiration`` runs. Not a millisecond before."""
    operation = park(purgatory, "a", "b", delay_ms=100)
    mock_timer.advance_clock(99)
    assert [] == operation.history
    mock_timer.advance_clock(1)

    assert ["complete", "expire"] == operation.history
    assert (Outcome.EXPIRED, True) == (operation.outcome, operation.is_completed)
    assert (0, 0, 0) == (purgatory.parked, purgatory.num_delayed, purgatory.check_and_complete("a"))


@pytest.mark.parametrize("delay_ms", [0, -1, -(10**15)])
def test_delay_of_zero_or_less_means_expired(purgatory, mock_timer, delay_ms):
    """An operation without patience is checked, parked, and expires at the next look of the timer."""
    ready, late = Waiting(delay_ms, ready=True), Waiting(delay_ms)

    assert [True, False] == [purgatory.try_complete_else_watch(operation, ["k"]) for operation in (ready, late)]
    mock_timer.advance_clock(0)
    assert Outcome.IMMEDIATE is ready.outcome
    assert ["complete", "expire"] == late.history


@pytest.mark.parametrize(
    "expire", [lambda operation, timer: timer.advance_clock(5), lambda operation, _: operation.run()]
)
def test_expiry_does_not_look_once_more(purgatory, mock_timer, expire):
    """When the time is up it is up: ``try_complete`` is not asked again. ``run`` may also be called by hand."""
    operation = park(purgatory, delay_ms=5)
    operation.ready = True
    expire(operation, mock_timer)

    assert (2, Outcome.EXPIRED, 0) == (operation.checks, operation.outcome, mock_timer.size)
    assert ["complete", "expire"] == operation.history


@pytest.mark.parametrize(
    ("succeeds", "history"), [(False, ["complete", "expire"]), (True, ["complete"])], ids=["fails", "succeeds"]
)
@pytest.mark.guarantee("expiry and check exclude each other")
def test_expiry_never_overlaps_a_check(purgatory, mock_timer, succeeds, history):
    """An operation whose time runs out while it is being checked expires after that check, unless it succeeds."""
    seen = []

    def look(operation):
        if operation.checks == 3:
            in_thread(mock_timer.advance_clock, 10)
            seen.append(list(operation.history))
            operation.ready = succeeds

    operation = park(purgatory, delay_ms=10, look=look)

    assert succeeds == purgatory.check_and_complete("k")
    assert ([[]], history, 3) == (seen, operation.history, operation.checks)


def test_user_lock_is_held_in_both_hooks_of_an_expiry(purgatory, mock_timer):
    """An expiry holds the user's lock until both hooks have run."""
    lock, held = threading.Lock(), []

    def note(_):
        held.append(lock.locked())

    operation = park(purgatory, delay_ms=5, lock=lock, complete=note, expire=note)
    mock_timer.advance_clock(5)

    assert (["complete", "expire"], [True, True], False) == (operation.history, held, lock.locked())


# -- hooks that raise


fail = raising(OSError("no disk"))


@pytest.mark.guarantee("hooks that raise")
def test_on_complete_that_raises_has_completed(purgatory, logs):
    """What ``on_complete`` raises is contained: the operation has completed, and the next in line is checked."""
    operations = park_all(purgatory, [Waiting(), Waiting(complete=fail), Waiting()])

    assert 3 == satisfy(purgatory, "k", *operations)
    assert [["complete"]] * 3 == [operation.history for operation in operations]
    assert {Outcome.SATISFIED} == {operation.outcome for operation in operations}
    assert {"on_complete": 1} == purgatory.snapshot().callback_errors


def test_on_complete_that_raises_does_not_prevent_on_expiration(purgatory, mock_timer):
    """At expiry ``on_expiration`` runs although ``on_complete`` raised, and the others expire too."""
    operations = park_all(purgatory, [Waiting(5), Waiting(5, complete=fail, expire=fail), Waiting(5)])
    mock_timer.advance_clock(5)

    assert [["complete", "expire"]] * 3 == [operation.history for operation in operations]
    assert 0 == purgatory.parked
    assert {"on_complete": 1, "on_expiration": 1} == purgatory.snapshot().callback_errors


def failure(logs):
    """The purgatory, keys and hook of the one failure that was logged, and the whole entry."""
    (entry,) = (entry for entry in logs if entry["event"] == "callback_failed")
    return (entry["purgatory"], entry["keys"], entry["hook"]), entry


@pytest.mark.guarantee("hooks that raise")
def test_error_is_logged_with_type_and_keys(purgatory, logs):
    """The log names the purgatory, the operation's type and keys, the hook, and the error."""
    fussy = type("Fussy", (Waiting,), {})
    park_one(purgatory, fussy(complete=fail), "a", ("b", 2)).force_complete()
    said, entry = failure(logs)

    assert ("test", ("a", ("b", 2)), "on_complete") == said
    assert "error" == entry["log_level"]
    assert "Fussy" in entry["operation"]
    assert "OSError('no disk')" == entry["error"] == repr(entry["exc_info"])


@pytest.mark.parametrize("keys", [["a"], ["a", ("b", 2)]])
def test_error_of_the_first_check_is_logged_with_the_keys(purgatory, logs, keys):
    """What ``try_complete`` raises before the operation is watched is logged with the keys that it is parked under.

    The operation is parked all the same, and can still complete.
    """
    broken = type(f"Broken{len(keys)}", (Waiting,), {})  # each type is let through once a second
    operation = broken(look=lambda operation: operation.checks < 3 and fail())
    assert not purgatory.try_complete_else_watch(operation, keys)

    assert ("test", tuple(keys), "try_complete") == failure(logs)[0]
    assert (None, {"try_complete": 2}) == (operation.outcome, purgatory.callback_errors)
    assert 1 == satisfy(purgatory, "a", operation)


def test_error_without_a_purgatory_is_contained_too(logs):
    """The hooks of an operation that was never parked are contained all the same."""
    assert type("Homeless", (Waiting,), {})(complete=fail).force_complete()
    assert "on_complete" == failure(logs)[1]["hook"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.guarantee("hooks that raise")
def test_interrupt_in_a_check_is_the_callers(purgatory, error):
    """Ctrl-C in a check goes through to the caller, and the operation stays parked."""
    operation = park(purgatory, look=at_check(3, raising(error)))
    with pytest.raises(error):
        purgatory.check_and_complete("k")

    assert operation.outcome is None
    operation.ready = True
    assert eventually(lambda: purgatory.check_and_complete("k") or operation.is_completed)


@pytest.mark.guarantee("no check is lost")
def test_missed_check_of_an_interrupted_checker_is_made_up(purgatory):
    """A check missed while another thread checked, which then is interrupted, is made by a third thread."""
    stop = raising(KeyboardInterrupt)
    operation = park(purgatory, look=at_check(3, lambda own: [in_thread(satisfy, purgatory, "k", own), stop()]))
    with pytest.raises(KeyboardInterrupt):
        operation.maybe_try_complete()

    assert eventually(lambda: operation.is_completed)


# -- hooks that use the purgatory


@pytest.mark.parametrize("key", ["k", "other"])
@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_hooks_may_use_the_purgatory(purgatory, key):
    """``on_complete`` may park and check, under its own key and another, cancel, force, purge and look in."""
    cancelled, forced, taken, successor = [*park_many(purgatory, 3), Waiting()]
    seen = []

    def use(_):
        cancelled.cancel()
        forced.force_complete()
        seen.append(purgatory.cancel_for_key("k"))
        purgatory.purge()
        park_one(purgatory, successor, key)
        seen.append((purgatory.check_and_complete(key), purgatory.snapshot().parked))

    first = park(purgatory, "first", complete=use)
    assert 1 == in_thread(satisfy, purgatory, "first", first)
    assert [[taken], (0, 1)] == seen
    assert (Outcome.CANCELLED, Outcome.FORCED) == (cancelled.outcome, forced.outcome)
    assert 1 == satisfy(purgatory, key, successor)
    assert ["complete"] == successor.history


@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_no_hook_runs_with_a_lock_of_the_purgatory_held(make, mock_timer):
    """While any hook runs, another thread may use the purgatory in every way, the same key and shard included."""
    purgatory, done = make(shards=1), []

    def use(_):
        done.append(in_thread(everything))

    def everything():
        other = park(purgatory, "k", "j")
        purgatory.check_and_complete("j")
        other.cancel()
        purgatory.purge()
        purgatory.snapshot()
        mock_timer.pending()
        return purgatory.totals()

    for delay_ms in (5, 1_000):
        operation = park(purgatory, delay_ms=delay_ms, complete=use, expire=use, look=use)
    satisfy(purgatory, "k", operation)
    mock_timer.advance_clock(5)

    assert {} == purgatory.snapshot().callback_errors
    assert 6 <= len(done)


# -- names that are the library's


@pytest.mark.parametrize("name", RESERVED)
def test_name_of_the_librarys_cannot_be_assigned(name):
    """An operation that sets a reserved attribute gets an error with the reserved names."""
    operation = Waiting()
    said = rf"Waiting.{name} is a reserved name; choose another .*added_ns, checks, .*keys"
    with pytest.raises(ReservedName, match=said) as caught:
        setattr(operation, name, ["a"])
    assert (Waiting, name) == (caught.value.kind, caught.value.name)


@pytest.mark.parametrize(
    "name",
    [
        *("keys", "checks", "outcome", "delay_ms", "is_pending", "drained", "is_parked", "remaining_ms", "run"),
        *FINAL,
        *("_op_state", "_op_home_shard", "_op_remove", "_op_anything", "_task_bucket", "_task_anything"),
    ],
)
def test_name_of_the_librarys_cannot_be_redefined(name):
    """A class attribute of a reserved name, or with a reserved prefix, would hide the library's own."""
    with pytest.raises(ReservedName, match=rf"Mine.{name} is a reserved name; .* names that begin with _op_ or _task_"):
        type("Mine", (Waiting,), {name: 3})


@pytest.mark.parametrize("name", ["outcome", "_op_state", "_task_bucket"])
def test_reserved_name_of_a_mixin_is_rejected(name):
    """A mixin hides the library's names as a subclass does. A base behind ``DelayedOperation`` hides nothing."""
    mixin = type("Mixin", (), {name: 3})
    further = type("Further", (mixin,), {})
    for bases in ((mixin, Waiting), (further, Waiting), (mixin, DelayedOperation)):
        with pytest.raises(ReservedName, match=f"Mixin.{name} is a reserved name") as caught:
            type("Mine", bases, {})
        assert mixin is caught.value.kind

    assert type("Mine", (Waiting, mixin), {})().outcome is None


@pytest.mark.parametrize(
    "name",
    [
        *("_context", "_hold", "_busy", "_state", "_home", "_watches", "_checks", "_pending", "_lock", "_turn"),
        *("_bucket", "_deadline_ns", "_delay_ms", "_moved_by_ns", "_allows_readd", "_withdraw", "_entry"),
    ],
)
def test_subclass_may_use_any_other_private_name(purgatory, name):
    """An attribute of a subclass with a plain private name disturbs neither the purgatory nor the timer."""
    operation = Waiting()
    setattr(operation, name, "a request")

    assert park_one(purgatory, operation).extend(5)
    assert 1 == satisfy(purgatory, "k", operation)
    assert "a request" == getattr(operation, name)


def test_reserved_names_are_those_that_cannot_be_assigned():
    """Every public property of an operation is reserved, and so is ``run``, in both implementations.

    The guide lists them, and the reserved prefixes.
    """
    properties = {
        name
        for kind in DelayedOperation.__mro__
        for name, value in vars(kind).items()
        if not name.startswith("_") and inspect.isdatadescriptor(value)
    }
    assert properties == set(RESERVED)
    hooks = {"try_complete", "on_complete", "on_expiration"}
    methods = {name for name in dir(DelayedOperation) if callable(getattr(DelayedOperation, name)) and name[0] != "_"}
    assert set(FINAL) == methods - hooks - {"register"}

    guide = (Path(__file__).resolve().parents[3] / "docs/guide.md").read_text(encoding="utf-8")
    section = guide.partition("## Reserved names")[2].partition("\n## ")[0]
    assert [*RESERVED, *FINAL, "_op_", "_task_"] == [
        name for name in re.findall(r"`(\w+)`", section) if name != "ReservedName"
    ]


def test_repr_tells_type_state_keys_and_time(purgatory, mock_timer):
    """The ``repr`` of an operation has its type, its state, its first keys and the seconds left."""
    operation = Waiting(1_500)
    assert "<Waiting new>" == repr(operation)
    park_one(purgatory, operation, "a", ("b", 2), "c", "d", "e")
    mock_timer.advance_clock(250)
    assert "<Waiting parked under a, (b, 2), c and 2 more, 1.250 s left>" == repr(operation)
    satisfy(purgatory, "d", operation)
    assert "<Waiting satisfied under a, (b, 2), c and 2 more>" == repr(operation)


class Forgetful(Waiting):
    """Its ``__init__`` does not call ``super().__init__``."""

    def __init__(self):
        self.ready = False


#: In the native implementation, all that there is.
MORE_CALLS = ("run", "_op_expire_for_shutdown", "keys", "outcome", "checks", "drained") if COMPILED else ()


@pytest.mark.parametrize("call", ["force_complete", "maybe_try_complete", "cancel", *MORE_CALLS])
def test_operation_without_the_librarys_init_says_so(purgatory, call):
    """Every call of an operation whose ``__init__`` forgot ``super().__init__`` names that, and so does parking it."""
    with pytest.raises(AttributeError, match=r"Forgetful was not initialized; call super\(\).__init__\(delay_ms\)"):
        getattr(Forgetful(), call)()
    with pytest.raises(InvalidOperation, match=r"Forgetful cannot be parked: its __init__ does not call super\(\)"):
        park_one(purgatory, Forgetful())
    assert "Forgetful" in repr(Forgetful())


@pytest.mark.guarantee("exactly once")
def test_true_without_completing_is_warned_of_once(purgatory, logs):
    """``try_complete`` that returns True and completes nothing is warned of, once a type. The operation waits on."""
    hasty = type("Hasty", (Waiting,), {"try_complete": lambda self: True})
    assert [False] * 3 == [purgatory.try_complete_else_watch(hasty(), ["k"]) for _ in range(3)]
    assert (0, 3) == (purgatory.check_and_complete("k"), purgatory.parked)
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert ("operation_still_open", "test", ("k",)) == (warning["event"], warning["purgatory"], warning["keys"])
    assert "force_complete" in warning["advice"]


def test_check_that_returns_a_coroutine_has_failed(purgatory):
    """Nothing would await it. The coroutine's function hides behind another, so it is found when it is called."""

    async def complete(operation):
        return operation.force_complete()

    operation = park_one(purgatory, type("Hidden", (Waiting,), {"try_complete": lambda self: complete(self)})())
    assert not operation.maybe_try_complete()
    assert ({"try_complete": 3}, 1) == (purgatory.callback_errors, purgatory.parked)


# -- rescheduling


@pytest.mark.parametrize("delay_ms", [100, 5], ids=["off", "forward"])
@pytest.mark.guarantee("a moved deadline counts")
def test_extend_puts_the_deadline_off(purgatory, mock_timer, delay_ms):
    """An extended operation expires when the new delay has passed since, and not before. It may be a shorter one."""
    operation = park(purgatory, delay_ms=100)
    mock_timer.advance_clock(60)

    assert operation.extend(delay_ms)
    mock_timer.advance_clock(delay_ms - 1)
    assert operation.outcome is None
    mock_timer.advance_clock(1)
    assert (Outcome.EXPIRED, ["complete", "expire"]) == (operation.outcome, operation.history)
    assert 1 == purgatory.totals().extended


def test_extend_keeps_the_age(purgatory, mock_timer):
    """The time that an operation has waited counts from when it was parked, however often its deadline was extended."""
    operation = park(purgatory, delay_ms=100)
    created_ns = operation.created_ns
    for _ in range(3):
        mock_timer.advance_clock(50)
        operation.extend(100)

    assert (created_ns, 100) == (operation.created_ns, operation.delay_ms)
    assert 150 == purgatory.snapshot().oldest_age_ms


@pytest.mark.guarantee("a moved deadline counts")
def test_extend_of_one_that_does_not_wait_is_false(purgatory, mock_timer):
    """Before it is parked, after it has left and where nothing expires, an operation has no deadline to move."""
    operation = Waiting(100)
    assert not operation.extend(50)
    park_one(purgatory, operation).force_complete()

    assert not operation.extend(50)
    assert (0, 0) == (mock_timer.size, purgatory.totals().extended)
    with DelayedOperationPurgatory("untimed", timer_enabled=False) as untimed:
        assert not park(untimed).extend(50)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.guarantee("a moved deadline counts")
def test_extend_while_it_is_being_parked_counts(make, when):
    """A deadline that is moved while the operation is being parked counts once it is parked."""
    answers = []
    timer = Racing(**{when: lambda task: answers or answers.append(in_thread(task.extend, 5_000))})
    purgatory = make(timer=timer)
    operation = park(purgatory, delay_ms=10)
    assert [True] == answers
    timer.advance_clock(4_999)
    assert operation.outcome is None
    timer.advance_clock(1)
    assert operation.outcome is Outcome.EXPIRED
    assert 1 == purgatory.totals().extended


@pytest.mark.parametrize("check", [1, 2, 3])
def test_extend_inside_its_own_check_counts(purgatory, mock_timer, check):
    """An operation that extends itself in a check, also in one before it is parked, waits until the new deadline."""
    operation = park(purgatory, delay_ms=10, look=at_check(check, lambda own: own.extend(500)))
    purgatory.check_and_complete("k")
    mock_timer.advance_clock(499)

    assert operation.outcome is None
    mock_timer.advance_clock(1)
    assert Outcome.EXPIRED is operation.outcome


def test_extend_in_a_check_of_one_without_a_delay_counts(make):
    """An operation without a delay that extends itself before it is in the timer does not expire: no driver saw it."""
    with SystemTimer("timer", executor=InlineExecutor()) as timer:
        purgatory = make(timer=timer, reaper_enabled=False)
        operation = park(purgatory, delay_ms=0, look=at_check(1, lambda own: own.extend(500)))
        timer.advance_clock(0)

        assert operation.outcome is None
        assert (1, 0) == (purgatory.totals().extended, purgatory.totals().expired)


def test_operation_that_is_rejected_keeps_the_delay_that_it_has_set(small, mock_timer):
    """An operation that extends itself in its first check, and gets no place, keeps the delay for its next parking."""
    first, operation = (
        park(small),
        Waiting(60_000, look=at_check(1, lambda own: answers or answers.append(own.extend(5)))),
    )
    answers = []
    with pytest.raises(PurgatoryFull):
        park_one(small, operation)
    first.cancel()
    park_one(small, operation)

    assert [True] == answers
    assert 5 == operation.remaining_ms


def test_operation_says_whether_it_is_parked_and_for_how_long(purgatory, mock_timer):
    """``is_parked`` and ``remaining_ms`` tell of an operation that waits, before, while and after it does."""
    operation = Waiting(100)
    assert (False, None) == (operation.is_parked, operation.remaining_ms)
    park_one(purgatory, operation)
    mock_timer.advance_clock(40)
    assert (True, 60.0) == (operation.is_parked, operation.remaining_ms)
    operation.extend(500)
    assert 500.0 == operation.remaining_ms
    operation.cancel()
    assert (False, None) == (operation.is_parked, operation.remaining_ms)


def test_operation_without_a_timer_has_no_time_left():
    """``remaining_ms`` of an operation that nothing expires is None."""
    with DelayedOperationPurgatory("untimed", timer_enabled=False) as untimed:
        operation = park(untimed)
        assert (True, None) == (operation.is_parked, operation.remaining_ms)


def test_overdue_operation_has_no_time_left():
    """``remaining_ms`` is 0 once the deadline has passed and the operation still waits."""
    with DelayedOperationPurgatory("late", timer=SystemTimer("late"), reaper_enabled=False) as late:
        operation = park(late, delay_ms=1)
        time.sleep(0.01)
        assert (True, 0.0) == (operation.is_parked, operation.remaining_ms)


def test_operation_without_a_deadline_waits_for_its_event(purgatory, mock_timer):
    """An operation with None for a delay never expires, and an event completes it. ``extend`` gives it a deadline."""
    open_ended, extended, freed = (park(purgatory, key, delay_ms=None) for key in "abc")
    assert (None, None, None) == (open_ended.delay_ms, open_ended.deadline_ns, open_ended.remaining_ms)
    assert "no deadline" in repr(open_ended)
    assert extended.extend(2.5)
    assert 3 == extended.remaining_ms
    assert freed.extend(5)
    assert freed.extend(None)
    mock_timer.advance_clock(10**11)

    assert (None, Outcome.EXPIRED, None) == (open_ended.outcome, extended.outcome, freed.outcome)
    assert open_ended.force_complete()
    assert (1, 1) == (mock_timer.size, purgatory.parked)


@pytest.mark.parametrize("delay_ms", [None, 500])
def test_extend_in_a_check_sets_or_removes_the_deadline(purgatory, mock_timer, delay_ms):
    """An operation that extends itself before it is parked waits without a deadline, or gets one."""
    operation = park(
        purgatory, delay_ms=10 if delay_ms is None else None, look=at_check(1, lambda own: own.extend(delay_ms))
    )
    mock_timer.advance_clock(499)
    assert operation.outcome is None
    mock_timer.advance_clock(1)
    assert operation.outcome is (None if delay_ms is None else Outcome.EXPIRED)


@pytest.mark.parametrize(
    ("delay_ms", "error"),
    [*((delay_ms, DelayTypeError) for delay_ms in ("5", True)), (float("nan"), DelayValueError)],
)
def test_what_is_no_delay_is_refused(purgatory, delay_ms, error):
    """A delay that is no number of milliseconds makes no operation, and extends none, whatever state it is in."""
    operation = park(purgatory)
    deadline_ns = operation.deadline_ns
    with DelayedOperationPurgatory("untimed", timer_enabled=False) as untimed:
        for call in (Waiting, operation.extend, Waiting().extend, park(untimed).extend):
            with pytest.raises(error, match="delay_ms must be"):
                call(delay_ms)

    assert deadline_ns == operation.deadline_ns


def test_adding_a_parked_operation_to_a_timer_is_refused(purgatory, mock_timer):
    """Adding an operation to the timer to extend it raises an error that names ``extend``, and nothing is lost."""
    operation = park(purgatory)
    with pytest.raises(TaskHeld, match="extend"):
        mock_timer.add(operation)

    assert (1, 1, [operation]) == (mock_timer.size, purgatory.parked, purgatory.operations_for_key("k"))


def test_extend_leaves_nothing_in_a_timer_that_adds_it_again(make):
    """The operation leaves while a timer with the default ``reschedule`` has removed it and adds it again."""
    timer = AddingAgain()
    operation = park(make(timer=timer))
    timer.before = lambda task: task.force_complete()

    assert not operation.extend(200)
    assert (Outcome.FORCED, 0) == (operation.outcome, timer.size)


@pytest.mark.guarantee("a moved deadline counts")
def test_extending_races_expiry():
    """Of an extension and an expiry that come together one counts: True means it lives on."""
    lost, raced = [], 0
    with DelayedOperationPurgatory("race") as purgatory:
        for _ in range(5):
            lives_on = park_all(purgatory, [Waiting(3) for _ in range(60)])
            for _ in range(40):
                lives_on = [operation for operation in lives_on if operation.extend(3)]
                raced += len(lives_on)
                time.sleep(0.0028)
            for operation in lives_on:
                if not operation.extend(60_000) and not eventually(lambda held=operation: held.outcome is not None):
                    lost.append(operation)
                operation.cancel()
    assert [] == lost
    assert raced > 0


@pytest.mark.guarantee("stack exhaustion")
@pytest.mark.parametrize("how", ["force_complete", "check", "run", "advance_clock"])
def test_operation_that_finds_no_stack_is_answered_later(make, mock_timer, how):
    """An operation that would end where the stack ends runs ``on_complete``, or waits for its deadline."""
    purgatory, operations = make(max_parked=1_000), []

    def deepen(depth, call):
        return call() if depth == 0 else deepen(depth - 1, call)

    limit = sys.getrecursionlimit()
    for depth in range(300, 400):
        operation = park(purgatory, depth, delay_ms=1_000)
        operation.ready = True
        operations.append(operation)
        ends = {
            "check": partial(purgatory.check_and_complete, depth),
            "force_complete": operation.force_complete,
            "run": operation.run,
            "advance_clock": partial(mock_timer.advance_clock, 1_001),
        }
        try:
            sys.setrecursionlimit(400)
            deepen(depth, ends[how])
        except RecursionError:
            pass
        finally:
            sys.setrecursionlimit(limit)
    lost = [each for each in operations if each.is_completed and each.history[:1] != ["complete"]]
    assert [] == lost
    mock_timer.advance_clock(2_000)
    assert eventually(lambda: all(each.is_completed for each in operations))
    assert (0, 0, 0) == (purgatory.watched, purgatory._shards.completing(), len(purgatory._places.taken))


@pytest.mark.guarantee("stack exhaustion")
def test_park_that_is_interrupted_where_the_stack_ends_leaves_nothing(make, mock_timer):
    """A call of ``park`` that raises leaves no operation in the purgatory, however little of the stack is left."""

    class Interrupting(Observer):
        def parked(self, operation):
            raise KeyboardInterrupt

    def deepen(depth, call):
        return call() if depth == 0 else deepen(depth - 1, call)

    purgatory, raised = make(max_parked=1_000, observers=[Interrupting()]), 0
    limit = sys.getrecursionlimit()
    for depth in range(300, 400):
        operation = Waiting(1_000)
        try:
            sys.setrecursionlimit(400)
            deepen(depth, partial(purgatory.try_complete_else_watch, operation, ["k"]))
        except (RecursionError, KeyboardInterrupt):
            raised += 1
        finally:
            sys.setrecursionlimit(limit)
        assert (False, 0, 0) == (operation.is_parked, purgatory.watched, len(purgatory._places.taken)), depth
    assert (100, 0) == (raised, mock_timer.size)


def test_check_before_it_is_parked_is_repeated_too():
    """A check of an operation that was never parked, and whose lock is taken, is repeated as any other."""
    lock = threading.Lock()
    operation = Waiting(lock=lock)
    operation.ready = True
    with lock:
        assert not operation.maybe_try_complete()

    assert eventually(lambda: operation.outcome is Outcome.FORCED or operation.outcome is Outcome.SATISFIED)
    assert ["complete"] == operation.history


@pytest.mark.parametrize("call", ["cancel", "force_complete", "extend"])
def test_ends_from_outside_do_not_take_the_lock(call):
    """``cancel``, ``force_complete`` and ``extend`` neither wait for the user's lock nor hold it in the hooks."""
    lock, seen = threading.Lock(), []

    class Locked(DelayedOperation):
        def try_complete(self):
            return False

        def on_complete(self):
            seen.append(lock.locked())

    with DelayedOperationPurgatory("locked") as purgatory:
        park_one(purgatory, operation := Locked(60_000, lock=lock))
        arguments = (60_000,) if call == "extend" else ()
        with lock:
            assert in_thread(getattr(operation, call), *arguments)
        if call == "force_complete":
            park_one(purgatory, other := Locked(60_000, lock=lock))
            assert other.force_complete()
    assert {"cancel": [], "force_complete": [True, False], "extend": [True]}[call] == seen
