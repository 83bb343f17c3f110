"""The native implementation as it is built: by the interpreter's own compiler, without a warning, or not at all."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

import hatch_build
from hatch_build import CannotCompileError, compile_core

COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
#: For a test of how a compilation is done: it takes a quarter of the time.
UNOPTIMIZED = "-O0"
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None and "CI" not in os.environ, reason="there is no C compiler"
)


@needs_compiler
def test_extension_is_compiled_without_a_warning(tmp_path):
    """Every C file compiles with all warnings as errors, and the result can be imported."""
    built = compile_core(tmp_path, strict=True)

    assert tmp_path / f"timer/_native{hatch_build.suffix()}" in built
    for path in built:
        spec = importlib.util.spec_from_file_location("_native", path)
        assert spec is not None
        assert importlib.util.module_from_spec(spec).__name__ == "_native"


@needs_compiler
def test_what_is_newer_than_its_source_is_kept(tmp_path, monkeypatch):
    """Compiling again compiles nothing."""
    monkeypatch.setenv("CFLAGS", UNOPTIMIZED)
    compile_core(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}
    compile_core(tmp_path)

    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}


@needs_compiler
def test_new_warning_of_a_compiler_does_not_stop_an_installation(tmp_path, monkeypatch):
    """A warning of the compiler is an error for developers and CI only."""
    header = tmp_path / "warns.h"
    header.write_text("static int unused_by_all(void) { return 1; }")
    monkeypatch.setenv("CFLAGS", f"{UNOPTIMIZED} -include {header}")

    assert len(hatch_build.SOURCES) == len(compile_core(tmp_path / "user"))
    with pytest.raises(CannotCompileError, match="unused_by_all"):
        compile_core(tmp_path / "developer", strict=True)


def test_other_interpreters_compile_nothing(tmp_path, monkeypatch):
    """On PyPy no compiler is called."""
    monkeypatch.setattr(hatch_build.sys.implementation, "name", "pypy")
    with pytest.raises(CannotCompileError, match="pure Python"):
        compile_core(tmp_path)

    assert [] == list(tmp_path.iterdir())


def test_missing_compiler_is_told_in_a_line(tmp_path, monkeypatch):
    """Where there is no compiler the reason is one line, and nothing is left behind."""
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(CannotCompileError) as caught:
        compile_core(tmp_path)

    assert "no C compiler was found" == str(caught.value)
    assert [] == list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(("pure", "edition"), [("1", "timer._task"), ("", "timer._native")])
def test_environment_chooses_the_edition(pure, edition):
    """``PURGATORY_PURE=1`` declines the native implementation. Without it, it runs where it was built."""
    script = "import timer; print(timer.COMPILED, timer.TimerTaskEntry.__module__)"
    environment = {**os.environ, "PURGATORY_PURE": pure}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    compiled, module = done.stdout.split()

    if pure:
        assert ("False", edition) == (compiled, module)
    else:
        assert module == (edition if compiled == "True" else "timer._task")
