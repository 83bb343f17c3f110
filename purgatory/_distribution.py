"""The distribution's name and version, and a check that its second package, ``timer``, is the right one.

The distribution brings two packages, ``purgatory`` and ``timer``. Other distributions on PyPI have the same names, and
many programs have a ``timer.py``. Python imports the first module on ``sys.path``: a script's own folder comes before
all installed packages. Of two distributions with one name, the one that was installed last wins. So this module, the
first that ``purgatory`` imports, checks which ``timer`` it gets. If it is the wrong one, the error names its file.
"""

from __future__ import annotations

from typing import Final

import timer

#: The name of the distribution,
NAME: Final = "delayed-operation-purgatory"
#: and its version.
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
