"""The action queue: checks that wait until the handler has released its locks."""

import threading

import pytest

from purgatory import ActionQueue, InvalidAction
from tests.support import beside, run_threads


def test_actions_run_in_order_when_the_queue_is_run():
    """Nothing runs on adding. A run makes the calls in the order they were added."""
    queue, made = ActionQueue(), []
    for number in range(3):
        queue.add(made.append, number)

    assert ([], 3) == (made, len(queue))
    assert 3 == queue.try_complete_actions()
    assert [0, 1, 2] == made
    assert 0 == queue.try_complete_actions()


def test_arguments_go_along_by_name():
    """An action gets what it was added with, by place and by name, each its own."""
    queue, made = ActionQueue(), []
    for limit in (1, 2):
        queue.add(lambda *args, **named: made.append((args, named)), "k", limit=limit, action="check")
    queue.add(made.append, "plain")
    queue.try_complete_actions()

    assert [(("k",), {"limit": limit, "action": "check"}) for limit in (1, 2)] + ["plain"] == made


def test_action_added_by_an_action_waits_for_the_next_run():
    """One run ends although every action adds another."""
    queue, made = ActionQueue(), []

    def again():
        made.append(None)
        queue.add(again)

    queue.add(again)

    assert [1, 1] == [queue.try_complete_actions(), queue.try_complete_actions()]
    assert 2 == len(made)
    assert 1 == len(queue)


def test_action_that_raises_does_not_stop_the_others(logs):
    """An error of an action is logged. The next one answers another client."""
    queue, made = ActionQueue(), []
    queue.add(int, "no number")
    queue.add(made.append, 1)

    assert 2 == queue.try_complete_actions()
    assert [1] == made
    assert ["action_failed"] == [entry["event"] for entry in logs]


def test_interrupt_is_the_callers():
    """Ctrl-C in an action goes through, and the rest waits for the next run."""
    queue, made = ActionQueue(), []

    def interrupt():
        raise KeyboardInterrupt

    queue.add(interrupt)
    queue.add(made.append, 1)
    with pytest.raises(KeyboardInterrupt):
        queue.try_complete_actions()

    assert 1 == queue.try_complete_actions()
    assert [1] == made


@pytest.mark.parametrize("action", [None, 5, "call"])
def test_what_cannot_be_called_is_no_action(action):
    """A mistake is found where it is made."""
    with pytest.raises(InvalidAction, match="callable"):
        ActionQueue().add(action)


def test_no_lock_is_held_while_an_action_runs():
    """Any thread may add, and run the queue, while an action runs."""
    queue, made = ActionQueue(), []
    queue.add(lambda: run_threads(lambda: [queue.add(made.append, 1), queue.try_complete_actions()]))
    queue.try_complete_actions()

    assert [1] == made


def test_every_action_runs_once():
    """Threads that add and threads that run share the queue. Each call is made exactly once."""
    queue, made = ActionQueue(), []
    done = threading.Event()

    def add(first):
        for number in range(first, first + 500):
            queue.add(made.append, number)

    def run():
        while not done.is_set():
            queue.try_complete_actions()

    with beside(run, run):
        run_threads(*[lambda first=first: add(first) for first in (0, 500, 1000)])
        done.set()
    queue.try_complete_actions()

    assert list(range(1500)) == sorted(made)
