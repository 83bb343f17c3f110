"""What only the embedded store has to answer for: killed and stopped processes, leases on its own clock, idle cost."""

import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Create, NodeExists, NoNode, SessionChange, SessionLost, Set, Unreachable
from tests.support import eventually

ROOT = Path(__file__).parents[5]


class Clock:
    def __init__(self):
        self.now = 1_000_000_000

    def __call__(self):
        return self.now

    def advance(self, ms):
        self.now += ms * 1_000_000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tree.sqlite"


@pytest.fixture
def by_hand(path, clock):
    """Open stores without a thread, on the clock that is moved by hand."""
    opened = []

    def begin(session_ms=2_000, on_session=lambda _: None):
        store = EmbeddedStore(path, session_ms=session_ms, clock=clock, thread=False)
        store.on_session = on_session
        store.start()
        opened.append(store)
        return store

    yield begin
    for store in opened:
        store.close()


def test_lease_runs_out_for_whoever_looks(by_hand, clock):
    """A session that isn't renewed ends when another process looks after its time, and not before."""
    silent, other = by_hand(), by_hand()
    silent.multi([Create("/a", ephemeral=True)])

    clock.advance(2_000)
    other.poll()
    assert b"" == other.get("/a").data

    clock.advance(1)
    other.poll()
    with pytest.raises(NoNode):
        other.get("/a")


def test_lease_ends_before_its_session(by_hand, clock):
    """Each renewal moves its end. The lease of a session that others have ended is over. The next has its own."""
    stopped, other = by_hand(), by_hand()
    lease = stopped.lease
    assert 3.0 == lease.ends_at
    clock.advance(500)
    stopped.poll()
    assert 3.5 == lease.ends_at

    clock.advance(2_500)
    other.poll()
    stopped.poll()
    assert (0.0, 6.0) == (lease.ends_at, stopped.lease.ends_at)


def test_lease_is_renewed_by_polling(by_hand, clock):
    """A process that looks often enough keeps its session."""
    busy, other = by_hand(), by_hand()
    busy.multi([Create("/a", ephemeral=True)])

    for _ in range(20):
        clock.advance(500)
        busy.poll()
        other.poll()

    assert b"" == other.get("/a").data


def test_given_up_process_writes_nothing(by_hand, clock):
    """A process that was given up can't write when it wakes, before it looked. Then it has a new session."""
    told = []
    stopped, other = by_hand(on_session=told.append), by_hand()
    clock.advance(2_001)
    other.poll()

    with pytest.raises(SessionLost):
        stopped.multi([Create("/late")])
    stopped.poll()

    assert [SessionChange.ESTABLISHED, SessionChange.LOST, SessionChange.ESTABLISHED] == told
    stopped.multi([Create("/late")])


def test_lonely_process_keeps_session(by_hand, clock):
    """A lease that is over but was not ended is renewed: no other process saw it as dead."""
    told = []
    store = by_hand(on_session=told.append)
    store.multi([Create("/a", ephemeral=True)])
    clock.advance(60_000)

    store.poll()

    assert [SessionChange.ESTABLISHED] == told
    assert b"" == store.get("/a").data


def test_leases_end_with_the_boot(by_hand, clock):
    """A lease of an earlier boot is over, whatever its clock said."""
    store = by_hand()
    store.multi([Create("/a", ephemeral=True)])
    store._boot = "another"
    store._next_expiry = 0

    store.poll()

    with pytest.raises(NoNode):
        store.get("/a")


def test_who_slept_through_the_changes_is_told(by_hand):
    """A process that looks after more changes than are kept has all its watches called."""
    calls = []
    sleeper, writer = by_hand(session_ms=1_000_000), by_hand(session_ms=1_000_000)
    writer.multi([Create("/a"), Create("/b")])
    sleeper.poll()
    sleeper.watch("/a", lambda: calls.append("a"))
    writer.multi([Set("/a", b"1")])
    writer.multi([Set("/b", b"2")] * 7_000)

    sleeper.poll()

    assert ["a"] == calls
    (rows,) = writer._db.execute("SELECT count(*) FROM changes").fetchone()
    assert rows < 7_000


def test_no_such_file(tmp_path):
    """A file that is no database is rejected, with its name."""
    (tmp_path / "tree").write_text("no database, but long enough that nobody takes it for an empty one" * 100)

    with pytest.raises(Unreachable, match="tree"):
        EmbeddedStore(tmp_path / "tree").start()


QUIET = "import sys, structlog; structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"


def _process(path, code):
    return subprocess.Popen(
        [sys.executable, "-c", QUIET + textwrap.dedent(code), str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )


WRITER = """
import sys, time
from pathlib import Path
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Create, SessionLost, Set
store = EmbeddedStore(Path(sys.argv[1]), session_ms=300)
store.start()
number = int(store.get("/left").data)
operations = [Create("/here", ephemeral=True)]
while True:
    number += 1
    try:
        store.multi([*operations, Set("/left", b"%d" % number), Set("/right", b"%d" % number)])
    except SessionLost:  # the machine was busy for longer than a session. The next one begins soon
        operations = [Create("/here", ephemeral=True)]
        time.sleep(0.01)
        continue
    if operations:
        print("ready", flush=True)
    operations = []
"""


@pytest.mark.slow
def test_kill_at_any_instant(path):
    """A process that is killed while it writes leaves every write whole or undone, and its session runs out."""
    store = EmbeddedStore(path, session_ms=2_000, poll_ms=5)
    store.start()
    store.multi([Create("/left", b"0"), Create("/right", b"0")])
    reached = 0
    for round_ in range(12):
        victim = _process(path, WRITER)
        assert b"ready" in victim.stdout.readline()
        time.sleep(0.01 + 0.013 * round_)
        victim.send_signal(signal.SIGKILL)
        victim.communicate(timeout=60)

        left, right = store.get("/left"), store.get("/right")
        assert left == right
        assert reached < int(left.data)
        reached = int(left.data)
        assert "ok" == store._db.execute("PRAGMA integrity_check").fetchone()[0]
        assert eventually(lambda: not _exists(store, "/here"))
    store.close()


def _exists(store, path):
    try:
        store.get(path)
    except NoNode:
        return False
    return True


@pytest.mark.slow
def test_stopped_process_is_given_up(path):
    """A process that is stopped for longer than its session loses it, and is no longer in the way when it goes on."""
    code = """
    import sys
    from pathlib import Path
    from examples.broker.coordination.embedded import EmbeddedStore
    from examples.broker.coordination.store import Create
    store = EmbeddedStore(Path(sys.argv[1]), session_ms=2_000)
    store.on_session = lambda change: print(change.value, flush=True)
    store.start()
    store.multi([Create("/here", ephemeral=True)])
    sys.stdin.read()
    """
    store = EmbeddedStore(path, session_ms=2_000, poll_ms=5)
    store.start()
    process = _process(path, code)
    try:
        assert b"established\n" == process.stdout.readline()
        assert eventually(lambda: _exists(store, "/here"))
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            if eventually(lambda: not _exists(store, "/here")):
                break
            process.send_signal(signal.SIGCONT)  # it was in the very middle of a write, which keeps others from theirs
        assert not _exists(store, "/here")
        process.send_signal(signal.SIGCONT)
        assert b"lost\n" == process.stdout.readline()
        assert b"established\n" == process.stdout.readline()
    finally:
        process.kill()
        process.communicate(timeout=60)
        store.close()


def test_locked_file_is_unreachable(by_hand, path):
    """While another process is stopped inside a transaction, writes raise ``Unreachable``. Reads go on."""
    store = by_hand()
    store.multi([Create("/a")])
    store._db.execute("PRAGMA busy_timeout = 50")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    with pytest.raises(Unreachable):
        store.multi([Create("/b")])
    assert b"" == store.get("/a").data

    blocker.execute("ROLLBACK")
    blocker.close()
    store.multi([Create("/b")])
    with pytest.raises(NodeExists):
        store.multi([Create("/b")])


def test_looking_costs_little(path):
    """A look at a store where nothing happens reads one number: under 100 us of CPU, whatever is in the tree."""
    store = EmbeddedStore(path, session_ms=1_000_000, thread=False)
    store.start()
    store.multi([Create("/a"), *(Create(f"/a/{n}") for n in range(3_000))])
    store.poll()
    best = min(_cpu_of(lambda: [store.poll() for _ in range(200)]) for _ in range(5)) / 200

    assert best < 100e-6
    store.close()


def _cpu_of(work):
    began = time.thread_time()
    work()
    return time.thread_time() - began


def test_bad_settings(path):
    """A session or a pause that can't be is rejected."""
    for settings in ({"session_ms": 0}, {"poll_ms": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            EmbeddedStore(path, **settings)
    assert not path.exists()
