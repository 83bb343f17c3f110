"""Which distribution this is, and whether what is found under its names is its own.

The distribution brings two packages, ``purgatory`` and ``timer``. Both names are taken on PyPI by others, and many a
program has a ``timer.py``. Whatever comes first on ``sys.path`` is imported: a script's own folder before all that is
installed, and of two distributions with one name the files that were installed last. So this module, the first that
``purgatory`` imports, looks at which ``timer`` it gets, and names the file, rather than let an import fail somewhere
within on a name that nobody has heard of.
"""

from __future__ import annotations

from typing import Final

import timer

__all__ = ["NAME", "VERSION", "MissingExtra", "missing"]

#: What is installed by this name,
NAME: Final = "delayed-operation-purgatory"
#: in this version.
VERSION: Final = "0.1.0"


class MissingExtra(ModuleNotFoundError):
    """A part of the library was imported, and what it needs besides the base install isn't there."""


def missing(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """What to raise for a part that needs an extra: with the line that installs it, unless it is our own module."""
    if (error.name or "").partition(".")[0] in ("purgatory", "timer"):
        return error
    return MissingExtra(f"{error}; install it with: pip install '{NAME}[{extra}]'", name=error.name)


if not hasattr(timer, "TimingWheel"):
    _found = getattr(timer, "__file__", None) or f"a folder without code ({', '.join(getattr(timer, '__path__', ()))})"
    raise ImportError(
        f"purgatory needs the package 'timer' that {NAME} brings, but found {_found} in its place; "
        f"rename that file, or uninstall what it is from and reinstall {NAME}",
        name="timer",
        path=_found,
    )
