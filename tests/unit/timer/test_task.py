"""Tasks: their delay is checked, their place in a timer known."""

import copy
import gc
import pickle
import weakref
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from tests.support import Ping, added
from timer import DelayTypeError, DelayValueError, InvalidTask, TimerTask, TimerTaskEntry
from timer._task import checked_delay_ms


class Millis(int):
    """A whole number of another type, as an enumeration's are."""


@pytest.mark.parametrize("delay_ms", [0, 1, 10**12, Millis(5)])
def test_whole_delay_is_taken_as_it_is(delay_ms):
    """Any whole number of milliseconds is a delay, as a plain int."""
    assert delay_ms == Ping(delay_ms).delay_ms
    assert int is type(Ping(delay_ms).delay_ms)


@pytest.mark.parametrize(
    ("delay_ms", "expected"), [(1.0, 1), (0.1, 1), (2.5, 3), (-0.5, 0), (-1.5, 0), (-1, 0), (-(10**9), 0)]
)
@pytest.mark.guarantee("never early")
def test_fraction_is_rounded_up(delay_ms, expected):
    """A fraction of a millisecond is rounded up: nothing may run early. A delay below zero counts as zero."""
    assert expected == Ping(delay_ms).delay_ms
    assert expected == checked_delay_ms(delay_ms)


@pytest.mark.parametrize("delay_ms", ["5", True, False, b"1", [1], 1j, object, timedelta(1)])
def test_what_is_no_number_is_no_delay(delay_ms):
    """A bool, a text or anything else that is no number is rejected, with the value in the error."""
    with pytest.raises(DelayTypeError) as caught:
        TimerTask(delay_ms)
    assert delay_ms is caught.value.delay


class Indexed:
    def __index__(self):
        return 5


@pytest.mark.parametrize("number", [Indexed(), Decimal("4.2"), Fraction(9, 2), 4.1])
@pytest.mark.parametrize("kind", [Ping, TimerTaskEntry])
def test_any_number_is_a_delay(kind, number):
    """Anything with ``__index__`` or ``__float__`` is a number of milliseconds, rounded up."""
    assert 5 == kind(number).delay_ms


def test_task_without_a_delay_has_no_deadline(mock_timer):
    """A task that was made with None says so, also when it is pending."""
    task = Ping(None)
    assert (None, None) == (task.delay_ms, task.deadline_ns)
    mock_timer.advance_clock(7)
    mock_timer.add(task)
    assert (None, None, 7_000_000) == (task.delay_ms, task.deadline_ns, task.added_ns)


@pytest.mark.parametrize("delay_ms", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_no_delay(delay_ms):
    """NaN and the infinities are rejected."""
    with pytest.raises(DelayValueError, match="finite"):
        TimerTask(delay_ms)


def test_task_must_define_run():
    """A task without ``run`` says which class lacks it."""

    class Idle(TimerTask):
        pass

    with pytest.raises(NotImplementedError, match="Idle must define run"):
        Idle(1).run()


@pytest.mark.parametrize("name", ["__eq__", "__hash__"])
def test_task_with_an_equality_of_its_own_is_refused(name):
    """Tasks are distinguished by identity. A class that would change this is rejected where it is defined."""
    mixin = type("Mixin", (), {name: lambda *_: 0})
    for bases, names in (((TimerTask,), dict(vars(mixin))), ((mixin, TimerTask), {})):
        with pytest.raises(InvalidTask, match=rf"Same has its own {name}, .* eq=False"):
            type("Same", bases, names)


def test_task_knows_whether_and_when_it_is_due(mock_timer):
    """One that was never added is not pending. A pending one knows when it was added and when it falls due."""
    task = Ping(5)
    assert isinstance(task, TimerTaskEntry)
    assert (False, False, 0, 0) == (task.is_pending, task.cancel(), task.deadline_ns, task.added_ns)
    assert not TimerTaskEntry().is_pending
    mock_timer.advance_clock(7)
    mock_timer.add(task)
    assert (True, 7_000_000, 12_000_000) == (task.is_pending, task.added_ns, task.deadline_ns)


@pytest.mark.guarantee("nothing is left behind")
def test_cancelled_task_is_freed_at_once(mock_timer):
    """Nothing in the timer keeps a cancelled task alive."""
    task = added(mock_timer, Ping(10_000))
    task.cancel()
    gone = weakref.ref(task)
    del task
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_task_cannot_be_copied(how):
    """There is but one of each task: it is neither copied nor pickled, unless its own class says how."""
    with pytest.raises(TypeError, match="cannot copy or pickle a Ping"):
        how(Ping(5))

    class Known(Ping):
        def __reduce__(self):
            return Ping, (self.delay_ms,)

    assert 5 == copy.copy(Known(5)).delay_ms
