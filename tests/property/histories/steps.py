"""The steps of a history: each ``do_...`` method is one call of the library, with arguments that a history can hold."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from purgatory import DelayedOperation
from tests.property.histories import things

#: The other threads.
POOL = ThreadPoolExecutor(8)


class Steps:
    """The part of a world that makes steps."""

    def do_park(self, number, keys, kind):
        keys = [self.keys(key) for key in keys]
        return self.purgatory.try_complete_else_watch(self.operation(number), tuple(keys) if kind == "tuple" else keys)

    def do_crowd(self, many, keys, every):
        """Park many operations. One in ``every`` is ready from then on."""
        answers = []
        for place in range(many):
            self.names += 1
            each = things.operation(self, f"extra{self.names}", {})
            answers.append(self.purgatory.try_complete_else_watch(each, [self.keys(key) for key in keys]))
            each.ready = place % every == every - 1
        return answers

    def do_ready(self, number):
        self.operation(number).ready = True

    def do_check(self, key, limit, is_named):
        if is_named:
            return self.purgatory.check_and_complete(key=self.keys(key), limit=limit)
        return self.purgatory.check_and_complete(self.keys(key), limit)

    def do_check_all(self, keys, limit):
        return self.purgatory.check_and_complete_all([self.keys(key) for key in keys], limit)

    def do_cancel_for_key(self, key):
        return self.purgatory.cancel_for_key(self.keys(key))

    def do_operations_for_key(self, key):
        return self.purgatory.operations_for_key(self.keys(key))

    def do_watching(self, key):
        return self.purgatory.watching(self.keys(key))

    def do_purge(self):
        return self.purgatory.purge()

    def do_force(self, number):
        return self.operation(number).force_complete()

    def do_maybe(self, number):
        return self.operation(number).maybe_try_complete()

    def do_cancel(self, number):
        return self.operation(number).cancel()

    def do_run(self, number):
        return self.operation(number).run()

    def do_extend(self, number, delay_ms):
        return self.operation(number).extend(delay_ms)

    def do_reschedule(self, number, delay_ms):
        return self.timer.reschedule(self.operation(number), delay_ms)

    def do_add_to_timer(self, number):
        return self.timer.add(self.operation(number))

    def do_stop_timer(self):
        return self.timer.shutdown()

    def do_reserved(self, number):
        self.operation(number).keys = ()

    def do_initialize(self, number, delay_ms):
        operation = self.operation(number)
        DelayedOperation.__init__(
            operation, delay_ms, lock=operation.spec.get("lock") and self.lock(operation.spec["lock"])
        )

    def do_advance(self, timeout_ms):
        return self.timer.advance_clock(timeout_ms)

    def do_round(self):
        self.purgatory._retrier._try_each()

    def do_hold(self, number, steps):
        """Another thread holds a lock meanwhile."""
        lock, taken, done = self.lock(number), Future(), threading.Event()

        def hold():
            taken.set_result(lock.real.acquire(blocking=False))
            done.wait()
            if taken.result():
                lock.real.release()

        ended = POOL.submit(hold)
        lock.held += taken.result()
        try:
            self.steps(steps)
        finally:
            lock.held -= taken.result()
            done.set()
            ended.result()
        return taken.result()

    def do_holding(self, number, steps):
        """This thread holds a lock meanwhile."""
        lock = self.lock(number)
        lock.take(True)
        try:
            self.steps(steps)
        finally:
            lock.give_back()

    def do_elsewhere(self, steps):
        POOL.submit(self.steps, steps).result()

    def do_shutdown(self, drain, timeout_ms, ticks):
        self.ticks.append(list(ticks))
        try:
            return self.purgatory.shutdown(drain, timeout_ms=timeout_ms)
        finally:
            self.ticks.pop()

    def do_close(self, name):
        getattr(self, name).shutdown()

    def do_fulfil(self, place, how):
        """A future is done. One that is done is replaced: operations to come wait for the new one."""
        future = self.futures[place]
        if future.done() or how == "own":
            self.futures[place] = things.Asked() if how == "own" else Future()
        elif how == "cancel":
            future.cancel()
        elif how == "error":
            future.set_exception(OSError(place))
        else:
            future.set_result(place)

    def do_wait(self, threshold, timeout_ms, key):
        future = self.watermark.wait(threshold, timeout_ms, key=key)
        self.waits.append(future)
        number = len(self.waits)
        future.add_done_callback(lambda each: self.say(f"wait {number} is {self.ended(each)}"))

    def ended(self, future):
        return "cancelled" if future.cancelled() else self.shown(future.exception() or future.result())

    def do_let_go(self):
        return self.waits.pop().cancel() if self.waits else None

    def do_rise(self, how, value, key):
        return getattr(self.watermark, how)(value, **({} if how.endswith("_all") else {"key": key}))

    def do_fail(self, how, key):
        return getattr(self.watermark, how)(OSError(how), **({} if how.endswith("_all") else {"key": key}))

    def do_wait_for_futures(self, timeout_ms, places):
        futures = [self.futures[place] for place in places]
        done = self.sets.try_complete_else_watch(timeout_ms, futures, lambda _: self.say(f"all of {places}"))
        return done.outcome

    def do_observe(self, attach):
        for each in self.observers:
            (self.purgatory.attach if attach else self.purgatory.detach)(each)

    def do_wrong(self, which, number):
        """A call with arguments that cannot work."""
        park, check = self.purgatory.try_complete_else_watch, self.purgatory.check_and_complete
        operation = self.operation(number)
        calls = (
            lambda: check([]), lambda: park(operation, "text"), lambda: park(operation, []),
            lambda: park(operation, [1, []]), lambda: park(object(), [1]), lambda: park(things.Plain, [1]),
            lambda: park([]), lambda: self.purgatory.check_and_complete_all("text"), lambda: check(1, True),
        )  # fmt: skip
        return calls[which]()
