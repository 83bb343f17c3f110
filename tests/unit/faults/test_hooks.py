"""Hooks that raise, block, call back in, and recurse."""

import sys
import threading

import pytest

from purgatory import COMPILED, DelayedOperationPurgatory, Outcome
from tests.support import PATIENCE_S, Waiting, beside, eventually, in_thread, satisfy


@pytest.fixture
def purgatory(mock_timer):
    with DelayedOperationPurgatory("faults", timer=mock_timer, reaper_enabled=False, shards=4) as purgatory:
        yield purgatory


def raising(error):
    def hook(operation):
        raise error

    return hook


def parked(purgatory, keys=("k",), **kw):
    operation = Waiting(**kw)
    assert not purgatory.try_complete_else_watch(operation, list(keys))
    return operation


@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_a_hook_that_raises_at_expiry_harms_no_other_operation(purgatory, mock_timer, hook):
    """Three operations fall due together. The middle one's hook raises. All three expire, both hooks each."""
    operations = [parked(purgatory, delay_ms=5, **({hook: raising(ValueError())} if i == 1 else {})) for i in range(3)]
    mock_timer.advance_clock(5)
    assert [["complete", "expire"]] * 3 == [operation.history for operation in operations]
    assert 0 == purgatory.parked
    assert sum(purgatory.snapshot().callback_errors.values()) == 1


def test_a_hook_that_raises_in_a_check_harms_no_other_operation(purgatory):
    """The others under the key are completed by the same check."""
    operations = [parked(purgatory, complete=raising(ValueError()) if i == 1 else None) for i in range(3)]
    assert 3 == satisfy(purgatory, "k", *operations)
    assert all(operation.outcome is Outcome.SATISFIED for operation in operations)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_stop_of_the_callers_thread_reaches_the_caller_and_loses_no_check(purgatory, error):
    """The first operation's hook stops the thread. The rest under the key get their check all the same."""
    first = parked(purgatory, complete=raising(error()))
    rest = [parked(purgatory) for _ in range(3)]
    for operation in [first, *rest]:
        operation.ready = True
    with pytest.raises(error):
        purgatory.check_and_complete("k")
    assert ["complete"] == first.history
    assert eventually(lambda: [operation.history for operation in [first, *rest]] == [["complete"]] * 4)
    assert [] == purgatory.operations()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_stop_while_parking_leaves_the_purgatory_as_it_was(purgatory, mock_timer, error):
    """``try_complete`` stops the thread: it is out, the counters add up, timer and lists hold nothing of it."""
    other = parked(purgatory)
    with pytest.raises(error):
        purgatory.try_complete_else_watch(Waiting(look=raising(error())), ["k", "l"])
    assert 1 == purgatory.parked == purgatory.num_delayed == mock_timer.size
    purgatory.purge()
    assert 1 == purgatory.watched
    assert [other] == purgatory.operations()


def test_a_stop_on_the_timers_thread_is_contained(monkeypatch):
    """An operation whose hook raises ``SystemExit`` on the executor's thread: those due with it expire all the same."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    with DelayedOperationPurgatory("faults") as purgatory:
        operations = [parked(purgatory, complete=raising(SystemExit())) for _ in range(2)]
        operations += [parked(purgatory) for _ in range(3)]
        late = operations.pop()
        for operation in operations:
            operation.extend(20)  # with so short a delay from the beginning, it might expire on this thread
        late.extend(60)
        assert eventually(lambda: late.history == ["complete", "expire"])
        assert all(operation.outcome is Outcome.EXPIRED for operation in operations)
        assert [["complete", "expire"]] * 2 == [operation.history for operation in operations[2:]]
        assert [SystemExit] * 2 == reported


def test_a_hook_that_blocks_holds_up_no_other_key(purgatory):
    """While one ``on_complete`` blocks, operations under another key are parked and completed."""
    begun, go = threading.Event(), threading.Event()

    def block(operation):
        begun.set()
        go.wait(2 * PATIENCE_S)

    slow = parked(purgatory, ["slow"], complete=block)
    slow.ready = True
    with beside(lambda: purgatory.check_and_complete("slow")):
        assert begun.wait(PATIENCE_S)
        assert 1 == in_thread(satisfy, purgatory, "quick", parked(purgatory, ["quick"]))
        # Under the key itself, too: another thread is checking the slow one.
        assert 1 == in_thread(satisfy, purgatory, "slow", parked(purgatory, ["slow"]))
        go.set()
    assert ["complete"] == slow.history


@pytest.mark.parametrize("key", ["k", "other"])
def test_on_complete_may_park_and_check(purgatory, key):
    """A completed operation parks its successor and checks, under its own key and under another's."""
    made = []

    def follow(operation):
        successor = Waiting()
        made.append(successor)
        purgatory.try_complete_else_watch(successor, [key])
        purgatory.check_and_complete(key)
        successor.ready = True

    first = parked(purgatory, ["k", "other"], complete=follow)
    assert 1 == satisfy(purgatory, "k", first)
    assert [made[0]] == purgatory.operations()
    assert 1 == purgatory.check_and_complete(key)
    assert ["complete"] == made[0].history


@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_on_complete_may_cancel_force_purge_and_look_in(purgatory):
    """Every public method may be called from a hook."""
    others = [parked(purgatory) for _ in range(3)]
    seen = []

    def act(operation):
        others[0].cancel()
        others[1].force_complete()
        purgatory.cancel_for_key("k")
        purgatory.purge()
        seen.append(purgatory.snapshot().parked)

    first = parked(purgatory, complete=act)
    satisfy(purgatory, "k", first)
    assert [0] == seen
    assert [Outcome.CANCELLED, Outcome.FORCED, Outcome.CANCELLED] == [other.outcome for other in others]


@pytest.mark.guarantee("no hook runs with a lock of the library held")
def test_shutting_down_from_a_hook_ends(no_threads_left):
    """A hook on the timer's thread shuts the purgatory down while the main thread does: neither waits forever."""
    purgatory = DelayedOperationPurgatory("faults")
    inside, go = threading.Event(), threading.Event()

    def end(operation):
        inside.set()
        go.wait(PATIENCE_S)
        purgatory.shutdown(timeout_ms=50)

    operation = parked(purgatory, complete=end)
    operation.extend(1)  # with so short a delay from the beginning, it might expire on this thread
    assert inside.wait(PATIENCE_S)
    threading.Timer(0.05, go.set).start()
    report = in_thread(lambda: purgatory.shutdown(timeout_ms=200))
    assert report.name == "faults"
    assert eventually(lambda: operation.outcome is Outcome.EXPIRED)
    assert purgatory.shutdown() == report


def chain(purgatory, depth):
    """Operations, each of which completes the next. The first is ready."""
    operations = []

    def follow(number):
        def hook(operation):
            if number + 1 < depth:
                operations[number + 1].ready = True
                purgatory.check_and_complete(number + 1)

        return hook

    for number in range(depth):
        operations.append(parked(purgatory, [number], complete=follow(number)))
    operations[0].ready = True
    return operations


def test_a_chain_of_completions_may_be_as_deep_as_the_stack(purgatory):
    """Each ``on_complete`` checks the next key, to most of the interpreter's limit. Every one completes once."""
    depth = sys.getrecursionlimit() // 14
    operations = chain(purgatory, depth)
    in_thread(lambda: purgatory.check_and_complete(0))
    assert [["complete"]] * depth == [operation.history for operation in operations]


@pytest.mark.parametrize("above", range(8))
@pytest.mark.guarantee("stack exhaustion")
def test_a_chain_deeper_than_the_stack_completes_each_at_most_once(purgatory, above):
    """Where the interpreter gives up with ``RecursionError``, it is contained. Nothing completes twice or hangs.

    In the native implementation, an operation that has an outcome has had its hook.
    """
    depth = sys.getrecursionlimit()
    operations = chain(purgatory, depth)

    def begin(above):
        return begin(above - 1) if above else purgatory.check_and_complete(0)

    in_thread(begin, above)
    for number in range(depth):  # an operation whose check was cut off is checked again
        purgatory.check_and_complete(number)
    assert 0 == sum(operation.history.count("complete") > 1 for operation in operations)
    # The retrier may be inside the hook of one whose check was cut off.
    assert not COMPILED or eventually(
        lambda: all(operation.is_completed == bool(operation.history) for operation in operations if operation.ready)
    )


def test_try_complete_that_checks_its_own_key_comes_to_an_end(purgatory):
    """It looks, checks its own key while it is at it, and is not locked out or caught in a circle."""
    looks = []

    def look(operation):
        looks.append(1)
        if len(looks) < 5:
            purgatory.check_and_complete("k")

    operation = parked(purgatory, look=look)
    in_thread(lambda: purgatory.check_and_complete("k"))
    assert 1 == in_thread(satisfy, purgatory, "k", operation)
