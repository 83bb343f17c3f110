"""Topics of a node alone that are not in its tree yet: from ``topics.json`` or, without a tree, from its folders.

Earlier versions kept the topics of a node alone in that file. A node alone whose tree is missing finds its topics by
the folders of their logs, with the settings of the node. Each topic is brought over once, before the node registers. A
crash in between repeats it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import structlog

from examples.broker.controller.tree.layout import make_roots
from examples.broker.protocol.errors import BrokerError
from examples.broker.service.cluster.tree_client import TreeJobs
from examples.broker.storage.replica_folders import find_topics

if TYPE_CHECKING:
    from pathlib import Path

    from examples.broker.coordination.store import Store
    from examples.broker.storage.topics import TopicStore

_log = structlog.get_logger(__name__)


def bring_over(topics: TopicStore, tree: Store, tree_file: Path, node_id: int) -> None:
    """Create the topics in the tree that it lacks. ``tree`` is not started yet, and closed again.

    Raises:
        OSError: if the tree or the data folder is not usable.
    """
    if not topics.former and not tree_file.exists() and (found := find_topics(topics.folder)):
        topics.keep_former(found)
    if not topics.former:
        return
    _log.warning("topics brought into the tree", folder=str(topics.folder), topics=sorted(topics.former))
    tree.start()
    try:
        make_roots(tree)
        jobs = TreeJobs(tree, node_id)
        for topic in topics.former.values():
            assignment = dict.fromkeys(range(topic.partitions), (node_id,))
            with contextlib.suppress(BrokerError):  # it exists, because an earlier start was interrupted
                jobs.create_topic(topic.name, assignment, topic.settings, topic.topic_id)
    finally:
        tree.close()
    topics.keep_former({})
