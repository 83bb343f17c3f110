"""What several tests need: operations and tasks that remember, and bounded ways to wait for threads."""

from tests.support.interpreters import HAS_GLOBAL_LOCK, cpython_only
from tests.support.operations import Waiting, park, park_all, park_one, satisfy
from tests.support.tasks import Ping, add_all, added
from tests.support.threads import PATIENCE_S, beside, eventually, in_thread, run_threads

__all__ = [
    "HAS_GLOBAL_LOCK",
    "PATIENCE_S",
    "Ping",
    "Waiting",
    "add_all",
    "added",
    "beside",
    "cpython_only",
    "eventually",
    "in_thread",
    "park",
    "park_all",
    "park_one",
    "run_threads",
    "satisfy",
]
