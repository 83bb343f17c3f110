"""One run: start a server and workers, let the nemesis work, make all well, and check what the files say."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.feeds.checker import check, check_client, check_history, lateness_s
from tests.chaos.feeds.nemesis import Nemesis
from tests.chaos.feeds.processes import Slot
from tests.chaos.feeds.reading import read_clients, read_sent, read_worker
from tests.chaos.feeds.servers import SERVERS

#: How many keys each process publishes to, by its kind. Every worker polls all of them.
KEYS = {"loop": 40, "position": 40, "history": 40, "threads": 40, "publisher": 140}


#: The columns of the table of results. The faults of a run are named as in ``nemesis``, and complaints as in
#: ``checker``.
COLUMNS = {
    "events": ("accepted",),
    "polls": ("SATISFIED", "IMMEDIATE", "EXPIRED"),
    "worker kills": ("murder",),
    "server kills": ("kill",),
    "cuts": ("cut", "refuse", "freeze", "slow", "deaf"),
    "stops": ("stop", "gap"),
    "trims": ("gap", "trim", "empty"),
    "lost by the server": ("lose",),
    "clients' runs": ("runs",),
    "reloads": ("gaps",),
    "lost": ("lost:",),
    "doubled": ("doubled:",),
    "out of order": ("order:",),
    "missed polls": ("missed:", "late:"),
}


@dataclass
class Report:
    """What was found."""

    engine: str
    complaints: list
    counts: Counter
    deeds: Counter
    worst_s: float = 0.0  # the longest that an answered poll waited although its worker had the event

    def row(self):
        """A row of a table in Markdown."""
        kinds = Counter(word for text in self.complaints for word in text.split()[:2] if word.endswith(":"))
        found = self.counts + self.deeds + kinds
        cells = [f"{sum(found[name] for name in names):,}" for names in COLUMNS.values()]
        return f"| {' | '.join([self.engine, *cells])} |"

    def __str__(self):
        counts = self.counts
        return (
            f"{counts['rejected']:,} publishes rejected, {counts['uncertain']:,} uncertain, {counts['applied']:,} "
            f"events applied, {counts['EXPIRED']:,} polls timed out, worst answer after {self.worst_s:.3f} s"
        )


@dataclass
class Run:
    """The settings of a run, and what it has started."""

    engine: str
    folder: object
    seconds: float
    seed: int
    rate: float
    say: object
    slots: list = field(default_factory=list)
    complaints: list = field(default_factory=list)
    history: dict = field(default_factory=dict)  # what the server has at the end: by place the event

    def __post_init__(self):
        kinds = list(KEYS)
        own = [[f"k{number}-{key}" for key in range(KEYS[kind])] for number, kind in enumerate(kinds)]
        self.keys = [key for keys in own for key in keys]
        (self.folder / "server").mkdir(parents=True)
        self.server = SERVERS[self.engine](self.folder / "server")
        self.slots = [Slot(self, kind, number, own[number]) for number, kind in enumerate(kinds)]
        self._failed = set()

    def play(self):
        """The run. Returns the report."""
        nemesis = Nemesis(self, self.seed, self.say)
        try:
            self.server.start()
            for slot in self.slots:
                slot.start()
            for slot in self.slots:
                assert slot.wait_until_ready(), slot.trouble()
            give_up_s = time.monotonic() + self.seconds
            while time.monotonic() < give_up_s and not self._look():
                nemesis.step()
            nemesis.heal()
            if not self._look():
                self._finish()
                self.history = self.server.history()
        finally:
            for slot in self.slots:
                slot.close()
            self.server.remove()
        return self._check(nemesis)

    def _look(self):
        """Note workers that have ended by themselves, after which the run is over."""
        failed = [slot for slot in self.slots if slot.incarnation >= 0 and slot.has_failed()]
        self.complaints += [f"{slot.name} has ended by itself: {slot.trouble()}" for slot in failed]
        return bool(failed)

    def _finish(self):
        """Have everything applied by every worker, and end."""
        for slot in self.slots:
            slot.wait_until_ready()
        self._expect("quiet", "quiet", self.slots)
        last = [self.slots[-1].ask(f"last {key}") for key in self.keys]
        self.say(f"quiet, and {len(last)} last events are published")
        followers = [slot for slot in self.slots if slot.follows]
        for position in last:
            self._expect(f"applied {position}", "applied", followers)
        for slot in self.slots:
            answer = slot.leave()
            if answer != "ended":
                self.complaints.append(f"{slot.name} did not end well: {answer}")

    def _expect(self, command, expected, slots):
        for slot in slots:
            answer = slot.ask(command)
            if answer != expected:
                self.complaints.append(f"{slot.name} answered {command!r} with {answer!r}")

    def _check(self, nemesis):
        sent, partitions = read_sent(self.folder, self.engine)
        workers = []
        for slot in self.slots:
            for incarnation in range(slot.incarnation + 1 if slot.follows else 0):
                path = self.folder / f"worker-{slot.number}-{incarnation}.log"
                is_last = incarnation == slot.incarnation and not self.complaints
                workers.append(read_worker(path, self.engine, partitions, is_last=is_last))
        complaints, counts = check(sent, workers, nemesis.trims, nemesis.lost)
        followers = [worker for worker in workers if worker.is_last]
        complaints += [text for worker in followers for text in check_history(worker, self.history)]
        applied = {each.place for worker in workers for segment in worker.segments for each in segment.applied}
        for client in read_clients(self.folder, self.engine):
            complaints += check_client(client, sent, applied, nemesis.lost, self.keys)
            counts["runs"] += len(client.runs)
        late = [
            lateness_s(poll, worker.excused)
            for worker in workers
            for poll in worker.polls
            if poll.changed is not None and poll.outcome != "EXPIRED"
        ]
        return Report(self.engine, self.complaints + complaints, counts, nemesis.deeds, max(late, default=0.0))
