"""A shutdown that begins with the signal that ends the process."""

import asyncio
import signal
import threading

import pytest

from purgatory import InvalidSetting, Outcome
from purgatory.aio import AsyncPurgatory, NoRunningLoop, drain_on_signals
from tests.support import Waiting, in_thread
from tests.support.loops import parked, until

NUMBER = signal.SIGUSR1


@pytest.fixture
def passed_on():
    """The signals that came to a handler which was there before."""
    numbers = []
    before = signal.signal(NUMBER, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(NUMBER, before)


@pytest.mark.parametrize("kind", [list, set, iter])
@pytest.mark.parametrize(("asked", "outcome"), [({}, Outcome.EXPIRED), ({"drain": "cancel"}, Outcome.CANCELLED)])
async def test_signal_answers_who_waits_and_goes_its_way(purgatory, passed_on, asked, outcome, kind):
    """The signal answers every waiter, by the drain asked for, and reaches the handler that was there."""
    (task,) = await parked(purgatory, Waiting())
    undo = drain_on_signals(purgatory, signals=kind([NUMBER]), **asked)
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on
    assert outcome is await task
    assert purgatory.is_closed
    undo()


async def test_handler_of_the_loop_is_called_too(purgatory):
    """A handler that a server gave to the loop, rather than to Python, is called as well."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(NUMBER, told.set)
    (task,) = await parked(purgatory, Waiting())
    undo = drain_on_signals(purgatory, signals=[NUMBER])
    signal.raise_signal(NUMBER)
    assert Outcome.EXPIRED is await task
    await told.wait()
    undo()
    asyncio.get_running_loop().remove_signal_handler(NUMBER)


async def test_asking_again_changes_nothing(purgatory, passed_on):
    """However often it is called, the handler before is called once a signal, and one call takes it back."""
    mine = signal.getsignal(NUMBER)
    undos = [drain_on_signals(purgatory, signals=[NUMBER]) for _ in range(3)]
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on
    for undo in undos:
        undo()
        assert mine is signal.getsignal(NUMBER)


async def test_several_purgatories_listen(run, passed_on):
    """Each purgatory that asked is shut down. The signal stays listened to until the last has taken it back."""
    mine = signal.getsignal(NUMBER)
    async with AsyncPurgatory("one") as one, AsyncPurgatory("two") as two:
        undo_one, undo_two = (drain_on_signals(each, signals=[NUMBER]) for each in (one, two))
        undo_one()
        assert mine is not signal.getsignal(NUMBER)
        signal.raise_signal(NUMBER)
        await until(lambda: two.is_closed)
        assert not one.is_closed
        undo_two()
        assert mine is signal.getsignal(NUMBER)


async def test_signal_without_a_handler_is_left_alone(purgatory):
    """A signal that ends the process by itself goes on doing so."""
    assert signal.SIG_DFL is signal.getsignal(signal.SIGUSR2)
    undo = drain_on_signals(purgatory, signals=[signal.SIGUSR2])
    assert signal.SIG_DFL is signal.getsignal(signal.SIGUSR2)
    undo()


async def test_handler_goes_with_its_purgatory(run, passed_on):
    """A purgatory that is shut down takes its handler away, unless another purgatory listens too."""
    before = signal.getsignal(NUMBER)
    async with AsyncPurgatory("first") as first, AsyncPurgatory("second") as second:
        for purgatory in (first, second):
            drain_on_signals(purgatory, signals=[NUMBER])
        await first.shutdown()
        assert before is not signal.getsignal(NUMBER)
        await second.shutdown()
        assert before is signal.getsignal(NUMBER)
        drain_on_signals(second, signals=[NUMBER])  # as a late request does
        assert before is signal.getsignal(NUMBER)
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on


async def test_handler_that_came_later_stays(purgatory, passed_on):
    """Taking it back leaves alone a handler that was put in front since. The signal still goes all the way."""
    undo = drain_on_signals(purgatory, signals=[NUMBER])
    ours = signal.getsignal(NUMBER)

    def later(number, frame):
        ours(number, frame)

    signal.signal(NUMBER, later)
    undo()
    assert later is signal.getsignal(NUMBER)
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on
    assert not purgatory.is_closed


async def test_handler_between_two_of_ours_passes_the_signal_on_once(run, passed_on):
    """A library that chains the handler that it found, between two purgatories, makes no circle."""
    async with AsyncPurgatory("first") as first, AsyncPurgatory("second") as second:
        drain_on_signals(first, signals=[NUMBER])
        found = signal.getsignal(NUMBER)
        signal.signal(NUMBER, lambda number, frame: found(number, frame))
        drain_on_signals(second, signals=[NUMBER])
        signal.raise_signal(NUMBER)
        assert [NUMBER] == passed_on
        await until(lambda: first.is_closed and second.is_closed)


async def test_handler_that_is_restored_later_passes_the_signal_on(run, passed_on):
    """A server that saved our handler may install it again after the purgatories have shut down."""
    async with AsyncPurgatory("first") as first, AsyncPurgatory("second") as second:
        drain_on_signals(first, signals=[NUMBER])
        saved = signal.signal(NUMBER, lambda *_: None)
        drain_on_signals(second, signals=[NUMBER])
    signal.signal(NUMBER, saved)
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on


def test_call_without_a_loop_installs_nothing(passed_on):
    """The error says what to do, and leaves the handler that was there."""
    before = signal.getsignal(NUMBER)
    with pytest.raises(NoRunningLoop, match="purgatory 'test' needs a running asyncio loop; call it from a coroutine"):
        drain_on_signals(AsyncPurgatory("test"), signals=[NUMBER])
    assert before is signal.getsignal(NUMBER)


def test_purgatory_that_is_dropped_is_forgotten(run, passed_on):
    """Listening keeps no purgatory alive, and a closed loop is no hindrance to the signal."""

    async def main():
        purgatory = AsyncPurgatory("test")
        drain_on_signals(purgatory, signals=[NUMBER])
        return purgatory

    purgatory = run(main)
    signal.raise_signal(NUMBER)
    assert [NUMBER] == passed_on
    drain_on_signals(purgatory)()


def test_loop_off_the_main_thread_is_left_alone(passed_on):
    """On another thread, where Python allows no handler, nothing happens."""

    async def main():
        async with AsyncPurgatory("test") as purgatory:
            drain_on_signals(purgatory, signals=[NUMBER])()

    mine = signal.getsignal(NUMBER)
    assert threading.current_thread() is threading.main_thread()
    in_thread(lambda: asyncio.run(main()))
    assert mine is signal.getsignal(NUMBER)


@pytest.mark.parametrize(
    "wrong",
    [{"signals": 15}, {"signals": ["x"]}, {"signals": [0]}, {"drain": "now"}, {"timeout_ms": -1}, {"purgatory": 5}],
)
async def test_wrong_argument_raises_before_the_signal(purgatory, wrong):
    """A wrong argument raises at once, because an error at the signal would leave every waiter unanswered."""
    with pytest.raises(InvalidSetting, match=f"{next(iter(wrong))} must be"):
        drain_on_signals(**{"purgatory": purgatory, **wrong})
