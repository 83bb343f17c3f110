"""Under gevent, whose monkey-patched ``threading`` puts greenlets and locks of its own in the place of threads."""

import pytest

from tests.support.programs import output_of

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import threading, time
import gevent
from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome

class Poll(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready and self.force_complete()
    def on_complete(self):
        self.done = time.monotonic()

polls = []
with DelayedOperationPurgatory("greenlets") as purgatory:
    def client(number):
        poll = Poll(200 if number % 2 else 60_000)
        poll.start = time.monotonic()
        polls.append(poll)
        purgatory.try_complete_else_watch(poll, [number % 10])
        gevent.sleep(0.01)

    gevent.joinall([gevent.spawn(client, number) for number in range(1000)])
    deadline = time.monotonic() + 50
    while purgatory.parked > 500 and time.monotonic() < deadline:
        gevent.sleep(0.01)
    expired = [poll for poll in polls if poll.outcome is Outcome.EXPIRED]
    assert 500 == len(expired), len(expired)
    assert all(poll.done - poll.start >= 0.2 for poll in expired)
    for poll in polls:
        poll.ready = True
    gevent.joinall([gevent.spawn(purgatory.check_and_complete, key) for key in range(10)])
    assert 500 == sum(poll.outcome is Outcome.SATISFIED for poll in polls)

    # A lock of the program's, held by a greenlet that yields: the check that misses it is made up.
    for lock in (threading.RLock(), threading.Lock()):
        poll = Poll(60_000, lock=lock)
        assert not purgatory.try_complete_else_watch(poll, ["shared"])
        poll.ready = True
        def hold():
            with lock:
                gevent.sleep(0.1)
        holder = gevent.spawn(hold)
        gevent.sleep(0.02)
        assert 0 == purgatory.check_and_complete("shared")
        holder.join()
        while poll.outcome is None and time.monotonic() < deadline:
            gevent.sleep(0.01)
        assert poll.outcome is Outcome.SATISFIED, poll.outcome
print("all answered")
"""


@pytest.mark.parametrize("pure", ["", "1"])
def test_greenlets_park_check_and_expire(pure, monkeypatch):
    """Operations of greenlets are satisfied and expire, none early. A lock of gevent is given back as it wants."""
    monkeypatch.setenv("PURGATORY_PURE", pure)
    assert "all answered" in output_of(PROGRAM, seconds=100)[0]
