"""The duties of a thread towards an operation, when that thread is interrupted or the purgatory is full."""

from types import SimpleNamespace

import pytest

from purgatory import DelayedOperation, Observer, Outcome
from purgatory._core.idle_keys import IdleKeys
from purgatory._core.places import Places
from purgatory._core.retrier import Retrier
from tests.support import Interrupted, Notes, Waiting, eventually, in_thread, park, park_one, raising
from tests.unit.purgatory.tools import ready_at


class Lock:
    """A lock of the user's own, whose ``__exit__`` is no lock's."""

    __exit__ = raising(AssertionError("that is for a with statement"))

    def __init__(self):
        self.held = False

    def acquire(self, blocking=True, timeout=-1):
        if self.held:
            return False
        self.held = True
        return True

    def release(self):
        self.held = False


class Failing(Lock):
    """A lock of the user's own, whose ``acquire`` or ``release`` raises at a given call, once."""

    def __init__(self, word, call):
        super().__init__()
        self.word = word
        self.left = call

    def _fail(self, word):
        if word == self.word:
            self.left -= 1
            if self.left == 0:
                raise Interrupted

    def acquire(self, blocking=True, timeout=-1):
        self._fail("acquire")
        return super().acquire(blocking, timeout)

    def release(self):
        super().release()
        self._fail("release")


def interrupting(*names):
    """An observer whose methods of these names are interrupted."""
    return type("Interrupting", (Observer,), {name: raising(Interrupted) for name in names})()


def interrupted_once(monkeypatch, kind, name, *, first):
    """Let one call of a method raise ``Interrupted``, before it begins or after it ends."""
    method = getattr(kind, name)

    def strike(self, operation):
        monkeypatch.setattr(kind, name, method)
        if not first:
            method(self, operation)
        raise Interrupted

    monkeypatch.setattr(kind, name, strike)


def test_interrupted_end_of_an_arriving_operation_leaves_its_removal_to_the_parking_thread(make):
    """A hook that parks under the operation's key finds the key in use, although an observer was interrupted."""
    observer = interrupting("leaving")
    purgatory = make(observers=[observer])
    with pytest.raises(Interrupted):
        park(purgatory, look=ready_at(2), complete=lambda _: park(purgatory))
    purgatory.detach(observer)

    assert (1, 0) == (purgatory.watched, purgatory.queued_keys)


def test_stopped_answer_leaves_nothing(small):
    """An operation whose answer is stopped is out: its place is free, its key idle, and no shutdown waits for it."""
    operation = park(small, complete=raising(Interrupted))
    with pytest.raises(Interrupted):
        operation.force_complete()

    assert (0, 0) == (small.watched, small._shards.completing())
    park(small)


@pytest.mark.parametrize("where", ["on_complete", "on_expiration", "both"])
@pytest.mark.parametrize("keep_context", [False, True])
@pytest.mark.guarantee("decided hooks run after an interrupt")
def test_stopped_expiry_runs_what_is_left(make, where, keep_context):
    """An expiry whose ``on_complete`` is stopped runs ``on_expiration`` all the same, and stops then."""
    notes, stop = Notes(), raising(Interrupted)
    purgatory = make(keep_context=keep_context, observers=[notes])
    hooks = {"complete": where != "on_expiration" and stop, "expire": where != "on_complete" and stop}
    operation = park(purgatory, **{hook: does or None for hook, does in hooks.items()})
    with pytest.raises(Interrupted):
        operation.run()

    assert (["complete", "expire"], [(Outcome.EXPIRED, Interrupted)]) == (operation.history, notes.ends)
    assert (0, 0) == (purgatory.watched, purgatory._shards.completing())


@pytest.mark.guarantee("decided hooks run after an interrupt")
def test_interrupt_in_each_step_of_an_expiry_skips_none(make):
    """An expiry that is interrupted by an observer, in both hooks and by an observer again makes each call once."""
    made = []

    def interrupt(name):
        return lambda *_: [made.append(name), raising(Interrupted)()]

    observer = type("Interrupting", (Observer,), {name: interrupt(name) for name in ("leaving", "finished")})()
    purgatory = make(observers=[observer])
    operation = park(purgatory, complete=interrupt("on_complete"), expire=interrupt("on_expiration"))
    with pytest.raises(Interrupted):
        operation.run()

    assert ["leaving", "on_complete", "on_expiration", "finished"] == made
    assert (0, 0) == (purgatory.watched, purgatory._shards.completing())


def test_stop_in_the_log_keeps_the_hooks_error(make, monkeypatch):
    """An expiry that is interrupted while the error of its ``on_complete`` is logged reports that error."""
    notes = Notes()
    operation = park(make(observers=[notes]), complete=raising(ValueError))
    monkeypatch.setattr("purgatory._core.observers.log", SimpleNamespace(error=raising(Interrupted)))
    with pytest.raises(Interrupted):
        operation.run()

    assert (["complete", "expire"], [(Outcome.EXPIRED, ValueError)]) == (operation.history, notes.ends)


@pytest.mark.parametrize(
    "stopped",
    [
        *("its report", "its place is taken", "release of its lock"),
        *("check 1", "check 2", "check 2, where it is cancelled", "check 3"),
    ],
)
@pytest.mark.guarantee("an interrupt loses no operation")
def test_operation_whose_parker_is_stopped_is_not_parked(small, mock_timer, monkeypatch, stopped):
    """An operation whose parker is interrupted, wherever it is, is out and holds no place, as the call has raised."""

    def look(operation):
        if operation.checks == 2 and stopped == "check 3":
            small.check_and_complete("k")
        if stopped.startswith(f"check {operation.checks}"):
            if "cancelled" in stopped:
                operation.cancel()
            raise Interrupted

    if stopped == "its report":
        small.attach(interrupting("parked"))
    elif stopped == "its place is taken":
        interrupted_once(monkeypatch, Places, "take", first=False)
    operation = Waiting(look=look, lock=Failing("release", 1) if stopped == "release of its lock" else None)
    with pytest.raises(Interrupted):
        park_one(small, operation, "k", "l")

    assert (Outcome.CANCELLED, []) == (operation.outcome, operation.history)
    assert (0, 0, 0) == (small.parked, small.watched, mock_timer.size)
    assert not small._places.taken


@pytest.mark.parametrize("word", ["acquire", "release"])
@pytest.mark.parametrize("call", ["run", "maybe_try_complete"], ids=["expiry", "check"])
def test_call_whose_lock_fails_is_made_up(purgatory, call, word):
    """An expiry or a check that gets an error in place of the operation's lock is made by another thread."""
    operation = park(purgatory, lock=Failing(word, 2))
    with pytest.raises(Interrupted):
        getattr(operation, call)()

    if call == "run":
        # The other thread sets the outcome before it removes the operation from its keys.
        assert eventually(lambda: (Outcome.EXPIRED, 0) == (operation.outcome, purgatory.watched))
    else:
        assert eventually(lambda: operation.checks >= (3 if word == "acquire" else 4))


@pytest.mark.parametrize("first", [True, False])
def test_check_whose_retry_is_interrupted_is_repeated(purgatory, monkeypatch, first):
    """A check that finds the lock taken, and is interrupted while it calls the retrier, raises and is repeated."""
    lock = Lock()
    operation = park(purgatory, lock=lock)
    operation.ready = lock.held = True
    interrupted_once(monkeypatch, Retrier, "retry", first=first)
    with pytest.raises(Interrupted):
        purgatory.check_and_complete("k")
    lock.held = False

    assert eventually(lambda: operation.outcome is Outcome.SATISFIED)


@pytest.mark.interpreted
@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupt_while_an_operation_is_removed_leaves_nothing(mock_timer, monkeypatch, small):
    """An operation whose removal from its keys is interrupted is under no key, has no place, and is answered."""
    operation = park(small, "k", "l")
    interrupted_once(monkeypatch, IdleKeys, "append", first=True)
    with pytest.raises(Interrupted):
        operation.force_complete()

    assert (0, 0, 0) == (small.watched, small.parked, mock_timer.size)
    assert ["complete"] == operation.history
    park(small, "m")


@pytest.mark.interpreted
@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupt_after_a_refusal_leaves_the_operation_to_its_next_parker(monkeypatch, small):
    """A thread that is interrupted after PurgatoryFull does not cancel what another thread has parked by then."""
    first, operation, reset = park(small), Waiting(), DelayedOperation._op_reset

    def strike(operation, reached):
        assert reset(operation, reached)
        first.cancel()
        assert not in_thread(small.try_complete_else_watch, operation, ["k"])
        raise Interrupted

    monkeypatch.setattr(DelayedOperation, "_op_reset", strike)
    with pytest.raises(Interrupted):
        park_one(small, operation)

    assert operation.outcome is None
    assert [operation] == small.operations()
