"""The command `purgatory`: one word says which part, and only that part is imported.

Each part has a `cli` module with `main(argv) -> int`. A part whose extra isn't installed is named together
with the line that installs it, instead of a traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISTRIBUTION: Final = "delayed-operation-purgatory"


@attrs.frozen
class _Part:
    module: str
    text: str
    extra: str | None = None


_PARTS: Final = {
    "journal": _Part("purgatory.journal.cli", "look at, check, seal and serve a journal"),
    "pipeline": _Part("purgatory.pipeline.cli", "reports, clusters and planning on Spark", "spark"),
    "top": _Part("purgatory.console.cli", "watch a running service's purgatories", "console"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to the part that the first argument names; gives its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0
    part = _PARTS.get(arguments[0]) if arguments else None
    if part is None:
        what = f"unknown command {arguments[0]!r}\n\n" if arguments else ""
        sys.stderr.write(what + _usage())
        return 2
    try:
        module = importlib.import_module(part.module)
    except ImportError as error:
        if part.extra is None:
            raise
        sys.stderr.write(
            f"purgatory {arguments[0]} needs something that is not installed ({error}).\n"
            f"Install it with: pip install '{_DISTRIBUTION}[{part.extra}]'\n"
        )
        return 2
    status: int = module.main(arguments[1:])
    return status


def _usage() -> str:
    width = max(map(len, _PARTS))
    lines = "".join(f"  {name:<{width}}  {part.text}\n" for name, part in _PARTS.items())
    return f"usage: purgatory COMMAND ...\n\ncommands:\n{lines}\nEach command has its own --help.\n"
