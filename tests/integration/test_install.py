"""The library as it is installed: with its native implementation or without, a user's code works the same."""

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
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
        first, second, third = Join(20), Join(20), Join(10**12)
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
            for frame in traceback.extract_tb(error.__traceback__)[-1:]:
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
1 ['complete'] Outcome.SATISFIED True
['complete', 'expired'] Outcome.EXPIRED True 0
refused
each_once raise WatchKeysType(watch_keys)
['operation', 'watch_keys']
True
told apart by identity
"""


if shutil.which("cc") is None and os.environ.get("CI") != "true":
    pytest.skip("there is no C compiler", allow_module_level=True)


def installed(tmp_path, built):
    """A fresh environment with the one distribution in it, and an interpreter to run there. Other packages are ours."""
    place = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", place, built], check=True, timeout=120
    )
    return {**{k: v for k, v in os.environ.items() if k != "PURGATORY_PURE"}, "PYTHONPATH": str(place)}


def build(tmp_path, what, **environment):
    """A wheel of ``what``, by the build's own hook."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        + ["-w", tmp_path / "dist", what],
        cwd=tmp_path,
        env={**os.environ, **environment},
        check=True,
        timeout=300,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    return wheel


def said_by(environment, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", USER], cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True
    )
    assert not run.returncode, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.native
def test_wheel_of_the_source_distribution_has_the_native_edition(tmp_path):
    """From an sdist alone a wheel with all extensions is built. A user's classes and errors are the same."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "sdist"],
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    (sdist,) = (tmp_path / "sdist").glob("*.tar.gz")
    wheel = build(tmp_path, sdist, PURGATORY_NATIVE="1", CFLAGS="-O0")  # compiles in a quarter of the time
    with zipfile.ZipFile(wheel) as files:
        extensions = sorted(name.rpartition("/")[0] for name in files.namelist() if name.endswith((".so", ".pyd")))

    assert ["purgatory", "purgatory/journal", "timer"] == extensions
    assert "none-any" not in wheel.name
    environment = installed(tmp_path, wheel)
    assert f"True\n{SAID}" == said_by(environment, tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it(purgatories):\n    purgatories.make('a')\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_it.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True)
    assert "1 passed" in run.stdout, run.stdout
    assert f"False\n{SAID}" == said_by({**environment, "PURGATORY_PURE": "1"}, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.native
def test_without_a_compiler_it_installs_as_python(tmp_path):
    """Where the compiler fails the wheel is plain Python's, and works."""
    wheel = build(tmp_path, ROOT, CC="/nonexistent/cc", PURGATORY_PURE="")

    assert wheel.name.endswith("-none-any.whl")
    assert f"False\n{SAID}" == said_by(installed(tmp_path, wheel), tmp_path)
