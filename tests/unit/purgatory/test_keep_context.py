"""Hooks in the context of the parking code, wherever the event comes from."""

import contextvars
import gc
import weakref
from types import SimpleNamespace

import pytest

from purgatory import PurgatoryFull
from tests.support import Waiting, in_thread, park_one, raising

request_id = contextvars.ContextVar("request_id", default="none")


@pytest.fixture
def kept(make):
    """A purgatory that keeps contexts."""
    return make(keep_context=True)


@pytest.fixture
def seen():
    """The requests that were noted."""
    return []


@pytest.fixture
def note(seen):
    """A hook that notes the request that it sees."""
    return lambda *_: seen.append(request_id.get())


@pytest.fixture
def noting(note):
    return Waiting(complete=note, expire=note)


def park(purgatory, operation, request="a"):
    """Park in the context of a request. Returns the operation."""

    def go():
        request_id.set(request)
        return park_one(purgatory, operation)

    return contextvars.Context().run(go)


def test_hooks_run_in_the_event_s_context_by_default(purgatory, noting, seen):
    """Unless it is asked for, a hook sees the variables of the thread that completed the operation."""
    park(purgatory, noting).force_complete()
    assert ["none"] == seen


@pytest.mark.parametrize("end", ["check", "force"])
def test_event_on_another_thread_runs_the_hook_in_the_parker_s_context(kept, noting, seen, end):
    """An event on another thread, with variables of its own, runs the hook with the parker's, and keeps its own."""
    park(kept, noting).ready = True

    def event():
        request_id.set("the event's")
        noting.force_complete() if end == "force" else kept.check_and_complete("k")
        return request_id.get()

    assert "the event's" == in_thread(event)
    assert ["a"] == seen


def test_expiry_runs_both_hooks_in_the_parker_s_context(kept, mock_timer, note, seen):
    """At the deadline, both hooks see the variables of the parker, and the second what the first has set."""
    park(kept, Waiting(10, complete=lambda _: [note(), request_id.set("set by on_complete")], expire=note))
    mock_timer.advance_clock(10)
    assert ["a", "set by on_complete"] == seen
    assert "none" == request_id.get()


def test_shutdown_runs_the_hooks_in_the_parkers_contexts(kept, note, seen):
    """A drain answers each operation in the context of its own parker."""
    for request in "ab":
        park(kept, Waiting(complete=note, expire=note), request)
    kept.shutdown()
    assert ["a", "a", "b", "b"] == sorted(seen)


def test_what_completes_at_once_is_in_the_parker_s_own_context(kept):
    """The hook of an operation that need not wait may set variables of the parker's."""

    def go():
        park_one(kept, Waiting(ready=True, complete=lambda _: request_id.set("answered")))
        return request_id.get()

    assert "answered" == contextvars.Context().run(go)


def test_operation_parked_by_a_hook_keeps_the_context_of_the_hook(kept, noting, seen):
    """A hook that parks does so in the context that the hook runs in."""
    park(kept, Waiting(complete=lambda _: park_one(kept, noting, "k2"))).force_complete()
    noting.force_complete()
    assert ["a"] == seen


def test_hook_that_completes_another_runs_that_in_the_other_s_context(kept, noting, note, seen):
    """A hook that completes another operation is in its own context again afterwards."""
    park(kept, noting, "inner")
    park(kept, Waiting(complete=lambda _: [noting.force_complete(), note()]), "outer").force_complete()
    assert ["inner", "outer"] == seen


def test_hook_that_raises_leaves_the_context(kept):
    """An error of a hook is contained or passed on, and the completing thread has its own context again."""
    park(kept, Waiting(complete=raising(OSError))).force_complete()
    assert {"on_complete": 1} == kept.snapshot().callback_errors
    stopping = park(kept, Waiting(complete=raising(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        stopping.force_complete()
    assert "none" == request_id.get()


def test_observers_stay_in_the_event_s_context(make, note, seen):
    """Observers see the variables of the event: that is where what caused the end is known."""
    purgatory = make(keep_context=True, observers=[SimpleNamespace(leaving=note, finished=note)])
    park(purgatory, Waiting()).force_complete()
    assert ["none", "none"] == seen


def test_refused_operation_keeps_nothing(make, noting, seen):
    """An operation that found no place, and is parked by another thread later, has that thread's context."""
    small = make(keep_context=True, max_parked=1)
    first = park(small, Waiting())
    with pytest.raises(PurgatoryFull):
        park(small, noting, "refused")
    first.force_complete()
    park(small, noting, "later").force_complete()
    assert ["later"] == seen


def test_operation_that_its_own_context_names_is_collected(kept):
    """An operation that is held by a variable of its parker's is garbage once it has left."""
    current = contextvars.ContextVar("current")

    def go():
        operation = Waiting()
        current.set(operation)  # before it is parked: the context is kept as it is then
        park_one(kept, operation).cancel()
        return weakref.ref(operation)

    gone = contextvars.Context().run(go)
    gc.collect()
    assert gone() is None
