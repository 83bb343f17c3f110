"""Compiles the core: `make wheel` and `make test COMPILED=1`.

The sources are the same, read by Cython in its pure Python mode; a ``.pxd`` beside a module gives its attributes and
some of its names C types. An interpreter that finds the extension beside the module takes it, and without it the
module: nothing else decides. So an editable install, the source distribution and a wheel built in the usual way are
interpreted; the compiled wheel is built where ``PURGATORY_COMPILED=1`` says so.

    python hatch_build.py TREE      copy what is needed to test into TREE, and compile the core there
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent

#: What every operation or task goes through. The rest of the core gains nothing.
MODULES = (
    "timer._bucket",
    "timer._task",
    "timer._timer",
    "purgatory._hold",
    "purgatory._audience",
    "purgatory._graveyard",
    "purgatory._watchers",
    "purgatory._operation",
    "purgatory._flows",
)

#: Types come from the .pxd files alone; what a function takes and refuses must not depend on the build.
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "binding": False,  # a call of a plain C function is cheaper by a tenth of a cycle's time
    "embedsignature": True,
    "embedsignature.format": "clinic",  # for inspect.signature
    "auto_pickle": False,
}

NOT_COPIED = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "var", "_build", "*.so")


def compile_core(tree: Path, target: Path, *, optimize: str = "-O3") -> None:
    """Compile the core of the source tree ``tree``; the extensions go into ``target``, in their packages."""
    from Cython.Build import cythonize  # noqa: PLC0415  # only who compiles needs a compiler
    from setuptools import Distribution, Extension  # noqa: PLC0415

    back = Path.cwd()
    os.chdir(tree)  # so that a traceback names the files as the packages do
    try:
        with tempfile.TemporaryDirectory() as scratch:
            extensions = [
                Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=[optimize, "-g0"])
                for name in MODULES
            ]
            built = cythonize(extensions, build_dir=scratch, compiler_directives=DIRECTIVES, quiet=True)
            build = Distribution({"name": "core", "ext_modules": built}).get_command_obj("build_ext")
            build.build_lib, build.build_temp, build.parallel = str(target), scratch, os.cpu_count()
            build.ensure_finalized()
            build.run()
    finally:
        os.chdir(back)


class CompiledCore(BuildHookInterface[Any]):
    """Puts the extensions into the wheel, if it is to have them."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs besides."""
        return ["cython>=3.1", "setuptools>=77"] if os.environ.get("PURGATORY_COMPILED") == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is put together."""
        if version != "standard" or os.environ.get("PURGATORY_COMPILED") != "1":
            return
        target = Path(self.directory).resolve() / "core"
        compile_core(HERE, target)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for extension in target.rglob("*.so"):
            build_data["force_include"][str(extension)] = str(extension.relative_to(target))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it."""
        del version, build_data, artifact_path
        shutil.rmtree(Path(self.directory).resolve() / "core", ignore_errors=True)


def main() -> None:
    """See the module's header."""
    parser = argparse.ArgumentParser(description="Copy the tree and compile its core.")
    parser.add_argument("tree", type=Path, help="where to; what is there is removed")
    parser.add_argument("--quick", action="store_true", help="without optimization, to see whether it works at all")
    given = parser.parse_args()
    tree = given.tree.resolve()
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(HERE, tree, ignore=shutil.ignore_patterns(*NOT_COPIED, tree.name))
    compile_core(tree, tree, optimize="-O0" if given.quick else "-O3")
    print(f"compiled core: {tree}")  # noqa: T201


if __name__ == "__main__":
    main()
