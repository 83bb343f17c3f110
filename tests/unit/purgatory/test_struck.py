"""The duties of a thread towards an operation, when that thread is interrupted or the purgatory is full."""

from types import SimpleNamespace

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Observer, Outcome
from purgatory._keys.idle_keys import IdleKeys
from purgatory._limits.capacity import Capacity
from purgatory._threads.retrier import Retrier
from tests.support import Waiting, eventually, in_thread, park_one, satisfy


class Interrupted(BaseException):
    """The exception of a signal handler."""


class Lock:
    """A lock of the user's own, whose ``__exit__`` is no lock's."""

    def __init__(self):
        self.held = False

    def acquire(self, blocking=True, timeout=-1):
        if self.held:
            return False
        self.held = True
        return True

    def release(self):
        self.held = False

    def __exit__(self, kind, error, traceback):
        raise AssertionError("that is for a with statement")


class Stopped(DelayedOperation):
    """An operation whose thread is stopped as it answers."""

    def try_complete(self):
        return False

    def on_complete(self):
        raise Interrupted


def test_interrupted_end_of_an_arriving_operation_leaves_its_removal_to_the_parking_thread():
    """A hook that parks under the operation's key finds the key in use, although an observer was interrupted."""

    class Interrupting(Observer):
        def leaving(self, operation):
            raise Interrupted

    class Following(DelayedOperation):
        def try_complete(self):
            return self.checks == 2 and self.force_complete()

        def on_complete(self):
            park_one(purgatory, Waiting())

    interrupting = Interrupting()
    with DelayedOperationPurgatory("fetch", observers=[interrupting], reaper_enabled=False) as purgatory:
        with pytest.raises(Interrupted):
            park_one(purgatory, Following(1_000))
        purgatory.detach(interrupting)

        assert (1, 0) == (purgatory.watched, purgatory.idle_keys)


def test_lock_of_the_users_own_is_given_back_by_release(purgatory):
    """A lock that is none of ``threading``'s is taken and given back by the two words that were asked of it."""
    lock = Lock()
    operation = park_one(purgatory, Waiting(lock=lock))

    assert 1 == satisfy(purgatory, "k", operation)
    assert not lock.held


def test_stopped_answer_leaves_nothing(small):
    """An operation whose answer is stopped is out: its place is free, its key idle, and no shutdown waits for it."""
    operation = park_one(small, Stopped(1_000))
    with pytest.raises(Interrupted):
        operation.force_complete()

    assert (0, 0) == (small.watched, small._shards.completing())
    assert not small.try_complete_else_watch(Waiting(), ["k"])


class Telling(Observer):
    """Remembers the report of each end."""

    def __init__(self):
        self.ends = []

    def finished(self, operation, outcome, error, /):
        self.ends.append((outcome, type(error)))


@pytest.mark.parametrize("where", ["on_complete", "on_expiration", "both"])
@pytest.mark.parametrize("keep_context", [False, True])
@pytest.mark.guarantee("decided hooks run after an interrupt")
def test_stopped_expiry_runs_what_is_left(mock_timer, where, keep_context):
    """An expiry whose ``on_complete`` is stopped runs ``on_expiration`` all the same, and stops then."""
    ran = []

    class Expiring(DelayedOperation):
        def try_complete(self):
            return False

        def on_complete(self):
            ran.append("on_complete")
            if where != "on_expiration":
                raise Interrupted

        def on_expiration(self):
            ran.append("on_expiration")
            if where != "on_complete":
                raise Interrupted

    telling = Telling()
    with DelayedOperationPurgatory(
        "stopped", timer=mock_timer, keep_context=keep_context, observers=[telling]
    ) as purgatory:
        operation = park_one(purgatory, Expiring(5))
        with pytest.raises(Interrupted):
            operation.run()

        assert ["on_complete", "on_expiration"] == ran
        assert [(Outcome.EXPIRED, Interrupted)] == telling.ends
        assert (0, 0) == (purgatory.watched, purgatory._shards.completing())


@pytest.mark.guarantee("decided hooks run after an interrupt")
def test_interrupt_in_each_step_of_an_expiry_skips_none(mock_timer):
    """An expiry that is interrupted by an observer, in both hooks and by an observer again makes each call once."""
    made = []

    def interrupt(name):
        def hook(*_):
            made.append(name)
            raise Interrupted

        return hook

    kind = type(
        "Expiring",
        (DelayedOperation,),
        {"try_complete": lambda _: False, **{name: interrupt(name) for name in ("on_complete", "on_expiration")}},
    )
    observer = type("Interrupting", (Observer,), {name: interrupt(name) for name in ("leaving", "finished")})()
    with DelayedOperationPurgatory("struck", timer=mock_timer, observers=[observer]) as purgatory:
        operation = kind(5)
        purgatory.try_complete_else_watch(operation, ["k"])
        with pytest.raises(Interrupted):
            operation.run()

        assert ["leaving", "on_complete", "on_expiration", "finished"] == made
        assert (0, 0) == (purgatory.watched, purgatory._shards.completing())


def test_stop_in_the_log_keeps_the_hooks_error(mock_timer, monkeypatch):
    """An expiry that is interrupted while the error of its ``on_complete`` is logged reports that error."""

    class Failing(Stopped):
        def on_complete(self):
            raise ValueError

        def on_expiration(self):
            ran.append("on_expiration")

    def stop(*_, **fields):
        raise Interrupted

    ran, telling = [], Telling()
    with DelayedOperationPurgatory("stopped", timer=mock_timer, observers=[telling]) as purgatory:
        operation = park_one(purgatory, Failing(5))
        monkeypatch.setattr("purgatory._events.observers.log", SimpleNamespace(error=stop))
        with pytest.raises(Interrupted):
            operation.run()

        assert ["on_expiration"] == ran
        assert [(Outcome.EXPIRED, ValueError)] == telling.ends


class Failing(Lock):
    """A lock of the user's own, re-entrant, whose ``acquire`` or ``release`` raises at a given call, once."""

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


def test_operation_whose_observer_is_stopped_is_not_parked(mock_timer):
    """An operation that is reported as parked when its parker is interrupted is removed, as the call has raised."""

    class Stopping(Observer):
        def parked(self, operation, /):
            raise Interrupted

    with DelayedOperationPurgatory("small", timer=mock_timer, observers=[Stopping()], max_parked=1) as purgatory:
        operation = Waiting()
        with pytest.raises(Interrupted):
            purgatory.try_complete_else_watch(operation, ["k"])

        assert Outcome.CANCELLED is operation.outcome
        assert (0, 0, 0) == (purgatory.parked, purgatory.watched, mock_timer.size)


@pytest.mark.parametrize("stopped", ["third check", "release of its lock"])
def test_operation_whose_parker_is_stopped_is_not_parked(purgatory, stopped):
    """An operation whose parker is stopped in a repeated check, or giving its lock back, is out."""

    def look(operation):
        if operation.checks == 2:
            purgatory.check_and_complete("k")
        elif operation.checks == 3:
            raise Interrupted

    operation = Waiting(look=look) if stopped == "third check" else Waiting(lock=Failing("release", 1))
    with pytest.raises(Interrupted):
        purgatory.try_complete_else_watch(operation, ["k"])

    assert Outcome.CANCELLED is operation.outcome
    assert (0, 0) == (purgatory.parked, purgatory.watched)


@pytest.mark.parametrize("word", ["acquire", "release"])
@pytest.mark.parametrize("call", ["run", "maybe_try_complete"], ids=["expiry", "check"])
def test_call_whose_lock_fails_is_made_up(purgatory, call, word):
    """An expiry or a check that gets an error in place of the operation's lock is made by another thread."""
    operation = park_one(purgatory, Waiting(lock=Failing(word, 2)))
    with pytest.raises(Interrupted):
        getattr(operation, call)()

    if call == "run":
        # The other thread sets the outcome before it removes the operation from its keys.
        assert eventually(lambda: (Outcome.EXPIRED, 0) == (operation.outcome, purgatory.watched))
    else:
        assert eventually(lambda: operation.checks >= (3 if word == "acquire" else 4))


def interrupted_once(monkeypatch, kind, name, *, first):
    """Let one call of a method raise ``Interrupted``, before it begins or after it ends."""
    method = getattr(kind, name)

    def strike(self, operation):
        monkeypatch.setattr(kind, name, method)
        if not first:
            method(self, operation)
        raise Interrupted

    monkeypatch.setattr(kind, name, strike)


@pytest.mark.parametrize("first", [True, False])
def test_check_whose_retry_is_interrupted_is_repeated(purgatory, monkeypatch, first):
    """A check that finds the lock taken, and is interrupted while it calls the retrier, raises and is repeated."""
    lock = Lock()
    operation = park_one(purgatory, Waiting(lock=lock))
    operation.ready = lock.held = True
    interrupted_once(monkeypatch, Retrier, "retry", first=first)
    with pytest.raises(Interrupted):
        purgatory.check_and_complete("k")
    lock.held = False

    assert eventually(lambda: operation.outcome is Outcome.SATISFIED)


def test_operation_whose_parker_is_interrupted_with_a_place_gives_it_back(monkeypatch, small):
    """An interrupt that comes after a place was taken leaves no place taken."""
    operation = Waiting()
    interrupted_once(monkeypatch, Capacity, "take", first=False)
    with pytest.raises(Interrupted):
        small.try_complete_else_watch(operation, ["k"])

    assert Outcome.CANCELLED is operation.outcome
    assert not small.try_complete_else_watch(Waiting(), ["k"])


@pytest.mark.interpreted
@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupt_while_an_operation_is_removed_leaves_nothing(mock_timer, monkeypatch, small):
    """An operation whose removal from its keys is interrupted is under no key, has no place, and is answered."""
    operation = park_one(small, Waiting(), "k", "l")
    note = IdleKeys.note

    def strike(self, watchers):
        monkeypatch.setattr(IdleKeys, "note", note)
        raise Interrupted

    monkeypatch.setattr(IdleKeys, "note", strike)
    with pytest.raises(Interrupted):
        operation.force_complete()

    assert (0, 0, 0) == (small.watched, small.parked, mock_timer.size)
    assert ["complete"] == operation.history
    assert not small.try_complete_else_watch(Waiting(), ["m"])


@pytest.mark.interpreted
@pytest.mark.guarantee("an interrupt loses no operation")
def test_interrupt_after_a_refusal_leaves_the_operation_to_its_next_parker(monkeypatch, small):
    """A thread that is interrupted after PurgatoryFull does not cancel what another thread has parked by then."""
    first, operation = Waiting(), Waiting()
    small.try_complete_else_watch(first, ["k"])
    reset = DelayedOperation._op_reset

    def strike(operation):
        assert reset(operation)
        first.cancel()
        assert not in_thread(small.try_complete_else_watch, operation, ["k"])
        raise Interrupted

    monkeypatch.setattr(DelayedOperation, "_op_reset", strike)
    with pytest.raises(Interrupted):
        small.try_complete_else_watch(operation, ["k"])

    assert operation.outcome is None
    assert [operation] == small.operations()
