"""A history played by both implementations, each in a process of its own, and its smallest part that differs."""

import copy
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[3]
#: The line that follows if a history cannot be played to its end.
FAILED = "the history failed"
#: How many histories are tried at most, to make one smaller.
MOST_TRIES = 2000


class Player:
    """A process that plays histories on one implementation."""

    def __init__(self, name):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self.process = None
        self.has_answered = False

    def send(self, history):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.property.histories.play"],
                cwd=ROOT,
                # Strings hash as in the other process.
                env={**os.environ, "PURGATORY_PURE": "1" if self.name == "pure" else "0", "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
            )
        self.process.stdin.write(json.dumps(history) + "\n")
        self.process.stdin.flush()

    def receive(self):
        """The lines of the history that was sent. If the process has died, what it wrote to its standard error."""
        answer = self.process.stdout.readline()
        if answer:
            self.has_answered = True
            return json.loads(answer)
        code = self.process.wait()
        self.process = None
        self.errors.seek(0)
        died = [f"the {self.name} process died: {code}", *self.errors.read().splitlines()[-40:]]
        self.errors.seek(0)
        self.errors.truncate()
        if not self.has_answered:  # it cannot even start
            raise RuntimeError("\n".join(died))
        return died

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
        self.errors.close()


@attrs.frozen
class Difference:
    """What both implementations recorded of a history, if it is not the same."""

    history: dict
    pure: list[str]
    native: list[str]

    @property
    def signature(self):
        """The first lines that differ, without their numbers: whether two differences have one cause."""
        pairs = zip([*self.pure, ""], [*self.native, ""], strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        return tuple(re.sub("[0-9]+", "", " ".join(line.split()[:2])) for line in first)

    def __str__(self):
        shown = difflib.unified_diff(self.pure, self.native, "pure", "native", lineterm="", n=12)
        return "\n".join([json.dumps(self.history), *shown])


class Comparison:
    """Both implementations, side by side."""

    def __init__(self):
        self.players = Player("pure"), Player("native")

    def difference(self, history):
        """The difference of a history, or None."""
        for player in self.players:
            player.send(history)
        pure, native = (player.receive() for player in self.players)
        if pure != native:
            return Difference(history, pure, native)
        if FAILED in pure:
            raise RuntimeError("\n".join([json.dumps(history), *pure]))
        return None

    def reduced(self, difference):
        """The smallest history that could be found that differs in the same way."""
        tries = 0
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for smaller in list(smaller_histories(difference.history)):
                tries += 1
                if tries > MOST_TRIES:
                    return difference
                found = self.difference(smaller)
                if found is not None and found.signature == difference.signature:
                    difference, is_smaller = found, True
                    break
        return difference

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for player in self.players:
            player.close()


def smaller_histories(history):
    """The histories that lack one part of this one, large parts first."""
    cuts = sorted(_cuts(history, ()), key=lambda cut: -cut[0])
    for _, path, change in cuts:
        smaller = copy.deepcopy(history)
        inner = smaller
        for part in path:
            inner = inner[part]
        change(inner)
        yield smaller


def _cuts(tree, path):
    """What may be cut: its size, where it is, and how. A step is a list that begins with its name, and stays whole."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield len(json.dumps(part)), path, lambda inner, name=name: inner.pop(name)
            yield from _cuts(part, (*path, name))
    elif isinstance(tree, list):
        is_step = bool(tree) and isinstance(tree[0], str)
        size = len(tree) // 2
        while not is_step and size > 1:
            for start in range(0, len(tree), size):
                cut = slice(start, start + size)
                yield len(json.dumps(tree[cut])), path, lambda inner, cut=cut: inner.__delitem__(cut)
            size //= 2
        for place, part in enumerate(tree):
            if not is_step:
                yield len(json.dumps(part)), path, lambda inner, place=place: inner.pop(place)
            yield from _cuts(part, (*path, place))
