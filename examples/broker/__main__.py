"""`python -m examples.broker`: one node, or a cluster of them on one machine.

With `--replicas 3` this process starts three of itself, a node each, on ports that follow one another (or
free ones, for `--port 0`), starts again what dies, and stays to stop them. A node that is told to (`--end-with-input`)
ends by itself when its standard input does: that is a pipe from the process that started it, which may die anyhow. One
that is started by hand is not told, and whatever its input is means nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import structlog

from examples.broker.broker import Broker
from examples.broker.groups.settings import GroupSettings
from examples.broker.replication.cluster import Cluster
from examples.broker.replication.settings import ReplicationSettings
from examples.broker.service.config import Config
from examples.broker.service.event_loop import run
from examples.broker.storage.folder_lock import FolderLock
from examples.broker.storage.log import Fsync
from examples.broker.supervisor import Supervisor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.broker", description="A small replicated log broker.")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--advertised-host", default="", help="under what name others reach this node (--host)")
    parser.add_argument("--port", type=int, default=9092, help="of the first node; 0 takes free ones (9092)")
    parser.add_argument("--data", type=Path, default=Path("var/broker"), help="the data folder (var/broker)")
    parser.add_argument("--replicas", type=int, help="how many nodes (1, or as many as --ports)")
    parser.add_argument("--partitions", type=int, default=1, help="of a topic made by being asked for (1)")
    parser.add_argument("--min-isr", type=int, default=1, help="in-sync replicas that acks=all needs (1)")
    parser.add_argument("--lag-ms", type=int, default=10_000, help="a replica behind for longer leaves the ISR")
    parser.add_argument("--coordination", default="", help="zk://host:port/chroot; else the nodes share a file")
    parser.add_argument("--session-ms", type=int, default=2_000, help="a node silent for longer is dead to the others")
    parser.add_argument("--leader-rebalance-ms", type=int, default=5_000, help="preferred leaders again; 0: never")
    parser.add_argument("--rebalance-delay-ms", type=int, default=500, help="a new group waits for more members")
    parser.add_argument("--fsync", choices=[policy.value for policy in Fsync], default="interval")
    parser.add_argument("--frame-timeout-ms", type=int, default=30_000, help="a request must be whole by then")
    parser.add_argument("--max-request-bytes", type=int, default=32 * 1024 * 1024)
    parser.add_argument(
        "--metrics-port", type=int, help="serve /metrics of the first node here, of the next on the next"
    )
    parser.add_argument("--console-port", type=int, help="the same for the console, a page that shows what waits")
    parser.add_argument("--journal", type=Path, help="write a record of every operation to this folder")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--node-id", type=int, help="run this node only; the others run elsewhere")
    parser.add_argument("--first-id", type=int, default=1, help="id of the first node; the others follow (1)")
    parser.add_argument("--ports", help="the ports of all nodes, the first node's first, with commas between")
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
    """Give the port of every node.

    Raises:
        ValueError: if they contradict the number of nodes.
    """
    replicas = options.replicas
    if replicas is not None and replicas < 1:
        raise ValueError(f"--replicas must be 1 or more, got {replicas}")
    if options.ports:
        ports = tuple(int(port) for port in options.ports.split(","))
        if replicas not in (None, len(ports)):
            raise ValueError(
                f"--replicas {replicas} with {len(ports)} --ports: name the port of every node, or of none"
            )
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
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if watch_stdin:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stop.set())
    broker = Broker(config)
    await broker.start()
    beside = "".join(f", {what} on {url}" for what, url in broker.look_in.urls.items())
    here = config.cluster
    print(f"node {here.node_id} listens on {here.host}:{here.port}{beside}", flush=True)
    await stop.wait()
    if watch_stdin:
        loop.remove_reader(0)
    await broker.stop()


def _run_cluster(options: argparse.Namespace, ports: tuple[int, ...], command: list[str]) -> int:
    try:
        lock = FolderLock(options.data)  # each node has its own; a second cluster's would be started in vain for ever
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
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


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say until SIGINT or SIGTERM; give the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options = parser.parse_args(arguments)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, options.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    try:
        ports = _ports(options)
        is_started_here = options.node_id is None and len(ports) > 1
        node_id = options.first_id if options.node_id is None else options.node_id
        nodes = [options.first_id + number for number in range(len(ports))] if is_started_here else [node_id]
        configs = [_config(options, node, ports) for node in nodes]
    except ValueError as error:
        parser.error(str(error))
    if is_started_here:
        return _run_cluster(options, ports, [sys.executable, "-m", "examples.broker", *arguments])
    try:
        run(_run_node(configs[0], watch_stdin=options.end_with_input))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
