"""Which implementation runs: the native one, if it was built and is not switched off, or the pure Python one.

The hot types are implemented in Python and in C (``timer/native``). The Python code defines what they do, and runs if
the C code was not built. A module with such a class replaces it at its end with the native one, if there is one.
``PURGATORY_PURE=1`` in the environment switches the native implementation off.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CORE", "native", "native_class"]


def native(name: str) -> ModuleType | None:
    """The module of native types, or None where the pure Python implementation runs.

    A subinterpreter and a second copy of the package run pure Python, because the native types belong to one
    interpreter. Any other failure to load the module is an error: it is there, so it was built on purpose.
    """
    if os.environ.get("PURGATORY_PURE") == "1":
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        if "interpreter" in str(error):
            return None
        raise


#: The native types. None where the pure Python implementation runs.
CORE: Final = native("timer._core")


def native_class(kind: type, name: str | None = None) -> Any:
    """The native class that replaces ``kind``, with its docstrings. If there is none, ``kind`` itself."""
    if CORE is None:
        return kind
    found = getattr(CORE, name or kind.__name__)
    CORE.take_docs(found, kind)
    return found
