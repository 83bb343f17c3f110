"""The parts of the pages: sections, figures, tables, tiles. HTML, and nothing of a report."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from purgatory.pipeline.summaries.groups import Row


def tile(value: str, name: str, more: str) -> str:
    """A figure that is to be seen from afar."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(more)}</small></div>'


def section(heading: str, how: str, body: str) -> str:
    """A part of the page: a heading, how to read it, and what there is to read."""
    return f"<section><h2>{escape(heading)}</h2><p class=how>{escape(how)}</p>{body}</section>"


def figure(caption: str, svg: str, keys: str = "") -> str:
    """A plot under its caption and the names of its colours. The output serves keys and touch."""
    head = f"<figcaption><b>{escape(caption)}</b>{keys}</figcaption>" if caption or keys else ""
    return f'<figure>{head}{svg}<output aria-live="polite"></output></figure>'


def table(names: Sequence[str], lines: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """Rows under their names. The first columns (`texts`) are words, the others figures."""
    left = ' class="text"'
    head = "".join(f"<th{left if n < texts else ''}>{escape(name)}</th>" for n, name in enumerate(names))
    body = "".join(
        f"<tr>{''.join(f'<td{left if n < texts else str()}>{escape(cell)}</td>' for n, cell in enumerate(line))}</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def listing(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]], *, texts: int = 1) -> str:
    """The same from rows: each column by its name, and what it shows of a row."""
    return table(list(columns), [[shown(row) for shown in columns.values()] for row in rows], texts=texts)
