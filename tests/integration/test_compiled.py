"""The core compiles, and a user's code can't tell."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USER = textwrap.dedent(
    """
    import inspect, traceback, weakref
    import purgatory, structlog
    from purgatory import DelayedOperation, DelayedOperationPurgatory
    from timer import MockTimer

    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())

    class Join(DelayedOperation):
        ready = False
        def __init__(self, delay_ms, **kw):
            super().__init__(delay_ms, **kw)
            self.said = []
        def try_complete(self):
            return self.ready and self.force_complete()
        def on_complete(self):
            self.said.append("complete")
        def on_expiration(self):
            self.said.append("expired")

    print(purgatory.COMPILED)
    clock = MockTimer()
    with DelayedOperationPurgatory[Join]("p", timer=clock) as joins:
        first, second, third = Join(20), Join(20), Join(10**30)
        for join in (first, second, third):
            joins.try_complete_else_watch(join, ["a", "b"])
        first.ready = True
        print(joins.check_and_complete("a"), first.said, first.outcome, weakref.ref(first)() is first)
        clock.advance_clock(20)
        print(second.said, second.outcome, third.cancel(), joins.parked)
        try:
            joins.try_complete_else_watch(object(), ["a"])
        except purgatory.InvalidOperation:
            print("refused")
        try:
            joins.try_complete_else_watch(Join(1), 7)
        except purgatory.WatchKeysType as error:
            for frame in traceback.extract_tb(error.__traceback__)[-2:]:
                print(frame.name.rpartition(".")[2], frame.line[:40])
    print(list(inspect.signature(joins.try_complete_else_watch).parameters))
    try:
        DelayedOperation(1)
    except TypeError as error:
        print("abstract" in str(error))
    try:
        class Equal(Join):
            def __eq__(self, other):
                return True
    except TypeError:
        print("told apart by identity")
    """
)

SAID = """\
True
1 ['complete'] Outcome.SATISFIED True
['complete', 'expired'] Outcome.EXPIRED True 0
refused
try_complete_else_watch keys = watch_keys if type(watch_keys) is
_checked_keys raise WatchKeysType(watch_keys)
['operation', 'watch_keys']
True
told apart by identity
"""


if shutil.which("cc") is None and os.environ.get("CI") != "true":
    pytest.skip("there is no C compiler", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.interpreted
def test_compiled_core_serves_a_users_classes(tmp_path):
    """A subclass, its hooks, its errors and tracebacks are the same with a core that was compiled."""
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run([sys.executable, "hatch_build.py", "--quick", tree], cwd=ROOT, check=True, timeout=450)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    out = subprocess.run(
        [sys.executable, "-c", USER], cwd=tree, env=environment, check=True, timeout=60, capture_output=True, text=True
    )
    assert SAID == out.stdout
