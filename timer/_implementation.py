"""Which implementation runs: the native one, if it was built and is not switched off, or the pure Python one.

The hot types are implemented in Python and in C, side by side (``_wheel.py``, ``_wheel.c``). The Python code defines
what they do. It runs if the C code was not built, or if ``PURGATORY_PURE=1`` is in the environment.
"""

# ruff: noqa: PTH120, PTH204, PTH207  # the core does not import pathlib

from __future__ import annotations

import glob
import importlib
import os
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

KindT = TypeVar("KindT")


def native(name: str) -> ModuleType | None:
    """The module of native types, or None where the pure Python implementation runs.

    A subinterpreter and a second copy of the package run pure Python, because the native types belong to one
    interpreter. Any other failure to load the module is an error: it is there, so it was built on purpose.
    """
    if os.environ.get("PURGATORY_PURE") == "1":
        return None
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) or "interpreter" in str(error):
            return None
        raise
    reject_if_stale(str(module.__file__))
    return module


def reject_if_stale(built: str) -> None:
    """Reject a native module that is older than its C sources. Only a checkout has these beside the module."""
    folder = os.path.dirname(built)
    for source in [*glob.glob(f"{folder}/*.[ch]"), *glob.glob(f"{folder}/_core/*.[ch]")]:
        if os.path.getmtime(source) > os.path.getmtime(built):
            raise ImportError(f"{built} is older than {source}; run `make native`, or set PURGATORY_PURE=1")


#: The native types. None where the pure Python implementation runs.
CORE: Final = native("timer._native")


def native_class(kind: type[KindT]) -> type[KindT]:
    """The native class that replaces ``kind``, with its docstrings. If there is none, ``kind`` itself.

    The public methods and properties that C lacks are those of ``kind``.
    """
    if CORE is None:
        return kind
    found: type[KindT] = getattr(CORE, kind.__name__)
    take_docs(found, kind)
    for name, attribute in vars(kind).items():
        if not name.startswith("_") and not hasattr(found, name):
            setattr(found, name, attribute)
    return found


def take_docs(native_kind: type, kind: type) -> None:
    """Give a native class the docstrings of the Python class that it replaces."""
    native_kind.__doc__ = kind.__doc__
    for name, attribute in vars(native_kind).items():
        doc = getattr(getattr(kind, name, None), "__doc__", None)
        if CORE is not None and doc is not None and not name.startswith("__"):
            signature = getattr(attribute, "__text_signature__", None)
            CORE.set_doc(attribute, doc if signature is None else f"{name}{signature}\n--\n\n{doc}")
