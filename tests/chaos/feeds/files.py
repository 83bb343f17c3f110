"""The files of a run, which outlive the processes that write them. A line is one ``write``, so a kill loses none.

    truth             key number uid                                     an event that is about to be published
    published-*.log   uid key outcome position                           how that ended
    worker-*.log      reload BYTES POSITION                              the state was read: so many bytes of the truth
                      start POSITION                                     where the events after a reload begin
                      apply POSITION KEY NUMBER UID                      an event was applied
                      poll KEY PARKED ENDED OUTCOME CHANGED              a poll, and when its key changed meanwhile
                      pause FROM TO, away FROM TO                        the process stood still, the feed was away
                      broken TEXT                                        the worker saw a promise broken

The truth stands for the database of a service. Each event is in it before it is published, so a worker that reads it
after a gap has the whole state. Times are those of ``time.monotonic``, which all processes of a machine share. ``-``
stands for None.
"""

import os


class Lines:
    """A file to which lines are appended. Several processes may append to one."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, *parts):
        os.write(self._file, (" ".join("-" if part is None else str(part) for part in parts) + "\n").encode())


class Truth:
    """What a worker reads of the truth. It reads on where it stopped, because lines are only ever added."""

    def __init__(self, path):
        self._path = path
        self.size = 0  # bytes that were read

    def read(self):
        """The new lines, each as key and number."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self.size)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.size += len(whole)
        parts = [line.split() for line in whole.decode().splitlines()]
        return [(key, int(number)) for key, number, _ in parts]


def lines_of(path):
    """The whole lines of a file, in parts. A process that was killed may have left half a line."""
    data = path.read_bytes().decode() if path.exists() else ""
    return [line.split(" ") for line in data[: data.rfind("\n") + 1].splitlines()]


def last_accepted(folder):
    """Of each publisher the text of a position that was accepted a moment ago."""
    found = []
    for path in folder.glob("published-*.log"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            tail = file.read().decode().splitlines(keepends=True)[1:]
        found += [line.split()[3] for line in tail if line.endswith("\n") and " accepted " in line][-1:]
    return found
