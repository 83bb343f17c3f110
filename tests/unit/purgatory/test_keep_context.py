"""Hooks in the context of the parking code, wherever the event comes from."""

import contextvars
import gc
import weakref
from types import SimpleNamespace

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryFull
from tests.support import Waiting, in_thread

request_id = contextvars.ContextVar("request_id", default="none")


@pytest.fixture
def kept(mock_timer):
    """A purgatory that keeps contexts, on a clock moved by hand."""
    with DelayedOperationPurgatory("kept", timer=mock_timer, keep_context=True) as purgatory:
        yield purgatory


def noting(seen, delay_ms=60_000, **more):
    """An operation whose hooks note the request that they see."""

    def note(_):
        seen.append(request_id.get())

    return Waiting(delay_ms, complete=note, expire=note, **more)


def park(purgatory, operation, request="a"):
    """Park in the context of a request. Returns the operation."""

    def go():
        request_id.set(request)
        purgatory.try_complete_else_watch(operation, ["k"])
        return operation

    return contextvars.Context().run(go)


def test_hooks_run_in_the_event_s_context_by_default(mock_timer):
    """Unless it is asked for, a hook sees the variables of the thread that completed the operation."""
    with DelayedOperationPurgatory("plain", timer=mock_timer) as purgatory:
        park(purgatory, noting(seen := [])).force_complete()
        assert ["none"] == seen


@pytest.mark.parametrize("end", ["check", "force"])
def test_event_on_another_thread_runs_the_hook_in_the_parker_s_context(kept, end):
    """An event on another thread, with variables of its own, runs the hook with the parker's, and keeps its own."""
    operation = park(kept, noting(seen := []))
    operation.ready = True

    def event():
        request_id.set("the event's")
        operation.force_complete() if end == "force" else kept.check_and_complete("k")
        return request_id.get()

    assert "the event's" == in_thread(event)
    assert ["a"] == seen


def test_expiry_runs_both_hooks_in_the_parker_s_context(kept, mock_timer):
    """At the deadline, both hooks see the variables of the parker, and the second what the first has set."""

    def complete(_):
        seen.append(request_id.get())
        request_id.set("set by on_complete")

    seen = []
    park(kept, Waiting(10, complete=complete, expire=lambda _: seen.append(request_id.get())))
    mock_timer.advance_clock(10)
    assert ["a", "set by on_complete"] == seen
    assert "none" == request_id.get()


def test_shutdown_runs_the_hooks_in_the_parkers_contexts(kept):
    """A drain answers each operation in the context of its own parker."""
    seen = []
    for request in "ab":
        park(kept, noting(seen), request)
    kept.shutdown()
    assert ["a", "a", "b", "b"] == sorted(seen)


def test_what_completes_at_once_is_in_the_parker_s_own_context(kept):
    """The hook of an operation that need not wait may set variables of the parker's."""

    def go():
        kept.try_complete_else_watch(Waiting(ready=True, complete=lambda _: request_id.set("answered")), ["k"])
        return request_id.get()

    assert "answered" == contextvars.Context().run(go)


def test_operation_parked_by_a_hook_keeps_the_context_of_the_hook(kept):
    """A hook that parks does so in the context that the hook runs in."""
    second = noting(seen := [])
    first = Waiting(complete=lambda _: kept.try_complete_else_watch(second, ["k2"]))
    park(kept, first)
    first.force_complete()
    second.force_complete()
    assert ["a"] == seen


def test_hook_that_completes_another_runs_that_in_the_other_s_context(kept):
    """A hook that completes another operation is in its own context again afterwards."""
    seen = []
    inner = noting(seen)
    outer = Waiting(complete=lambda _: (inner.force_complete(), seen.append(request_id.get())))
    park(kept, inner, "inner")
    park(kept, outer, "outer")
    outer.force_complete()
    assert ["inner", "outer"] == seen


def test_hook_that_raises_leaves_the_context(kept):
    """An error of a hook is contained or passed on, and the completing thread has its own context again."""

    def stop(_):
        raise KeyboardInterrupt

    failing, stopping = Waiting(complete=lambda _: 1 / 0), Waiting(complete=stop)
    park(kept, failing)
    park(kept, stopping)
    failing.force_complete()
    assert {"on_complete": 1} == kept.snapshot().callback_errors
    with pytest.raises(KeyboardInterrupt):
        stopping.force_complete()
    assert "none" == request_id.get()


def test_observers_stay_in_the_event_s_context(mock_timer):
    """Observers see the variables of the event: that is where what caused the end is known."""
    seen = []
    observer = SimpleNamespace(
        leaving=lambda _: seen.append(request_id.get()), finished=lambda *_: seen.append(request_id.get())
    )
    with DelayedOperationPurgatory("kept", timer=mock_timer, keep_context=True, observers=[observer]) as purgatory:
        operation = Waiting()
        park(purgatory, operation)
        operation.force_complete()
    assert ["none", "none"] == seen


def test_refused_operation_keeps_nothing(mock_timer):
    """An operation that found no place, and is parked by another thread later, has that thread's context."""
    with DelayedOperationPurgatory("small", timer=mock_timer, keep_context=True, max_parked=1) as purgatory:
        first, operation = Waiting(), noting(seen := [])
        park(purgatory, first)
        with pytest.raises(PurgatoryFull):
            park(purgatory, operation, "refused")
        first.force_complete()
        park(purgatory, operation, "later")
        operation.force_complete()
    assert ["later"] == seen


def test_operation_that_its_own_context_names_is_collected(kept):
    """An operation that is held by a variable of its parker's is garbage once it has left."""
    current = contextvars.ContextVar("current")

    def go():
        operation = Waiting()
        current.set(operation)
        kept.try_complete_else_watch(operation, ["k"])
        operation.cancel()
        return weakref.ref(operation)

    gone = contextvars.Context().run(go)
    gc.collect()
    assert gone() is None
