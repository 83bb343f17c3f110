"""Observation of a node, as far as the settings ask for it: ``/metrics``, the console page, the journal of operations.

One process is one node, so they show the whole process. They end after the node's shutdown has answered all operations,
so that the journal has those answers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import purgatory
import purgatory.metrics

if TYPE_CHECKING:
    from typing import Any

    from examples.broker.service.config import Config
    from purgatory import DelayedOperationPurgatory


class Observers:
    """The observers of this node, until it is closed.

    Raises:
        OSError: a port or the journal's folder is not usable.
    """

    def __init__(self, config: Config) -> None:
        #: The address of each server, by name.
        self.urls: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            if config.journal is not None:
                _keep_journal(config, stack)
            if config.metrics_port is not None:
                metrics = stack.enter_context(purgatory.metrics.serve(config.metrics_port, config.cluster.host))
                self.urls["metrics"] = metrics.url
            if config.console_port is not None:
                from purgatory.console import serve  # noqa: PLC0415 - its extra is needed only now

                # Always on loopback: the page shows keys to anyone who opens it.
                self.urls["console"] = stack.enter_context(serve(config.console_port)).url
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stop serving, and close the journal. A second call is harmless."""
        self._stack.close()


def _keep_journal(config: Config, stack: contextlib.ExitStack) -> None:
    from purgatory.journal import Journal, JournalError  # noqa: PLC0415 - as above

    assert config.journal is not None
    try:
        journal = stack.enter_context(Journal(config.journal, instance=f"node-{config.cluster.node_id}"))
    except JournalError as error:
        raise OSError(str(error)) from error

    def greet(newcomer: DelayedOperationPurgatory[Any]) -> None:
        newcomer.attach(journal.observer(newcomer.name))

    stack.callback(purgatory.on_start(greet))
