"""The command ``purgatory``: one word says which part, and only that part is imported.

Each part has a ``cli`` module with ``main(argv) -> int``. A missing extra is an error message with the line that
installs it, not a traceback, also in the middle of a command.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

import attrs

from purgatory._distribution import NAME, VERSION, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class _Part:
    module: str
    text: str
    extra: str  # brings what it, or a command of it, needs besides the base


_PARTS: Final = {
    "journal": _Part("purgatory.journal._cli", "summarize, verify, seal and serve a journal", "parquet"),
    "pipeline": _Part("purgatory.pipeline._cli", "report on journals, replay and stream traces", "spark"),
    "top": _Part("purgatory.console.cli", "watch the purgatories of a running service", "console"),
}

#: An import that fails in these is no matter of extras.
_OURS: Final = frozenset({"purgatory", "timer"})


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to the part that the first argument names. Returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0
    if arguments and arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"{NAME} {VERSION}\n")
        return 0
    part = _PARTS.get(arguments[0]) if arguments else None
    if part is None:
        what = f"unknown command {arguments[0]!r}\n\n" if arguments else ""
        sys.stderr.write(what + _usage())
        return 2
    try:
        status: int = importlib.import_module(part.module).main(arguments[1:])
    except MissingExtra as error:
        sys.stderr.write(f"purgatory {arguments[0]}: {error}\n")
        return 2
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _OURS:
            raise
        sys.stderr.write(f"purgatory {arguments[0]}: {error}; {_remedy(error, part)}\n")
        return 2
    return status


def _remedy(error: ImportError, part: _Part) -> str:
    if error.name in sys.stdlib_module_names:
        return "this needs Linux or macOS"
    return f"install it with: pip install '{NAME}[{part.extra}]'"


def _usage() -> str:
    width = max(map(len, _PARTS))
    lines = "".join(f"  {name:<{width}}  {part.text}\n" for name, part in _PARTS.items())
    return f"usage: purgatory COMMAND ... | --version\n\ncommands:\n{lines}\nEach command has its own --help.\n"
