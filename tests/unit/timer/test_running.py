"""The records of calls that run now (``timer._running``), in both implementations."""

import sys
import threading
import time

import pytest

from tests.support import Hang, beside, raising
from timer import TimerTask, _running


class Task(TimerTask):
    def __init__(self, name):
        super().__init__(0)
        self.name = name


def here():
    return [(task.name, hook) for _, task, hook, _ in _running.calls_here()]


def nested(depth):
    """Call to a depth, and return what is recorded at the innermost call."""
    if depth == 0:
        return here()
    return _running.call(Task(depth), "run", nested, depth - 1)


@pytest.mark.parametrize("depth", [0, 1, 16, 17, 100])
def test_calls_of_one_thread_are_recorded_from_the_outermost(depth):
    """Each call is recorded while it runs, and none afterwards, however deep they nest."""
    assert [(number, "run") for number in range(depth, 0, -1)] == nested(depth)
    assert [] == here()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_call_that_raises_is_recorded_no_longer(error):
    """The record is removed whatever ends the call."""
    with pytest.raises(error):
        _running.call(Task("raises"), "run", raising(error))
    assert [] == here()


def test_calls_of_other_threads_are_named_by_their_thread():
    """``calls`` returns those of all threads. ``calls_here`` returns those of the calling thread."""
    hang, idents = Hang(), []
    with beside(lambda: [idents.append(threading.get_ident()), _running.call(Task("there"), "run", hang)]):
        assert hang.has_begun()
        found = [(ident, task.name) for ident, task, _, _ in _running.calls()]
        assert [] == here()
        hang.release()
    assert (*idents, "there") in found
    assert idents[0] not in [ident for ident, _, _, _ in _running.calls()]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_calls_of_greenlets_may_end_in_any_order(order):
    """Greenlets switch stacks inside a hook. What runs is recorded all the same, and a free place is used again."""
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()

    def start(name):
        made = greenlet.greenlet(lambda: _running.call(Task(name), "run", main.switch))
        made.switch()
        return made

    running = {number: start(number) for number in range(3)}
    assert [0, 1, 2] == [name for name, _ in here()]
    for number in order:
        running.pop(number).switch()
        assert sorted(running) == [name for name, _ in here()]
        running[number + 10] = start(number + 10)
        assert sorted(running) == sorted(name for name, _ in here())
        running.pop(number + 10).switch()
        assert sorted(running) == [name for name, _ in here()]
    assert [] == here()
    assert [(2, "run"), (1, "run")] == nested(2)


def test_calls_are_read_while_threads_begin_their_first():
    """A thread may make its first call while another reads all calls, as `shutdown()` does."""
    interval, end = sys.getswitchinterval(), time.monotonic() + 0.5

    def begin():
        while time.monotonic() < end:
            threads = [threading.Thread(target=_running.call, args=(Task("t"), "run", int)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    sys.setswitchinterval(1e-6)
    try:
        beginner = threading.Thread(target=begin)
        beginner.start()
        while time.monotonic() < end:
            _running.calls()
        beginner.join()
    finally:
        sys.setswitchinterval(interval)
