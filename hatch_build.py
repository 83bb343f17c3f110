"""Compiles the native edition, where there is a C compiler.

`pip install`, an editable install and `make wheel` come here by hatchling. Each C file below becomes an extension
beside the Python modules that it speeds up; those take it if it is there. Where it can't be built (no compiler, no
Python.h) one line says so, and Python's own edition is what is installed: that is no error, unless
``PURGATORY_NATIVE=1`` asks for the native one. ``PURGATORY_PURE=1`` builds none.

    python hatch_build.py              compile in place, what is older than its source
    python hatch_build.py --sanitize   the same with the address and undefined-behaviour sanitizers, for the tests

The compiler is called as the interpreter was built with it: a C file needs no build system of its own.
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
except ModuleNotFoundError:  # to compile in place nothing but a compiler is needed
    BuildHookInterface = None  # type: ignore[assignment,misc]

HERE = Path(__file__).resolve().parent

#: Each extension and its main C file, which includes its other parts.
SOURCES = {
    "timer/_core": "timer/_core.c",
    "purgatory/_core": "purgatory/native/core.c",
    "purgatory/journal/_core": "purgatory/journal/_core.c",
}

#: Functions of every calling convention go through PyCFunction, and tables end with an entry of nothing but NULL.
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-Wno-missing-field-initializers")
PLAIN = ("-O3", "-g0", "-DNDEBUG")
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


class CannotCompileError(Exception):
    """There is no compiler, or it failed."""


def suffix() -> str:
    """What an extension's file name ends with, for this interpreter."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def compile_one(name: str, target: Path, flags: tuple[str, ...]) -> None:
    """Compile and link one extension.

    Raises:
        CannotCompileError: with the reason in a line, or the compiler's own words.
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
    scratch.replace(target)  # at once: somebody may be importing it


def c_files() -> list[Path]:
    """Every C file and header. An extension is compiled again if any of them changed: they include each other."""
    return [path for package in ("timer", "purgatory") for path in (HERE / package).rglob("*.[ch]")]


def compile_core(root: Path, flags: tuple[str, ...] = PLAIN, *, anew: bool = False) -> list[Path]:
    """Compile the extensions into the tree ``root``, those that are older than their sources; all of them are returned.

    Raises:
        CannotCompileError: one could not be compiled.
    """
    built = []
    newest = max(path.stat().st_mtime for path in (*c_files(), HERE / "hatch_build.py"))
    for name, source in SOURCES.items():
        if not (HERE / source).exists():
            continue
        target = Path(root, name + suffix())
        if anew or not target.exists() or target.stat().st_mtime < newest:
            target.parent.mkdir(parents=True, exist_ok=True)
            compile_one(name, target, flags)
        built.append(target)
    return built


if BuildHookInterface is not None:

    class NativeCore(BuildHookInterface[Any]):
        """Puts the extensions into the wheel; for an editable install, beside their sources."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Before the wheel is put together."""
            if os.environ.get("PURGATORY_PURE") == "1":
                return
            editable = version == "editable"
            root = HERE if editable else Path(self.directory).resolve() / "native"
            try:
                built = compile_core(root, anew=not editable)
            except CannotCompileError as error:
                if os.environ.get("PURGATORY_NATIVE") == "1":
                    raise
                reason = str(error).splitlines()[0]
                self.app.display_warning(f"purgatory: installed without its native edition, since {reason}")
                return
            if not editable:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                for extension in built:
                    build_data["force_include"][str(extension)] = str(extension.relative_to(root))

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """After it."""
            del version, build_data, artifact_path
            shutil.rmtree(Path(self.directory).resolve() / "native", ignore_errors=True)


def main() -> int:
    """See the module's header."""
    parser = argparse.ArgumentParser(description="Compile the native edition in place.")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    given = parser.parse_args()
    try:
        built = compile_core(HERE, SANITIZED if given.sanitize else PLAIN, anew=given.sanitize)
    except CannotCompileError as error:
        print(f"the native edition can't be compiled: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print("native:", *[path.relative_to(HERE) for path in built])  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
