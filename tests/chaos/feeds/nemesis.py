"""What goes wrong in a run, drawn from the seed: up to two faults at a time, each of which ends some seconds later.

kill     kill -9 of the server, which is started again      cut      every connection of a worker is reset
refuse   connections of a worker are reset, old and new     freeze   nothing gets through, for up to 8 s
slow     each packet of a worker is delayed                 deaf     no answer of the server gets through
stop     SIGSTOP of a worker, for 1 to 10 s                 gap      the same, and the history is trimmed meanwhile
trim     the history is trimmed                             empty    the stream is removed, so it gets another epoch
murder   kill -9 of a worker, and another one is started    lose     the last events are gone, as after a failover to a
                                                                     server that lags behind, or the restore of a copy
"""

import random
import time
from collections import Counter

WEIGHTS = {
    "kill": 3,
    "cut": 3,
    "refuse": 2,
    "freeze": 2,
    "slow": 2,
    "deaf": 2,
    "stop": 3,
    "gap": 3,
    "trim": 1,
    "empty": 1,
    "lose": 2,
    "murder": 2,
}


class Nemesis:
    """Hurts the server, the network and the workers, and makes them well again. Its methods run on one thread."""

    def __init__(self, run, seed, say):
        self._run = run
        self._say = say
        self._random = random.Random(seed)
        self._open = []  # when a fault ends, its name, what it has hurt, what ends it
        self.deeds = Counter()
        self.lost = set()  # the events that the server has lost
        self.trims = []  # the places up to which the server has forgotten ids

    def step(self):
        """Begin or end one fault, or rest a moment."""
        now = time.monotonic()
        for fault in [fault for fault in self._open if fault[0] <= now]:
            self._end(fault)
        if len(self._open) < 2:
            self._begin()
        time.sleep(self._random.choice([0.1, 0.3, 0.7, 1.5]))

    def heal(self):
        """End all faults."""
        for fault in list(self._open):
            self._end(fault)

    def _end(self, fault):
        self._open.remove(fault)
        _, name, hurt, end = fault
        self._say(f"  end of {name} {'' if hurt is None else hurt.name}")
        end()

    def _begin(self):
        run = self._run
        (name,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        hurt = {fault[2] for fault in self._open}
        is_up = all(fault[1] != "kill" for fault in self._open)
        if name in {"trim", "empty", "lose", "kill"} and not is_up:
            return
        if name == "empty" and not run.server.can_empty:
            return
        slot = None
        if name not in {"kill", "trim", "empty", "lose"}:
            slots = [slot for slot in run.slots if slot not in hurt]
            if name in {"stop", "gap", "murder"}:
                slots = [slot for slot in slots if slot.follows]
            if not slots:
                return
            slot = self._random.choice(slots)
        self.deeds[name] += 1
        seconds, end = getattr(self, f"_{name}")(slot)
        self._say(f"{name} {'' if slot is None else slot.name} {f'for {seconds:.1f} s' if end else ''}")
        if end:
            self._open.append((time.monotonic() + seconds, name, slot, end))

    def _kill(self, _):
        self._run.server.kill()
        return self._random.uniform(0.2, 3), self._run.server.start

    def _cut(self, slot):
        slot.proxy.cut()
        return 0, None

    def _refuse(self, slot):
        slot.proxy.refuse()
        return self._random.uniform(0.3, 4), slot.proxy.accept

    def _freeze(self, slot):
        slot.proxy.is_frozen = True
        return self._random.uniform(0.5, 8), lambda: setattr(slot.proxy, "is_frozen", False)

    def _slow(self, slot):
        slot.proxy.delay_s = self._random.uniform(0.02, 0.3)
        return self._random.uniform(1, 6), lambda: setattr(slot.proxy, "delay_s", 0.0)

    def _deaf(self, slot):
        slot.proxy.drops_answers = True
        return self._random.uniform(0.5, 4), lambda: setattr(slot.proxy, "drops_answers", False)

    def _stop(self, slot):
        slot.stop()
        return self._random.uniform(1, 10), slot.resume

    def _gap(self, slot):
        slot.stop()

        def end():
            self._trim_history(self._random.choice([0, 1, 5]))
            slot.resume()

        return self._random.uniform(1, 4), end

    def _trim(self, _):
        self._trim_history(self._random.choice([0, 3, 50]))
        return 0, None

    def _trim_history(self, keep):
        if all(fault[1] != "kill" for fault in self._open):
            self.trims += self._run.server.trim(keep)

    def _empty(self, _):
        self._run.server.empty()
        return 0, None

    def _lose(self, _):
        self.lost.update(self._run.server.lose(self._random.choice([1, 2, 10])))
        return 0, None

    def _murder(self, slot):
        slot.kill()
        return self._random.uniform(0.1, 2), slot.start
