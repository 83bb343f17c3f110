"""What a node's process writes into its log."""

import structlog

from examples.broker.__main__ import _configure_log


def test_tracebacks_are_plain(capsys):
    """A traceback has Python's own form, and ends with the line of the error."""
    before = structlog.get_config()
    try:
        _configure_log("info")
        log = structlog.get_logger()
        try:
            int("x")
        except ValueError:
            log.exception("failed")
        log.debug("not written")
    finally:
        structlog.configure(**before)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("failed")
    assert "Traceback (most recent call last):" == lines[1]
    assert lines[-1].startswith("ValueError: ")
    assert len(lines) < 8
