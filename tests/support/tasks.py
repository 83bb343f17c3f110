"""A timer task that remembers when it ran."""

import threading
import time

from timer import TimerTask


class Ping(TimerTask):
    """Notes itself in ``log`` when it runs, then calls ``do``."""

    def __init__(self, delay_ms, log=None, do=None, clock=time.monotonic_ns):
        super().__init__(delay_ms)
        self.log = [] if log is None else log
        self.do = do
        self.clock = clock
        self.ran_ns = []
        self.ran = threading.Event()

    def __repr__(self):
        return f"Ping({self.delay_ms})"

    def run(self):
        self.ran_ns.append(self.clock())
        self.log.append(self)
        if self.do is not None:
            self.do()
        self.ran.set()
