"""A seed as a history: plain lists and dicts, which a process can be sent and a failure can be reduced in.

A history has ``settings`` (of the purgatory), ``operations``, ``locks`` and ``observers`` with the scripts of their
methods, and ``steps``. A step is a list: the name of a method ``do_...`` of ``play.World``, and its arguments. A script
is a dict: the steps to ``do`` in the call, and how the call is to ``end``. Each call of a method takes the next script,
so that every history ends.
"""

import random

LOCKS = 3
KINDS = ("plain",) * 6 + ("own", "own", "bare", "future", "own future", "only future", "forgetful")
DELAYS = (-5, 0, 1, 20, 300, 10**20)
NEW_DELAYS = (0, 7, 500, 500, 10**21, "x", -1, 2.0)
TRY_ENDS = (
    ("false",) * 6
    + ("force",) * 4
    + ("true", "one", "text", "none", "error", "error", "interrupt", "coroutine", "untrue")
)
HOOK_ENDS = ("none",) * 8 + ("error", "error", "interrupt", "exit", "coroutine", "one")
OBSERVER_ENDS = ("none",) * 6 + ("error", "interrupt")
LOCK_ENDS = ("none",) * 6 + ("error", "interrupt", "false")


class Generator:
    """Draws a history."""

    def __init__(self, seed):
        self.random = random.Random(f"history {seed}")
        self.chance = lambda share: self.random.random() < share
        self.pick = self.random.choice
        self.operations = self.pick((3, 8, 20, 40))
        self.current = None  # the operation whose hook is drawn
        self.has_locks = self.chance(0.7)
        self.has_interrupts = self.chance(0.6)
        self.keys = self.pick((1, 3, 6, 30))
        self.wildness = self.pick((0.1, 0.25, 0.5))  # how many scripts do something

    def history(self):
        return {
            "settings": self.settings(),
            "locks": {str(number): self.lock() for number in range(LOCKS)},
            "operations": {str(number): self.operation(number) for number in range(self.operations)},
            "observers": [self.observer() for _ in range(self.pick((0, 0, 1, 2)))],
            "tenant": self.scripts(3, ("none",) * 4 + ("error", "list")),
            "timer": self.scripts(3, ("none",) * 4 + ("error", "interrupt")),
            "steps": [self.step(0) for _ in range(self.pick((10, 30, 60)))],
        }

    def settings(self):
        limit = self.pick((None, None, 1, 3, 15))
        kind = self.pick(("mock",) * 5 + ("none", "own", "hooked"))
        return {
            "keys": self.pick(("str", "int", "tuple", "own", "mixed")),
            "timer": kind,
            "shards": self.pick((1, 3, 512)),
            "purge_interval": self.pick((0, 1, 1000)),
            "max_parked": limit,
            "tenants": limit is not None and self.chance(0.5),
            "share": self.pick((0.4, 1.0)),
            "keep_context": self.chance(0.3),
            "journal": None if kind == "none" else self.pick((None,) * 8 + ("roomy", "narrow")),
            "identify": self.chance(0.5),
        }

    def lock(self):
        calls = self.scripts(4, LOCK_ENDS, depth=2) if self.chance(0.3) else []
        return {
            "kind": self.pick(("RLock", "RLock", "Lock")),
            "acquire": calls,
            "release": self.scripts(2, ("none",) * 6 + ("error", "interrupt"), depth=2) if calls else [],
            "fails": self.pick((None,) * 8 + (0, 1, 2)),
        }

    def operation(self, number):
        self.current = number
        drawn = {
            "kind": self.pick(KINDS),
            "delay_ms": self.pick(DELAYS),
            "lock": self.pick((None, None, *range(LOCKS)) if self.has_locks else (None,)),
            "tenant": self.random.randrange(3),
            "futures": self.random.sample(range(4), self.pick((0, 1, 1, 2, 4))),
            "try_complete": self.scripts(self.pick((0, 1, 3, 5)), TRY_ENDS),
            "on_complete": self.scripts(1, HOOK_ENDS),
            "on_expiration": self.scripts(1, HOOK_ENDS),
        }
        self.current = None
        return drawn

    def observer(self):
        return {
            name: self.scripts(6, OBSERVER_ENDS) for name in ("parked", "leaving", "finished") if self.chance(0.7)
        } or {"finished": []}

    def scripts(self, most, ends, depth=1):
        if not self.has_interrupts:
            ends = [end for end in ends if end not in {"interrupt", "exit"}]
        return [self.script(ends, depth) for _ in range(self.random.randint(0, most))]

    def script(self, ends, depth):
        number = self.pick((1, 1, 2, 3)) if self.chance(self.wildness) else 0
        return {"do": [self.step(depth) for _ in range(number)], "end": self.pick(ends)}

    # -- steps

    def step(self, depth):
        """A step. Those inside a call of the library have a depth of one or more, and do not move the clock."""
        while True:
            name, share = self.pick(STEPS)
            if not self.chance(share):
                continue
            if depth and name in {"advance", "add_to_timer", "stop_timer"}:
                continue
            if depth > 1 and name in {"elsewhere", "hold", "holding", "shutdown"}:
                continue
            return [name, *getattr(self, name, self.nothing)(depth)]

    def which(self):
        if self.current is not None and self.chance(0.3):
            return self.current
        return self.random.randrange(self.operations)

    def key(self):
        return self.random.randrange(self.keys)

    def some_keys(self):
        return self.random.choices(range(self.keys), k=self.pick((1, 1, 1, 2, 3, 3, 5, 20)))

    def inner(self, depth):
        return [self.step(depth + 1) for _ in range(self.pick((1, 2, 3)))]

    def nothing(self, depth):
        del depth
        return ()

    def park(self, depth):
        del depth
        return self.which(), self.some_keys(), self.pick(("list", "list", "tuple"))

    def crowd(self, depth):
        del depth
        return self.pick((3, 20, 60)), self.some_keys(), self.pick((1, 2, 7, 1000))

    def check(self, depth):
        del depth
        return self.key(), self.pick((None, None, None, 1, 3, 17, 0, 10**9)), self.chance(0.3)

    def check_all(self, depth):
        del depth
        return self.some_keys(), self.pick((None, None, 1, 2, 40))

    def cancel_for_key(self, depth):
        del depth
        return (self.key(),)

    operations_for_key = watching = cancel_for_key

    def force(self, depth):
        del depth
        return (self.which(),)

    maybe = run = cancel = ready = add_to_timer = reserved = force

    def extend(self, depth):
        del depth
        return self.which(), self.pick(NEW_DELAYS)

    reschedule = extend

    def initialize(self, depth):
        del depth
        return self.which(), self.pick(DELAYS)

    def advance(self, depth):
        del depth
        return (self.pick((0, 1, 1, 30, 400)),)

    def hold(self, depth):
        return self.random.randrange(LOCKS), self.inner(depth)

    holding = hold

    def elsewhere(self, depth):
        return (self.inner(depth),)

    def shutdown(self, depth):
        ticks = [self.inner(depth + 1) for _ in range(self.pick((0, 1, 3)))]
        return self.pick(("expire", "cancel", "wait", "wait", "else")), self.pick((0, 1, 60, 60, -1)), ticks

    def fulfil(self, depth):
        del depth
        return self.random.randrange(4), self.pick(("result", "result", "cancel", "error", "own"))

    def wait(self, depth):
        del depth
        return self.pick((1, 5, 9)), self.pick((0, 50, "x")), self.pick((None, None, "a"))

    def rise(self, depth):
        del depth
        return (
            self.pick(("maybe_complete",) * 4 + ("complete", "complete_all")),
            self.pick((0, 2, 6, 6, 30, "x")),
            self.pick((None, None, "a")),
        )

    def fail(self, depth):
        del depth
        return self.pick(("fail", "forget", "fail_all")), self.pick((None, None, "a"))

    def wait_for_futures(self, depth):
        del depth
        return self.pick((0, 50)), self.random.sample(range(4), self.pick((0, 1, 2)))

    def wrong(self, depth):
        del depth
        return (self.random.randrange(9), self.which())

    def observe(self, depth):
        del depth
        return (self.chance(0.5),)


#: The steps, and how many of those that are drawn are taken.
STEPS = (
    *(("park", 1.0),) * 6,
    *(("check", 1.0),) * 3,
    *(("ready", 1.0),) * 2,
    *((name, 1.0) for name in ("check_all", "force", "maybe", "cancel", "extend", "advance", "round", "fulfil")),
    *((name, 0.7) for name in ("hold", "holding", "elsewhere")),
    *((name, 0.4) for name in ("cancel_for_key", "purge", "run", "crowd", "wait", "rise", "wait_for_futures")),
    *((name, 0.3) for name in ("initialize", "wrong", "fail", "let_go", "operations_for_key", "watching")),
    *((name, 0.15) for name in ("reschedule", "add_to_timer", "reserved", "observe")),
    *((name, 0.05) for name in ("shutdown", "stop_timer")),
)
