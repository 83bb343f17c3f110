"""Purgatories for your own tests: on a clock that you move, with a check at the end that every operation was answered.

With pytest, take the fixture ``purgatories``. It is there wherever the library is installed::

    def test_session_ends_without_a_heartbeat(purgatories):
        sessions = purgatories.make("sessions")
        sessions.try_complete_else_watch(session := Session(30_000), ["ann"])

        purgatories.advance(30_000)
        assert session.outcome is Outcome.EXPIRED

All purgatories of one test share a :class:`timer.MockTimer`. Nothing sleeps, everything runs on the thread of the test,
and a deadline is met to the millisecond.

At the end of the test the fixture fails it in four cases:

- An operation is still parked in a purgatory that the test has not shut down itself. The error names the operation. So
  a forgotten check is found here, and not as a timeout in production.
- A task still awaited an operation when its loop was closed. ``asyncio.run`` cancels such a task without a report. A
  cancellation by the test itself does not count.
- A hook raised. The library contains the error, even a failed ``assert`` of the test.
- A wait of ``wait_for`` expired although its predicate was true, and none of its keys was checked until then or in the
  second after it. The check was forgotten, or made with another key.

Where pytest loads no plugins by itself (``PYTEST_DISABLE_PLUGIN_AUTOLOAD``), name this one in the ``conftest.py`` at
the root of the tests: ``pytest_plugins = ["purgatory.testing"]``.

Without pytest: ``with Purgatories() as purgatories``, or ``async with`` on a loop.
"""

from __future__ import annotations

import contextlib

from purgatory.testing._purgatories import CheckMissed, HookRaised, LeftParked, Purgatories

__all__ = ["CheckMissed", "HookRaised", "LeftParked", "Purgatories"]

with contextlib.suppress(ModuleNotFoundError):  # there is the class without it
    from pytest_purgatory import purgatories as purgatories  # a plugin's fixtures are its attributes
