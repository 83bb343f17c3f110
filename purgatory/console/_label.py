"""Keys as text that is safe to show: whatever a client put into a key, it stays one line of printable characters.

A key may hold control characters that move a terminal's cursor, marks that turn the writing direction around, or a
megabyte. Markup needs no treatment here: the page writes text nodes only, and the terminal no markup.
"""

from __future__ import annotations

__all__ = ["LONGEST", "label"]

#: Characters shown of a key.
LONGEST = 120


def label(key: object) -> str:
    r"""A key as one printable line: a text as it is, anything else by its ``repr``.

    >>> label("orders-3"), label(("orders", 3)), label("a\x1b[31m\n")
    ('orders-3', "('orders', 3)", 'a\\x1b[31m\\n')
    """
    if isinstance(key, str):
        text = str(key)
    else:
        try:
            text = repr(key)
        except Exception:  # noqa: BLE001  # a key that can't be written must not hide the others
            text = f"<{type(key).__qualname__}, whose repr fails>"
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
