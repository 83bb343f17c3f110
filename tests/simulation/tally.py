"""Count operations by the million: is each answered or taken out once, nothing early, no event missed?

``python -m tests.simulation.tally --operations 100000000``. Where the soak goes on for long, this goes for as many as
it can. Threads park and put what they have parked on a *board* that they share. A thread that puts a new operation on a
place of it ends the old one there, by one of the ways below, and every few turns also meddles with one that stays. So
the threads that park, check, force and cancel an operation, and the timer, meet at it as often as possible.

    ready, and its key is checked    what most wait for
    forced                           by whoever comes by
    cancelled                        taken out without an answer
    put off                          its deadline moves, by a quarter of a day or a few milliseconds
    left to its deadline             1 to 40 ms for one in eight, a day for the others

A round is some ten thousand operations a thread. At its end each thread makes its own ready and checks their keys,
once, beside the others that do the same. When all have done so, no thread checks any more, and within seconds each
operation must have an outcome: one without lost an event. Then every operation is asked how often its hooks ran, what
it says its outcome was, and the purgatory what it counted:

    lost       no outcome, or one that wants an answer and has none
    doubled    answered twice, or answered and taken out
    early      expired before its deadline
    adrift     the purgatory's own totals differ from the sum over the operations, or something is left in it
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import threading
import time

import attrs
import structlog

import purgatory
from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome

DAY_MS = 86_400_000
KEYS = 256
BOARD = 512


class Request(DelayedOperation):
    """One request, and what became of it."""

    __slots__ = ("answers", "early", "expirations", "ready")

    def __init__(self, delay_ms):
        super().__init__(delay_ms)
        self.ready = False
        self.answers = self.expirations = self.early = 0

    def try_complete(self):
        return self.ready and self.force_complete()

    def on_complete(self):
        self.answers += 1

    def on_expiration(self):
        self.expirations += 1
        self.early += time.monotonic_ns() < self.deadline_ns


COUNTS = ("operations", "answered", "expired", "taken_out", "lost", "doubled", "early", "adrift")


class Tally(attrs.make_class("Counts", {name: attrs.field(default=0) for name in COUNTS})):
    """The counts so far."""

    @property
    def is_clean(self):
        """Whether every operation ended once, in time, and the purgatory has counted the same."""
        return not (self.lost or self.doubled or self.early or self.adrift)

    def count(self, operations):
        """Take in a round's operations, all of which ought to have ended."""
        for request in operations:
            outcome, answers = request.outcome, request.answers
            taken_out = outcome is Outcome.CANCELLED
            self.operations += 1
            self.answered += answers > 0
            self.taken_out += taken_out
            self.expired += outcome is Outcome.EXPIRED
            self.lost += outcome is None or answers + taken_out == 0
            self.doubled += answers + taken_out > 1
            self.adrift += request.expirations != (outcome is Outcome.EXPIRED)
            self.early += request.early


def play(draw, waiting, board, number):
    """One thread's part of a round: ``number`` operations, parked and met with. Gives them back."""
    mine = []
    chance, below = draw.random, draw.randrange
    for turn in range(number):
        request = Request(below(1, 40) if turn % 8 == 0 else DAY_MS)
        key = below(KEYS)
        keys = [key, (key + 7) % KEYS, ("own", turn)] if turn % 4 == 0 else [key]
        mine.append(request)
        waiting.try_complete_else_watch(request, keys)
        place = below(BOARD)
        before, board[place] = board[place], (request, key)
        if before is not None:
            end(chance(), waiting, *before)
        if turn % 4 == 1:
            met = board[below(BOARD)]  # it stays on the board: another thread will meet it as well
            if met is not None:
                meddle(chance(), waiting, *met)
    return mine


def end(chance, waiting, request, key):
    if request.delay_ms < DAY_MS and chance < 0.7:
        return  # its deadline is near
    if chance < 0.8:
        request.ready = True
        waiting.check_and_complete(key)
    elif chance < 0.9:
        request.force_complete()
    else:
        request.cancel()


def meddle(chance, waiting, request, key):
    if chance < 0.25:
        request.ready = True
        waiting.check_and_complete(key, limit=1)
    elif chance < 0.5:
        request.extend(DAY_MS // 4 if chance < 0.375 else int(chance * 40))
    elif chance < 0.75:
        waiting.check_and_complete(key)
    elif chance < 0.875:
        request.force_complete()
    else:
        request.cancel()


def settle(waiting, mine):
    """The end of a round for one thread: all of its operations are ready, and each key hears of it once, afterwards."""
    keys = set()
    for request in mine:
        if request.outcome is None:
            request.ready = True
            keys.update(request.keys)
    for key in keys:
        waiting.check_and_complete(key)


def tally(operations, *, threads=4, each=10_000, seed=0, tell=None, patience_s=60.0):
    """Play rounds until a number of operations have ended. The sum of all."""
    found = Tally()
    waiting = DelayedOperationPurgatory("tally")
    before = waiting.totals()
    draws = [random.Random(seed * 1_000 + number) for number in range(threads)]
    while found.operations < operations and found.is_clean:
        board, parts, errors = [None] * BOARD, [[] for _ in draws], []
        meet = threading.Barrier(threads, timeout=600)

        def take_part(number, board=board, parts=parts, errors=errors, meet=meet):
            try:
                meet.wait()
                parts[number] = play(draws[number], waiting, board, each)
                meet.wait()
                settle(waiting, parts[number])
            except BaseException as error:
                errors.append(error)
                meet.abort()

        players = [threading.Thread(target=take_part, args=(number,)) for number in range(threads)]
        for player in players:
            player.start()
        for player in players:
            player.join()
        if errors:
            raise errors[0]
        played = [request for part in parts for request in part]
        round_, before = settled(waiting, played, before, time.monotonic() + patience_s)
        for name in attrs.fields_dict(Tally):
            setattr(found, name, getattr(found, name) + getattr(round_, name))
        if tell is not None:
            tell(found)
    waiting.shutdown()
    return found


def settled(waiting, played, before, give_up):
    """Count a round as soon as it is clean, or when its time is up. Returns the purgatory's totals with it.

    Some operations are left to their deadlines, and the hooks of an operation come after its outcome.
    """
    while True:
        while waiting.parked and time.monotonic() < give_up:
            time.sleep(0.001)
        found, after = Tally(), waiting.totals()
        found.count(played)
        found.adrift += differences(found, before, after) + waiting.parked + waiting.watched + waiting.num_delayed
        if found.is_clean or time.monotonic() > give_up:
            return found, after
        time.sleep(0.01)


def differences(counted, before, after):
    """By how much the purgatory's totals of a round differ from what was counted from its operations."""
    grown = {name: getattr(after, name) - getattr(before, name) for name in attrs.fields_dict(type(after))}
    answered = grown["immediate"] + grown["satisfied"] + grown["expired"] + grown["forced"]
    return (
        abs(answered - counted.answered)
        + abs(grown["expired"] - counted.expired)
        + abs(grown["cancelled"] - counted.taken_out)
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.tally", description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--switch-us", type=float, default=50, help="the interpreter's switch interval")
    arguments = parser.parse_args()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(arguments.switch_us / 1e6)
    started, told = time.monotonic(), 0.0

    def tell(found):
        nonlocal told
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{told - started:8.0f} s  {found.operations:,}", flush=True)

    edition = "native" if purgatory.COMPILED else "Python"
    print(
        f"seed {arguments.seed}, {arguments.threads} threads, {edition} edition, {sys.version.split()[0]}", flush=True
    )
    found = tally(arguments.operations, threads=arguments.threads, seed=arguments.seed, tell=tell)
    print(f"{time.monotonic() - started:,.0f} s: " + ", ".join(f"{n:,} {w}" for w, n in attrs.asdict(found).items()))
    return 0 if found.is_clean else 1


def _drop(logger, name, event):
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
