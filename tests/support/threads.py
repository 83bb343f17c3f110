"""Bounded ways to run threads and to wait for what they do."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

#: How long a test waits for what ought to happen at once. A machine that is busy with other things puts a thread off
#: for seconds, so this is long: it is waited for in full only by a test that fails.
PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "30"))


def eventually(condition: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Wait until ``condition()`` holds. False if it never does."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.0005)
    return True


def in_thread(function: Callable[..., Any], *args: Any, seconds: float = PATIENCE_S) -> Any:
    """What ``function(*args)`` gives on a thread of its own. Fails if it doesn't come back."""
    return run_threads(lambda: function(*args), seconds=seconds)[0]


def run_threads(*functions: Callable[[], Any], seconds: float = 2 * PATIENCE_S) -> list[Any]:
    """Start all at once, wait for all. An error of one of them is raised here."""
    gate = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []

    def call(index: int, function: Callable[[], Any]) -> None:
        try:
            gate.wait(seconds)
            results[index] = function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(index, function), daemon=True, name=f"test-{index}")
        for index, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    assert not [thread.name for thread in threads if thread.is_alive()], "threads did not come back"
    if errors:
        raise errors[0]
    return results


class Hang:
    """A hook that hangs until it is released. It tells when it has begun and when it has ended."""

    def __init__(self) -> None:
        self.begun, self.ended, self._released = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        self._released.wait(2 * PATIENCE_S)
        self.ended.set()

    def has_begun(self) -> bool:
        """Wait until the hook hangs. False if it never does."""
        return self.begun.wait(PATIENCE_S)

    def release(self) -> None:
        """Let the hook end, and wait until it has."""
        self._released.set()
        assert self.ended.wait(PATIENCE_S)


@contextlib.contextmanager
def beside(*functions: Callable[[], object], seconds: float = 2 * PATIENCE_S) -> Iterator[None]:
    """Run each on a thread of its own beside the block, which waits for them at its end."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(seconds)
    assert not [thread.name for thread in threads if thread.is_alive()], "threads did not come back"
