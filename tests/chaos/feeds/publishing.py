"""Publishers: numbered events for keys that no other process publishes, each in the truth before it is published.

Several lanes publish at a time, each to its own keys and one event after the other. Half of the events have an id, and
are repeated until they are accepted. The others are published once. A tenth of the keys get an event rarely, so that
polls also time out.
"""

import asyncio
import random

from purgatory.feeds import PublishRejected, PublishUncertain
from tests.chaos.feeds.files import Lines

LANES = 6
#: How much more rarely a rare key gets an event.
RARE = 0.03
#: The number of a key's last event.
LAST = 10**9


class Publishing:
    """The events of one process.

    Args:
        name: names the process in the ids of its events.
        folder: the files of the run.
        publish: publishes an event: its key, its value and its id, or None. Returns the position.
        first: the first number of each key, greater than those of a process before this one.
    """

    def __init__(self, name, folder, publish, seed, first=0):
        self._name = name
        self._truth = Lines(folder / "truth")
        self._published = Lines(folder / f"published-{name}.log")
        self._publish = publish
        self._random = random.Random(seed)
        self._first = first
        self._count = 0
        self._tasks = []
        self.stop = asyncio.Event()
        self.accepted = None  # is called with key, number and position of some events

    def start(self, keys, rate):
        """Publish to these keys, ``rate`` events in a second, if nothing fails."""
        for lane in range(LANES):
            own = keys[lane::LANES]
            if own:
                self._tasks.append(asyncio.create_task(self._lane(own, rate * len(own) / len(keys))))
        return self._tasks

    async def quiet(self):
        """Stop, when all that is on its way has an answer."""
        self.stop.set()
        await asyncio.gather(*self._tasks)

    async def _lane(self, keys, rate):
        weights = [RARE if number % 10 == 0 else 1.0 for number, _ in enumerate(keys)]
        numbers = dict.fromkeys(keys, self._first)
        while not self.stop.is_set():
            await asyncio.sleep(min(5.0, self._random.expovariate(rate)))
            (key,) = self._random.choices(keys, weights)
            numbers[key] += 1
            position = await self.send(key, numbers[key], has_id=self._random.random() < 0.5)
            if position is not None and self.accepted is not None and self._random.random() < 0.1:
                await self.accepted(key, numbers[key], position)

    async def send(self, key, number, *, has_id):
        """Publish one event. Returns the position, or None if it was not accepted or may not have been."""
        self._count += 1
        uid = f"{self._name}.{self._count}{'i' if has_id else 'p'}"
        self._truth.append(key, number, uid)
        position, outcome = None, "accepted"
        while True:
            try:
                position = await self._publish(key, f"{number} {uid}".encode(), uid if has_id else None)
            except PublishRejected:
                outcome = "rejected"
            except PublishUncertain:
                outcome = "uncertain"
            else:
                outcome = "accepted"
            if not has_id or position is not None:
                break
            await asyncio.sleep(self._random.uniform(0.05, 0.3))
        self._published.append(uid, key, outcome, position)
        return position
