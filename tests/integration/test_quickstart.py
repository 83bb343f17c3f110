"""The quickstart keeps its word under a short load, and says so."""

import math
import sys

import pytest

from examples.quickstart.__main__ import main, run
from examples.quickstart.load import Settings
from examples.quickstart.report import percentile
from examples.quickstart.service import Service
from purgatory import Outcome
from tests.support import eventually

SHORT = Settings(seconds=1.5, rate=400, consumers=40, partitions=4, append_timeout_ms=150, poll_timeout_ms=700, seed=3)


@pytest.fixture(scope="module")
def report():
    return run(SHORT)


def test_every_client_gets_one_answer(report):
    """Every request is answered once, and "committed" means on all replicas."""
    assert report.asked > 300
    assert (0, 0, 0) == (report.unanswered, report.answered_twice, report.broken_promises)
    assert report.holds


@pytest.mark.parametrize("number", [0, 1], ids=["produce", "fetch"])
def test_counts_add_up(report, number):
    """Each request was completed at once or parked, and each parked one was satisfied or expired."""
    line = report.lines[number]

    assert line.asked == line.immediate + line.parked
    assert line.parked == line.satisfied + line.expired
    assert line.satisfied > 0


def test_nobody_expires_early(report):
    """The quickest expired poll waited as long as it had asked to, unless the shutdown answered it."""
    polls = report.lines[1]

    assert polls.expired > report.answered_by_shutdown
    assert polls.expired_ms[-1] >= SHORT.poll_timeout_ms


def test_snapshot_shows_who_waits(report):
    """As the load ends the consumers' polls are parked, and the wheel holds all of them."""
    produce, fetch = report.snapshots

    assert 0 < fetch.parked <= SHORT.consumers
    assert fetch.parked + produce.parked >= sum(fetch.wheel_occupancy) > 0


def test_append_waits_for_all_followers():
    """An append is answered when the last follower has copied it, not before."""
    with Service(partitions=1, followers=2) as service:
        (partition,) = service.partitions
        append = service.append(partition, b"record", 60_000)

        service.replicate(partition, 0)
        assert append.outcome is None

        service.replicate(partition, 1)
        assert (Outcome.SATISFIED, True) == (append.outcome, append.committed)


def test_append_without_followers_in_time_expires():
    """An append that no follower copies is answered as not committed when its time is up."""
    with Service(partitions=1, followers=1) as service:
        append = service.append(service.partitions[0], b"record", 20)
        assert eventually(lambda: append.answered)
        assert (Outcome.EXPIRED, False) == (append.outcome, append.committed)
        assert append.latency_ms >= 20


def test_closing_answers_who_waits():
    """Closing the service answers a poll with the available records."""
    answers = []
    service = Service(partitions=1, followers=1)
    service.poll(service.partitions[0], 0, 1, 60_000, answers.append)

    assert 1 == service.close()
    assert [[]] == [poll.records for poll in answers]


BRIEF = ["--seconds", "0.3", "--rate", "200", "--consumers", "5"]


@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_command_prints_tables(rich, capsys, monkeypatch):
    """The command shows outcomes, latencies, the snapshot and the verdict, with rich and without."""
    if not rich:
        for module in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "rich", None)

    assert 0 == main(BRIEF)

    shown = capsys.readouterr().out
    for word in (
        "produce",
        "fetch",
        "satisfied",
        "expired",
        "p99",
        "watch entries",
        "none lost, none doubled",
    ):
        assert word in shown


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--rate", "fast"], ["--partitions", "-1"]])
def test_bad_settings_are_refused(arguments, capsys):
    """A setting that can't work is rejected by name."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert 2 == stopped.value.code
    assert arguments[0].strip("-") in capsys.readouterr().err


def test_percentile_is_a_value_that_occurred():
    """A percentile is the smallest value that the share doesn't exceed. Of nothing it is NaN."""
    values = [1.0, 2.0, 3.0, 4.0]

    assert [1.0, 2.0, 3.0, 4.0] == [percentile(values, share) for share in (25, 50, 75, 100)]
    assert 1.0 == percentile([1.0], 99)
    assert math.isnan(percentile([], 50))


def test_it_says_where_to_look_in(capsys):
    """The run ends by printing the addresses it served."""
    assert 0 == main(["--seconds", "0.3", "--rate", "100", "--consumers", "5"])
    ending = capsys.readouterr().out.split("served until now:")[1]

    assert "http://127.0.0.1:" in ending
    assert "/metrics" in ending


def test_kept_it_goes_on_until_interrupted(capsys, monkeypatch):
    """With ``--keep`` it goes on under load after the report, until it is interrupted."""
    runs = []

    def counted(chosen):
        runs.append(chosen)
        if len(runs) > 2:
            raise KeyboardInterrupt
        return run(chosen)

    monkeypatch.setattr("examples.quickstart.__main__.run", counted)

    assert 130 == main(["--keep", "--seconds", "0.3", "--rate", "100", "--consumers", "5"])
    assert 3 == len(runs)
    assert "still served" in capsys.readouterr().out
