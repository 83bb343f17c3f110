"""One Prometheus target per worker, in a folder that Prometheus watches (``file_sd_configs``).

Workers that share a port cannot share ``/metrics``: each scrape would reach another worker. So each worker serves its
metrics on a free port of its own, and writes the address into a file. It removes the file when it stops.

**A worker that is killed** leaves its file behind, and Prometheus would report the target as down permanently. So each
worker holds a lock on its file (``flock``), which the kernel releases with the process. Every worker that starts, and
every worker each ``SWEEP_S`` seconds, removes the files that are not locked.

Works on Linux and macOS. The folder must be on a local file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from purgatory import console, metrics

__all__ = ["observed", "sweep", "target"]

SWEEP_S = 10.0

log = logging.getLogger("uvicorn.error")


@contextlib.asynccontextmanager
async def observed(folder: str | None) -> AsyncIterator[None]:
    """Serve this worker's metrics and console on ports of their own, and announce the metrics in a folder."""
    if folder is None:
        yield
        return
    worker = str(os.getpid())
    with metrics.serve(0, registry=CollectorRegistry()) as measured, console.serve(0) as page:
        log.info("worker %s: metrics at %s, console at %s", worker, measured.url, page.url)
        async with target(Path(folder), f"127.0.0.1:{measured.port}", worker=worker):
            yield


@contextlib.asynccontextmanager
async def target(folder: Path, address: str, **labels: str) -> AsyncIterator[Path]:
    """Announce ``address`` to Prometheus as long as this is open.

    Args:
        folder: the folder that Prometheus watches. It is made if it is missing.
        address: host and port of the worker's metrics.
        labels: labels of every series of this target.
    """
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  # once, before any request
    file = folder / f"worker-{os.getpid()}.json"
    written = file.with_suffix(".new")  # Prometheus never reads half a file
    with written.open("w", encoding="utf-8") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        json.dump([{"targets": [address], "labels": labels}], locked)
        locked.flush()
        written.rename(file)
        sweeping = asyncio.create_task(_sweep_again(folder))
        try:
            yield file
        finally:
            sweeping.cancel()
            file.unlink(missing_ok=True)


def sweep(folder: Path) -> list[Path]:
    """Remove the files of workers that are gone. Returns them."""
    stale = []
    for file in folder.glob("worker-*.json"):
        with contextlib.suppress(OSError), file.open(encoding="utf-8") as opened:  # locked, or just removed
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
            stale.append(file)
    return stale


async def _sweep_again(folder: Path) -> None:
    while True:
        sweep(folder)
        await asyncio.sleep(SWEEP_S)
