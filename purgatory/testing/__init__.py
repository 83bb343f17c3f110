"""Purgatories for your own tests: on a clock that you move, with a check at the end that every operation was answered.

With pytest, name the plugin once, in the ``conftest.py`` at the root of the tests, and take the fixture
``purgatories``::

    pytest_plugins = ["purgatory.testing"]


    def test_session_ends_without_a_heartbeat(purgatories):
        sessions = purgatories.make("sessions")
        sessions.try_complete_else_watch(session := Session(30_000), ["ann"])

        purgatories.advance(30_000)
        assert session.outcome is Outcome.EXPIRED

All purgatories of one test share a :class:`timer.MockTimer`. Nothing sleeps, everything runs on the thread of the test,
and a deadline is met to the millisecond.

At the end of the test the fixture fails it in three cases:

- An operation is still parked in a purgatory that the test has not shut down itself. The error names the operation. So
  a forgotten check is found here, and not as a timeout in production.
- A task still awaited an operation when its loop was closed. ``asyncio.run`` cancels such a task without a report. A
  cancellation by the test itself does not count.
- A hook raised. The library contains the error, even a failed ``assert`` of the test.

Without pytest: ``with Purgatories() as purgatories``, or ``async with`` on a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from purgatory.testing._purgatories import HookRaised, LeftParked, Purgatories

__all__ = ["HookRaised", "LeftParked", "Purgatories"]

with contextlib.suppress(ModuleNotFoundError):  # there is the class without it
    import pytest

    @pytest.fixture
    def purgatories() -> Iterator[Purgatories]:
        """Purgatories on a clock moved by hand. At the end of the test no operation may still wait in them."""
        with Purgatories() as made:
            yield made
