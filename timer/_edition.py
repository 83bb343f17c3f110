"""Which edition runs: the native one, if it was built and is not declined, or the one that is written to be read.

The types whose steps must be single ones, and what every task goes through, exist twice: in Python, in the modules of
their names, and in C, in ``_core.c``. Python is the reference, and what runs where there was no compiler. A module that
has such a type ends by taking the native one, if it is there. ``PURGATORY_PURE=1`` in the environment declines.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CORE", "native"]


def native(name: str) -> ModuleType | None:
    """The module of native types, or None where Python's own shall run.

    That is so in a subinterpreter, too, and in a second copy of the package: what the native types know is the main
    interpreter's, and they serve whoever imported them first. A module that can't be loaded for any other reason is an
    error: it is there, and somebody wants it.
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


#: The native types; None where Python's own run.
CORE: Final = native("timer._core")
