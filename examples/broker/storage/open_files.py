"""The limit of open files. Every segment of every log is an open file, and every connection is one more."""

from __future__ import annotations

import contextlib
import resource


def raise_limit() -> None:
    """Allow this process as many open files as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_partitions() -> int:
    """Return how many partitions a node may have: the other half of the files is for segments and connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft // 2
