import contextlib
import time

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.journal import Journal
from purgatory.journal._cli import main
from purgatory.journal.records.folder import open_name


class DelayedFetch:
    """The part of an operation that a journal reads."""

    def __init__(self, number=0, *, keys=None, delay_ms=500, checks=2):
        self.keys = (("orders", number % 4), f"consumer-{number % 3}") if keys is None else keys
        self.created_ns = time.monotonic_ns()
        self.delay_ms = delay_ms
        self.checks = checks


@pytest.fixture
def operation():
    return DelayedFetch


@pytest.fixture
def finish():
    """Let so many satisfied operations leave with this observer, or with one of this journal."""

    def finish(to, count=1, **settings):
        observer = to.observer("fetch") if isinstance(to, Journal) else to
        for number in range(count):
            observer.finished(DelayedFetch(number, **{"checks": number, **settings}), Outcome.SATISFIED, None)

    return finish


@pytest.fixture
def put(finish):
    """Let so many satisfied operations leave, and wait until this journal has written them."""

    def put(journal, count=1, **settings):
        finish(journal, count, **settings)
        assert journal.flush(30)

    return put


@pytest.fixture
def write(put):
    """Write that many records to a folder and close the journal."""

    def write(folder, count, **options):
        with Journal(folder, **{"when_full": "wait", "patience_ms": 5_000, **options}) as journal:
            put(journal, count)
        return journal.stats()

    return write


@pytest.fixture
def recorded(tmp_path):
    """A journal in ``tmp_path`` and a purgatory whose operations it records, both open for a block."""

    @contextlib.contextmanager
    def recorded(**options):
        with (
            Journal(tmp_path, **options) as journal,
            DelayedOperationPurgatory("fetch", observers=[journal.observer("fetch")]) as fetch,
        ):
            yield journal, fetch

    return recorded


@pytest.fixture
def counts():
    """How many records a journal or a trace has written, dropped, and not yet written."""

    def counts(journal):
        stats = journal.stats()
        return stats.written, stats.dropped, stats.buffered

    return counts


@pytest.fixture
def reopen():
    """Turn the one segment of frames back into an open one, as a killed writer leaves it. Returns its path."""

    def reopen(folder):
        (sealed,) = folder.glob("_journal-*")
        return sealed.rename(folder / open_name(0))

    return reopen


@pytest.fixture
def said(capsys):
    """What a command of the journal prints, once it has ended with this status."""

    def said(status, *arguments):
        assert status == main([str(each) for each in arguments])
        printed = capsys.readouterr()
        return printed.out + printed.err

    return said
