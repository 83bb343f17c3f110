"""A node's own reads and writes of the tree, outside the broker's loop.

A call to the coordination store may block for as long as its disk or server takes, and the loop must not block. So one
thread runs these jobs in order, and their results are returned on the loop.

    loop      in-sync replicas 1 2 of orders-0                 new topic              ... answer
    thread           set if version, note for the controller          create if absent

``TreeJobs`` has the jobs, plain functions of the store. ``TreeClient`` has the thread that does them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog

from examples.broker.controller.tree import candidacy, layout
from examples.broker.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Set,
    Store,
    StoreError,
    Unreachable,
)
from examples.broker.protocol.errors import BrokerError, ErrorCode
from examples.broker.storage.topic_settings import check_settings
from examples.broker.storage.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from examples.broker.replication.leadership import Leadership
    from examples.broker.replication.partition import Key
    from examples.broker.service.event_loop import OnLoop

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class TreeJobs:
    """Reads and writes of the tree. All may raise StoreError."""

    def __init__(self, store: Store, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._numbers = itertools.count(1)
        self._process = uuid.uuid4().hex

    def read_topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Read these topics, as far as they exist. A stale answer would be an earlier topic of that name."""
        found = {}
        self._store.sync()
        for name in names:
            try:
                data = self._store.get(layout.topic_path(name)).data
                assignment = layout.assignment_of(data)
                replicas = assignment[min(assignment)] if assignment else ()
                topic_id = layout.topic_id_of(data)
                found[name] = Topic(name, len(assignment), replicas, self._read_settings(name), topic_id)
            except NoNode:
                continue
            except ValueError as error:
                _log.error("invalid topic in the tree", topic=name, reason=str(error))
        return found

    def _read_settings(self, name: str) -> dict[str, str]:
        """Read a topic's settings. Invalid ones, which another tool has written, have no effect."""
        settings: dict[str, str] = {}
        for setting, value in layout.read_config(self._store, name).items():
            try:
                settings |= check_settings({setting: value})
            except BrokerError as error:
                _log.error("invalid setting in the tree", topic=name, reason=str(error))
        return settings

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Read the ids of these topics, as far as they exist and are not being deleted."""
        found = {}
        self._store.sync()
        leaving = self.leaving()
        for name in names:
            with contextlib.suppress(NoNode):
                found[name] = layout.topic_id_of(self._store.get(layout.topic_path(name)).data)
        return {name: topic_id for name, topic_id in found.items() if name not in leaving}

    def controller_epoch(self) -> int:
        """Return the epoch of the newest controller."""
        return candidacy.epoch_in(self._store.get(layout.EPOCH))

    def topic_names(self) -> set[str]:
        """Return the names of all topics, those that are being deleted included."""
        return set(self._store.children(layout.TOPICS))

    def leaving(self) -> set[str]:
        """Return the names of the topics that are being deleted."""
        return set(self._store.children(layout.DELETIONS))

    def create_topic(
        self, name: str, assignment: Mapping[int, tuple[int, ...]], settings: Mapping[str, str], topic_id: str = ""
    ) -> None:
        """Create a topic, for the controller to complete. Raises TOPIC_ALREADY_EXISTS."""
        node = layout.write_config(settings)
        config = Create(layout.config_path(name), node)
        topic = Create(layout.topic_path(name), layout.write_assignment(assignment, topic_id or uuid.uuid4().hex))
        try:
            try:
                self._store.multi([config, topic], durable=True)
            except NodeExists as error:
                if error.path != config.path:
                    raise
                # settings that were left without a topic
                self._store.multi([Set(config.path, node), topic], durable=True)
        except NodeExists as error:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {name!r} exists already") from error

    def grow_topic(self, name: str, new: Mapping[int, tuple[int, ...]]) -> None:
        """Add partitions to a topic. Raises BrokerError if the topic does not exist, or was changed meanwhile."""
        try:
            node = self._store.get(layout.topic_path(name))
            assignment = layout.assignment_of(node.data)
            if set(new) & set(assignment):
                raise BrokerError(ErrorCode.INVALID_PARTITIONS, "the topic has grown meanwhile")
            data = layout.write_assignment({**assignment, **new}, layout.topic_id_of(node.data))
            self._store.multi([Set(layout.topic_path(name), data, node.version)], durable=True)
        except NoNode as error:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from error
        except BadVersion as error:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, "the topic was changed meanwhile") from error

    def delete_topic(self, name: str) -> None:
        """Request the deletion of a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        if name not in self.topic_names():
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with contextlib.suppress(NodeExists):
            self._store.multi([Create(f"{layout.DELETIONS}/{name}")], durable=True)

    def change_settings(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Mapping[str, str]:
        """Change a topic's settings, notify every node, and return the settings in the tree.

        ``change`` gets the settings in the tree, again if another node has changed them first.

        Raises:
            BrokerError: from ``change``, or if the topic does not exist.
        """
        path = layout.config_path(name)
        while True:
            write: Set | Create
            try:
                node = self._store.get(path)
            except NoNode:
                settings = change({})
                write = Create(path, layout.write_config(settings))
            else:
                settings = change(layout.config_of(node.data))
                write = Set(path, layout.write_config(settings), node.version)
            try:
                self._store.multi([Check(layout.topic_path(name)), write, Set(layout.CONFIG_CHANGES)], durable=True)
            except NoNode as error:
                if error.path != path:
                    raise BrokerError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name!r} does not exist"
                    ) from error
            except (BadVersion, NodeExists) as error:
                _log.debug("settings were changed meanwhile", topic=name, reason=str(error))
            else:
                return settings

    def report_offline(self, *, is_offline: bool) -> None:
        """Write whether this node can lead. An old report may be of an earlier session, so it is replaced."""
        path = f"{layout.OFFLINE}/{self._node_id}"
        new = [Create(path, ephemeral=True)] if is_offline else []
        try:
            self._store.multi([Delete(path), *new])
        except NoNode:
            if new:
                self._store.multi(new)

    def change_isr(self, key: Key, now: Leadership, isr: Iterable[int]) -> Leadership:
        """Change the in-sync replicas of a partition that this node leads. Returns the state in the tree.

        If another node was first, that is its state.
        """
        wanted = now.with_isr(tuple(sorted(isr)))
        note = f"{layout.ISR_CHANGES}/{self._node_id}-{self._process}-{next(self._numbers)}"
        try:
            self._store.multi(
                [
                    Set(layout.state_path(key), layout.write_state(wanted), now.version),
                    Create(note, layout.write_keys([key])),
                ]
            )
        except BadVersion:
            node = self._store.get(layout.state_path(key))
            return layout.state_of(node.data, node.version)
        return wanted.written()


def _ignore(_: object) -> None:
    pass


class TreeClient:
    """Does jobs on a thread, and returns their results on the loop. Logs when an outage begins and when it ends."""

    def __init__(self, jobs: TreeJobs, on_loop: OnLoop) -> None:
        self.jobs = jobs
        self._on_loop = on_loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tree-client")
        self.is_reachable = True
        """False from a job that did not reach the store to the next one that succeeds. Set by the thread."""

    def run(
        self,
        job: Callable[[TreeJobs], T],
        then: Callable[[T], None] = _ignore,
        failed: Callable[[BrokerError], None] = _ignore,
    ) -> None:
        """Do a job, and call one of the two functions. Every error is a BrokerError."""

        def work() -> None:
            try:
                result = self._do(job)
            except BrokerError as error:
                self._on_loop.submit(failed, error)
            except Exception as error:  # noqa: BLE001 - the caller waits for one of the two calls
                if not isinstance(error, (StoreError, ValueError)):
                    _log.exception("call to the tree failed")
                self._on_loop.submit(failed, BrokerError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
            else:
                self._on_loop.submit(then, result)

        with contextlib.suppress(RuntimeError):  # shut down
            self._thread.submit(work)

    async def ask(self, job: Callable[[TreeJobs], T]) -> T:
        """Do a job, and return its result. Raises REQUEST_TIMED_OUT if the tree cannot be used."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, job)
        except (StoreError, ValueError) as error:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    def _do(self, job: Callable[[TreeJobs], T]) -> T:
        try:
            result = job(self.jobs)
        except Unreachable as error:
            if self.is_reachable:
                _log.warning("tree unreachable", error=str(error))
            self.is_reachable = False
            raise
        if not self.is_reachable:
            _log.info("tree reachable again")
        self.is_reachable = True
        return result

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
