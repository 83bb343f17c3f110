"""The action queue: checks that wait until the handler has released its locks."""

import threading

import pytest

from purgatory import ActionQueue, InvalidSetting
from tests.support import beside, raising, run_threads


@pytest.fixture
def queue():
    return ActionQueue()


def test_actions_run_in_order_when_the_queue_is_run(queue):
    """Adding makes no call. A run makes the calls in the order they were added, each once, with its own arguments."""
    made = []
    queue.add(made.append, "plain")
    for limit in (1, 2):
        queue.add(lambda *args, **named: made.append((args, named)), "k", limit=limit, action="check")

    assert ([], 3) == (made, len(queue))
    assert [3, 0] == [queue.try_complete_actions() for _ in range(2)]
    assert ["plain", *[(("k",), {"limit": limit, "action": "check"}) for limit in (1, 2)]] == made


def test_action_added_by_an_action_waits_for_the_next_run(queue):
    """One run ends although every action adds another."""
    made = []

    def again():
        made.append(None)
        queue.add(again)

    queue.add(again)

    assert [1, 1] == [queue.try_complete_actions(), queue.try_complete_actions()]
    assert (2, 1) == (len(made), len(queue))


def test_action_that_raises_does_not_stop_the_others(queue, logs):
    """An error of an action is logged. The next one answers another client."""
    made = []
    queue.add(raising(ValueError("no")))
    queue.add(made.append, 1)

    assert 2 == queue.try_complete_actions()
    (said,) = logs
    assert ([1], "action_failed", "ValueError('no')") == (made, said["event"], said["error"])
    assert said["error"] == repr(said["exc_info"])


def test_interrupt_is_the_callers(queue):
    """Ctrl-C in an action goes through, and the rest waits for the next run."""
    made = []
    queue.add(raising(KeyboardInterrupt))
    queue.add(made.append, 1)
    with pytest.raises(KeyboardInterrupt):
        queue.try_complete_actions()

    assert 1 == queue.try_complete_actions()
    assert [1] == made


@pytest.mark.parametrize("action", [None, 5, "call"])
def test_what_cannot_be_called_is_no_action(queue, action):
    with pytest.raises(InvalidSetting, match="callable"):
        queue.add(action)


def test_no_lock_is_held_while_an_action_runs(queue):
    """Any thread may add, and run the queue, while an action runs."""
    made = []
    queue.add(lambda: run_threads(lambda: [queue.add(made.append, 1), queue.try_complete_actions()]))
    queue.try_complete_actions()

    assert [1] == made


def test_every_action_runs_once(queue):
    """Threads that add and threads that run share the queue. Each call is made exactly once."""
    made, done = [], threading.Event()

    def add(numbers):
        for number in numbers:
            queue.add(made.append, number)

    def run():
        while not done.is_set():
            queue.try_complete_actions()

    with beside(run, run):
        run_threads(*[lambda first=first: add(range(first, first + 500)) for first in (0, 500, 1000)])
        done.set()
    queue.try_complete_actions()

    assert list(range(1500)) == sorted(made)
