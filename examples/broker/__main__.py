"""``python -m examples.broker``: one node, or a cluster of nodes on one machine.

With ``--replicas 3`` this process starts three nodes as processes, on consecutive ports (or free ones, for ``--port
0``). It restarts a node that dies, and stops them at the end. A node that it started (``--end-with-input``) ends when
its standard input does: a pipe from the process that started it, which may die. Without that option, standard input is
ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TextIO, cast

import structlog

from examples.broker.broker import Broker
from examples.broker.groups.settings import GroupSettings
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.service.config import Config
from examples.broker.service.event_loop import run
from examples.broker.storage.disk import Fsync
from examples.broker.storage.folder_lock import FolderLock
from examples.broker.storage.open_files import raise_limit
from examples.broker.supervisor import Supervisor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.broker", description="A small replicated log broker.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--advertised-host", default="", help="name under which others reach this node (--host)")
    parser.add_argument("--port", type=int, default=9092, help="port of the first node, 0 for free ports (9092)")
    parser.add_argument("--data", type=Path, default=Path("var/broker"), help="data folder (var/broker)")
    parser.add_argument("--replicas", type=int, help="number of nodes (1, or the number of --ports)")
    parser.add_argument("--partitions", type=int, default=1, help="partitions of an auto-created topic (1)")
    parser.add_argument("--min-isr", type=int, default=1, help="in-sync replicas that acks=all needs (1)")
    parser.add_argument(
        "--lag-ms", type=int, default=10_000, help="time after which a lagging replica leaves the ISR (10000)"
    )
    parser.add_argument("--coordination", default="", help="zk://host:port/chroot (a file that the nodes share)")
    parser.add_argument("--session-ms", type=int, default=2_000, help="time after which a silent node is dead (2000)")
    parser.add_argument(
        "--leader-rebalance-ms", type=int, default=5_000, help="interval of preferred elections, 0 for never (5000)"
    )
    parser.add_argument(
        "--rebalance-delay-ms", type=int, default=500, help="time that a new group waits for members (500)"
    )
    parser.add_argument(
        "--fsync",
        choices=[policy.value for policy in Fsync],
        default="interval",
        help="when to force records to disk (interval)",
    )
    parser.add_argument(
        "--frame-timeout-ms", type=int, default=30_000, help="time in which a request must arrive (30000)"
    )
    parser.add_argument(
        "--max-request-bytes", type=int, default=32 * 1024 * 1024, help="maximum size of a request (33554432)"
    )
    parser.add_argument("--metrics-port", type=int, help="port of /metrics on the first node, others follow (off)")
    parser.add_argument("--console-port", type=int, help="port of the console on the first node (off)")
    parser.add_argument("--journal", type=Path, help="folder for the journal of operations (off)")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="least level (info)"
    )
    parser.add_argument("--node-id", type=int, help="run only this node (all nodes)")
    parser.add_argument("--first-id", type=int, default=1, help="id of the first node, others follow (1)")
    parser.add_argument("--ports", help="ports of all nodes, separated by commas (--port and following)")
    parser.add_argument("--end-with-input", action="store_true", help=argparse.SUPPRESS)
    return parser


def _config(options: argparse.Namespace, node_id: int, ports: tuple[int, ...]) -> Config:
    def nodes_own(port: int | None) -> int | None:
        return port + node_id - options.first_id if port else port

    def folder(path: Path) -> Path:
        return path if len(ports) == 1 else path / f"node-{node_id}"

    return Config(
        data=folder(options.data),
        cluster=Cluster(node_id, ports, options.host, options.advertised_host, options.first_id),
        replication=ReplicationSettings(min_isr=options.min_isr, lag_ms=options.lag_ms, fsync=Fsync(options.fsync)),
        groups=GroupSettings(initial_rebalance_delay_ms=options.rebalance_delay_ms),
        coordination=options.coordination,
        session_ms=options.session_ms,
        rebalance_ms=options.leader_rebalance_ms,
        partitions=options.partitions,
        frame_timeout_ms=options.frame_timeout_ms,
        max_request_bytes=options.max_request_bytes,
        metrics_port=nodes_own(options.metrics_port),
        console_port=nodes_own(options.console_port),
        journal=None if options.journal is None else folder(options.journal),
    )


def _ports(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the port of every node. Raises ValueError if the options contradict each other."""
    replicas = options.replicas
    if replicas is not None and replicas < 1:
        raise ValueError(f"--replicas must be 1 or more, got {replicas}")
    if options.ports:
        ports = tuple(int(port) for port in options.ports.split(","))
        if replicas not in (None, len(ports)):
            raise ValueError(f"--ports must name {replicas} ports, as many as --replicas, got {len(ports)}")
        return ports
    if options.port == 0:
        return _free_ports(options.host, replicas or 1)
    return tuple(range(options.port, options.port + (replicas or 1)))


def _free_ports(host: str, count: int) -> tuple[int, ...]:
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    try:
        return tuple(sock.getsockname()[1] for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()


async def _run_node(config: Config, *, watch_stdin: bool) -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(config)
    stop = broker.stopping.set
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if watch_stdin:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stop())
    raise_limit()
    await broker.start()
    beside = "".join(f", {what} on {url}" for what, url in broker.observers.urls.items())
    here = config.cluster
    print(f"node {here.node_id} listens on {here.host}:{here.port}{beside}", flush=True)
    await broker.stopping.wait()
    if watch_stdin:
        loop.remove_reader(0)
    await broker.stop()
    if broker.failure is not None:
        raise broker.failure


def _run_cluster(options: argparse.Namespace, ports: tuple[int, ...], command: list[str]) -> int:
    lock = FolderLock(options.data)  # a second cluster's nodes would fail to start forever
    command = [*command, "--end-with-input", "--ports", ",".join(map(str, ports))]
    nodes = range(options.first_id, options.first_id + len(ports))
    try:
        return Supervisor({node: [*command, "--node-id", str(node)] for node in nodes}).run(
            lambda pids: print(
                "cluster:",
                " ".join(f"{options.host}:{port}(pid {pid})" for port, pid in zip(ports, pids, strict=True)),
                flush=True,
            )
        )
    finally:
        lock.release()


class _Log:
    """Standard error, without errors of its own. A log on a full disk must not fail the requests that are logged."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _configure_log(level: str) -> None:
    """Log to standard error, with plain tracebacks. The default ones are boxes of a hundred lines."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[*structlog.get_config()["processors"][:-1], renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Log())),
        cache_logger_on_first_use=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options = parser.parse_args(arguments)
    _configure_log(options.log_level)
    try:
        ports = _ports(options)
        is_started_here = options.node_id is None and len(ports) > 1
        node_id = options.first_id if options.node_id is None else options.node_id
        nodes = [options.first_id + number for number in range(len(ports))] if is_started_here else [node_id]
        configs = [_config(options, node, ports) for node in nodes]
    except ValueError as error:
        parser.error(str(error))
    try:
        if is_started_here:
            return _run_cluster(options, ports, [sys.executable, "-m", "examples.broker", *arguments])
        run(_run_node(configs[0], watch_stdin=options.end_with_input))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
