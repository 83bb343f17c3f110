"""What several tests need: operations and tasks that remember, and bounded ways to wait for threads."""

from tests.support.interpreters import HAS_GLOBAL_LOCK, cpython_only
from tests.support.operations import (
    Interrupted,
    Notes,
    Waiting,
    make_ready,
    park,
    park_all,
    park_many,
    park_one,
    raising,
    satisfy,
)
from tests.support.programs import output_of
from tests.support.tasks import Ping, add_all, added
from tests.support.threads import PATIENCE_S, Hang, beside, eventually, in_thread, run_threads

__all__ = [
    "HAS_GLOBAL_LOCK",
    "Hang",
    "Interrupted",
    "Notes",
    "PATIENCE_S",
    "Ping",
    "Waiting",
    "add_all",
    "added",
    "beside",
    "cpython_only",
    "eventually",
    "in_thread",
    "make_ready",
    "output_of",
    "park",
    "park_all",
    "park_many",
    "park_one",
    "raising",
    "run_threads",
    "satisfy",
]
