"""Compile the native implementation, where there is a C compiler.

Hatchling calls this for `pip install`, editable installs and `make wheel`. Each extension is placed beside the Python
modules that it accelerates, and they use it if it is there. If it cannot be built (no compiler, no Python.h), one line
says why and the pure Python implementation is installed. With ``PURGATORY_NATIVE=1`` that is an error. With
``PURGATORY_PURE=1``, and on interpreters other than CPython, nothing is compiled.

    python hatch_build.py              compile in place what is older than its sources, with warnings as errors
    python hatch_build.py --sanitize   the same with the address and undefined-behaviour sanitizers, for the tests

Warnings are errors for developers and CI only. A compiler newer than ours must not turn an installation into the pure
Python implementation. The compiler is called as the interpreter was built with it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # not needed to compile in place
    BuildHookInterface = None  # type: ignore[assignment,misc]

HERE = Path(__file__).resolve().parent

#: Each extension and its main C file, which includes its other parts.
SOURCES = {
    "timer/_native": "timer/_core.c",
    "purgatory/_native": "purgatory/_core/core.c",
    "purgatory/journal/_native": "purgatory/journal/_ledger.c",
}

#: Two warnings are off: methods of all calling conventions are cast to PyCFunction, and tables end with a NULL entry.
WARNINGS = ("-Wall", "-Wextra", "-Wno-cast-function-type", "-Wno-missing-field-initializers")
PLAIN = ("-O3", "-g0", "-DNDEBUG")
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


class CannotCompileError(Exception):
    """There is no compiler, or it failed."""


def suffix() -> str:
    """The suffix of an extension's file name on this interpreter."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def compile_one(name: str, target: Path, flags: tuple[str, ...]) -> None:
    """Compile and link one extension.

    Raises:
        CannotCompileError: with the reason in one line, or the compiler's output.
    """
    linker = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "")
    if compiler := os.environ.get("CC"):
        linker = [*shlex.split(compiler), *linker[1:]]
    if not linker or shutil.which(linker[0]) is None:
        raise CannotCompileError("no C compiler was found")
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        raise CannotCompileError(f"there is no Python.h in {include}")
    position_independent = shlex.split(sysconfig.get_config_var("CCSHARED") or "-fPIC")
    given = shlex.split(os.environ.get("CFLAGS", ""))
    command = [*linker, *position_independent, "-std=c11", *flags, *WARNINGS, f"-I{include}", f"-I{HERE}", *given]
    scratch = target.with_suffix(".part")
    done = subprocess.run(  # noqa: S603  # the compiler that this interpreter was built with
        [*command, str(HERE / SOURCES[name]), "-o", str(scratch)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        scratch.unlink(missing_ok=True)
        raise CannotCompileError(f"the C compiler failed:\n{done.stderr.strip()}")
    scratch.replace(target)  # in one step: another process may be importing it


def is_supported() -> bool:
    """Whether this interpreter is a CPython. On PyPy the pure Python implementation is as fast as the native one."""
    return sys.implementation.name == "cpython"


def c_files() -> list[Path]:
    """Every C file and header. An extension is compiled again if any of them changed: they include each other."""
    return [path for package in ("timer", "purgatory") for path in (HERE / package).rglob("*.[ch]")]


def compile_core(root: Path, flags: tuple[str, ...] = PLAIN, *, anew: bool = False, strict: bool = False) -> list[Path]:
    """Compile the extensions that are older than their sources into the tree ``root``; return the paths of all.

    Args:
        root: the tree; an extension has the same place in it as in the sources.
        flags: the flags of the compiler.
        anew: compile all of them.
        strict: a warning of the compiler is an error.

    Raises:
        CannotCompileError: one could not be compiled.
    """
    if not is_supported():
        raise CannotCompileError(f"{sys.implementation.name} runs the pure Python implementation")
    built = []
    newest = max(path.stat().st_mtime for path in (*c_files(), HERE / "hatch_build.py"))
    for name, source in SOURCES.items():
        if not (HERE / source).exists():
            continue
        target = Path(root, name + suffix())
        if anew or not target.exists() or target.stat().st_mtime < newest:
            target.parent.mkdir(parents=True, exist_ok=True)
            compile_one(name, target, (*flags, "-Werror") if strict else flags)
        built.append(target)
    return built


if BuildHookInterface is not None:

    class NativeCore(BuildHookInterface[Any]):
        """Puts the extensions into the wheel; for an editable install, beside their sources."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile before the wheel is put together."""
            wanted = os.environ.get("PURGATORY_NATIVE") == "1"
            if os.environ.get("PURGATORY_PURE") == "1" or not (is_supported() or wanted):
                return
            editable = version == "editable"
            root = HERE if editable else Path(self.directory).resolve() / "native"
            try:
                built = compile_core(root, anew=not editable)
            except CannotCompileError as error:
                if wanted:
                    raise
                reason = str(error).splitlines()[0]
                self.app.display_warning(f"purgatory: installed without its native implementation: {reason}")
                return
            if not editable:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                for extension in built:
                    build_data["force_include"][str(extension)] = str(extension.relative_to(root))

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Delete what was compiled for it."""
            del version, build_data, artifact_path
            shutil.rmtree(Path(self.directory).resolve() / "native", ignore_errors=True)


def main() -> int:
    """Compile in place."""
    parser = argparse.ArgumentParser(description="Compile the native implementation in place.")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    given = parser.parse_args()
    try:
        built = compile_core(HERE, SANITIZED if given.sanitize else PLAIN, anew=given.sanitize, strict=True)
    except CannotCompileError as error:
        print(f"the native implementation cannot be compiled: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print("native:", *[path.relative_to(HERE) for path in built])  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
