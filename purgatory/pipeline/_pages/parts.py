"""The parts of the pages: sections, figures, tables, tiles, and the shell around them. Nothing comes from elsewhere."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from purgatory.pipeline._summaries.groups import Row

_STYLE: Final = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT: Final = files(__package__).joinpath("page.js").read_text(encoding="utf-8")

#: Nothing from elsewhere, and no script but the page's own.
_POLICY: Final = (
    f"default-src 'none'; script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
#: Control characters, those that turn the direction of writing around, and halves of characters.
_HIDDEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def tile(value: str, name: str, more: str) -> str:
    """A headline figure."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(more)}</small></div>'


def section(heading: str, how: str, body: str) -> str:
    """A part of the page: a heading, how to read it, and what there is to read. Nothing if there is nothing to read."""
    return f"<section><h2>{escape(heading)}</h2><p class=how>{escape(how)}</p>{body}</section>" if body else ""


def figure(caption: str, svg: str, keys: str = "") -> str:
    """A plot under its caption and the names of its colours. The output serves keys and touch."""
    head = f"<figcaption><b>{escape(caption)}</b>{keys}</figcaption>" if caption or keys else ""
    return f'<figure>{head}{svg}<output aria-live="polite"></output></figure>'


def table(names: Sequence[str], lines: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """Rows under their names. The first columns (``texts``) are words, the others figures."""
    left = ' class="text"'
    head = "".join(f"<th{left if n < texts else ''}>{escape(name)}</th>" for n, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{left if n < texts else str()}>{escape(cell)}</td>' for n, cell in enumerate(line))}</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def listing(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]], *, texts: int = 1) -> str:
    """The same from rows: each column by its name, and what it shows of a row. Nothing if there is no row."""
    lines = [[shown(row) for shown in columns.values()] for row in rows]
    return table(list(columns), lines, texts=texts) if lines else ""


def visible(text: str) -> str:
    r"""Escape control and bidirectional characters.

    >>> print(visible("orders\u202e3"))
    orders\u202e3
    """
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shell(title: str, when: str, tiles: str, body: str, source: str) -> str:
    """The page around its sections."""
    return visible(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><main>
<header><div><h1>{escape(title)}</h1><div class="when">{escape(when)}</div></div>
<button type="button">light / dark</button></header>
<div class="tiles">{tiles}</div>
{body}
<footer>Made from {escape(source)}. A plot's figures: point at it, touch it, or use the arrow keys.</footer>
</main><script>{_SCRIPT}</script></body></html>
""")
