"""The operations, locks, observers and timers of a history. Each call of theirs is recorded, and plays its script."""

import threading
from concurrent.futures import Future

from purgatory import DelayedFuture, DelayedOperation, Observer, Outcome
from tests.support.tasks import OwnTimer
from timer import MockTimer


class Stuck(Exception):
    """The calling thread would wait for ever, because no other thread runs."""


class Key:
    """A key whose hash is Python's to find, and the same for several."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number % 3

    def __eq__(self, other):
        return type(other) is Key and other.number == self.number

    def __repr__(self):
        return f"Key({self.number})"


KEYS = {
    "str": lambda number: f"key {number}",
    "int": lambda number: number,
    "tuple": lambda number: ("topic", number),
    "own": Key,
    "mixed": lambda number: (str, int, Key, lambda each: ("topic", each))[number % 4](number),
}


class Scripted:
    """What operations of every kind share: a name, and scripts for their hooks."""

    def describe(self, world, name, spec):
        self.world = world
        self.name = name
        self.spec = spec
        self.ready = False
        self.called = dict.fromkeys(("try_complete", "on_complete", "on_expiration"), 0)
        return self

    def hook(self, hook):
        number = self.called[hook]
        self.called[hook] += 1
        scripts = self.spec.get(hook, ())
        script = scripts[number] if number < len(scripts) else {}
        return self.world.act(f"{self.name}.{hook} {self.world.context()}".rstrip(), script, self.force_complete)


class Plain(Scripted, DelayedOperation):
    """An operation with all three hooks."""

    def try_complete(self):
        answer = self.hook("try_complete")
        return (self.ready and self.force_complete()) if answer is None else answer

    def on_complete(self):
        return self.hook("on_complete")

    def on_expiration(self):
        return self.hook("on_expiration")


class Own(Plain):
    """Inherits its hooks, and has normal ends of its own."""

    normal_ends = frozenset({Outcome.EXPIRED, Outcome.CANCELLED})


class Bare(Scripted, DelayedOperation):
    """Has no hooks but the one that is needed."""

    def try_complete(self):
        answer = self.hook("try_complete")
        return (self.ready and self.force_complete()) if answer is None else answer


class Forgetful(Bare):
    """Forgets its base class."""

    def __init__(self, delay_ms, *, lock):
        pass


class Ready(Scripted, DelayedFuture):
    """Waits for futures."""

    def on_complete(self):
        super().on_complete()
        return self.hook("on_complete")


class OwnReady(Ready):
    """Waits for futures, and has the other hooks."""

    def try_complete(self):
        answer = self.hook("try_complete")
        return super().try_complete() if answer is None else answer

    def on_expiration(self):
        return self.hook("on_expiration")


class OnlyReady(Scripted, DelayedFuture):
    """Waits for futures, and has no Python of its own."""


KINDS = {"plain": Plain, "own": Own, "bare": Bare, "forgetful": Forgetful}
FUTURES = {"future": Ready, "own future": OwnReady, "only future": OnlyReady}


def operation(world, name, spec):
    kind, delay_ms = spec.get("kind", "plain"), spec.get("delay_ms", 300)
    if kind in FUTURES:
        futures = [world.futures[number] for number in spec.get("futures", ())]
        made = FUTURES[kind](delay_ms, futures, lambda given: world.say(f"{name} calls back with {len(given)}"))
    else:
        number = spec.get("lock")
        made = KINDS[kind](delay_ms, lock=None if number is None else world.lock(number))
    return made.describe(world, name, spec)


class Asked(Future):
    """A future that Python is asked of."""

    def done(self):
        return super().done()


class Lock:
    """A user's lock. Its calls are recorded. A thread that would wait for it raises ``Stuck``.

    ``fails`` is which ``acquire`` of the lock fails, of those that find it free.
    """

    def __init__(self, world, name, spec):
        self.world = world
        self.name = name
        self.spec = spec
        self.real = getattr(threading, spec.get("kind", "RLock"))()
        self.held = 0
        self.called = {"acquire": 0, "release": 0, "when free": 0}

    def play(self, method, text):
        number = self.called[method]
        self.called[method] += 1
        scripts = self.spec.get(method, ())
        return self.world.act(f"{self.name}.{method}{text}", scripts[number] if number < len(scripts) else {})

    def acquire(self, *args, **named):
        if self.play("acquire", f" {args} {named}") is False:
            return False
        if not self.held:
            self.called["when free"] += 1
            if self.called["when free"] - 1 == self.spec.get("fails"):
                raise OSError(f"{self.name} fails")
        return self.take(args[0] if args else named.get("blocking", True))

    def take(self, blocking):
        taken = self.real.acquire(blocking=False)
        self.held += taken
        if blocking and not taken:
            raise Stuck(f"waits for {self.name}")
        return taken

    def release(self):
        self.give_back()
        self.play("release", "")

    def give_back(self):
        self.held -= 1
        self.real.release()


def observer(world, name, spec):
    """An observer with the methods that have scripts."""
    called = dict.fromkeys(spec, 0)

    def method(event):
        def told(_, operation, *details):
            number = called[event]
            called[event] += 1
            script = spec[event][number] if number < len(spec[event]) else {}
            text = " ".join(map(world.shown, (operation, operation.outcome, *details)))
            return world.act(f"{name}.{event} {text}", script)

        return told

    return type("Told", (Observer,), {event: method(event) for event in spec})()


class OwnClocked(OwnTimer):
    """Such a timer with the clock of ours."""

    def now_ns(self):
        return self.under.now_ns()

    @property
    def is_driven(self):
        return True


class HookedTimer(MockTimer):
    """A timer whose ``add`` acts before and fails now and then."""

    scripts, world = (), None

    def add(self, task):
        script, *self.scripts = self.scripts or ({},)
        self.world.act(f"timer.add {self.world.shown(task)}", script)
        super().add(task)


def timer(world, kind, scripts):
    if kind == "own":
        return OwnClocked()
    if kind == "hooked":
        made = HookedTimer()
        made.world, made.scripts = world, scripts
        return made
    return MockTimer()
