"""Logs that are closed in the end."""

import pytest

from examples.broker.storage.log import Log


@pytest.fixture
def open_log(tmp_path):
    """Open a log. One that is still open on the same folder is closed before."""
    opened = {}

    def open_log(folder=tmp_path / "t-0", **settings):
        if folder in opened:
            opened.pop(folder).close()
        opened[folder] = Log(folder, **settings)
        return opened[folder]

    yield open_log
    for log in opened.values():
        log.close()
