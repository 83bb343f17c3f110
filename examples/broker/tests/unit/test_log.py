"""What a node's process writes into its log."""

import pytest
import structlog

from examples.broker.__main__ import _configure_log


@pytest.fixture
def log():
    """A node's log."""
    before = structlog.get_config()
    _configure_log("info")
    yield structlog.get_logger()
    structlog.configure(**before)


class FullDisk:
    """A file that cannot be written."""

    def write(self, _text):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_fails_nothing(log, monkeypatch):
    """A node whose log is on a full disk serves its clients."""
    monkeypatch.setattr("sys.stderr", FullDisk())
    log.info("not written")


def test_tracebacks_are_plain(log, capsys):
    """A traceback has Python's own form, and ends with the line of the error."""
    try:
        int("x")
    except ValueError:
        log.exception("failed")
    log.debug("not written")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("failed")
    assert "Traceback (most recent call last):" == lines[1]
    assert lines[-1].startswith("ValueError: ")
    assert len(lines) < 8
