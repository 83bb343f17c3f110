r"""Keys as text: one printable line each. Keys that differ have different labels, except values with equal ``repr``.

Equal keys share a label, as they share their waiters::

    "orders-3"              orders-3            a str as it is, unless it looks like another type
    ("orders", 3)           (orders, 3)         a tuple in brackets
    ("a", "b-c")            (a, b-c)            joined by dashes, this and ("a-b", "c") would be one
    3, 3.0                  3                   equal, so one key, so one label
    "3"                     '3'                 quoted, because it looks like a number
    "a\x1b[2J"              'a\x1b[2J'          quoted, because it is not printable
    Partition("orders", 3)  svc:Partition(...)  any other value by its module and its ``repr``

A label longer than `LONGEST` is cut, and ends in a hash of the whole.
"""

from __future__ import annotations

import re
from numbers import Number
from typing import Any, Final

#: The greatest length of a label.
LONGEST: Final = 120

_HASH_BYTES: Final = 8
_NOT_BARE: Final = re.compile(
    r"""['"\\(){}\[\],…]          # what other labels are built with
    |\A\s|\s\Z                    # spaces at the ends
    |\A(?:-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|-?0x[0-9a-f]+|-?inf|nan|None|)\Z   # what other values are written as
    """,
    re.VERBOSE,
)


def label(key: object) -> str:
    """A key as one printable line of at most `LONGEST` characters. Never raises."""
    try:
        text = _written(key)
    except Exception:  # noqa: BLE001  # of the key's own code, or of a tuple that is nested too deeply
        text = _other(key)
    if len(text) <= LONGEST:
        return text
    from hashlib import blake2b  # noqa: PLC0415  # loads OpenSSL, and is rarely needed

    whole = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
    return f"{text[: LONGEST - 1 - len(whole)]}…{whole}"


def _written(key: object) -> str:
    if isinstance(key, str):
        text = str.__str__(key)  # a member of a StrEnum equals its value
        return text if text.isprintable() and _NOT_BARE.search(text) is None else repr(text)
    if isinstance(key, tuple):
        inside = ", ".join(map(_written, key))
        return f"({inside},)" if len(key) == 1 else f"({inside})"
    if isinstance(key, frozenset):
        return f"{{{', '.join(sorted(map(_written, key)))}}}"
    if key is None:
        return "None"
    if isinstance(key, bytes):
        return bytes.__repr__(key)
    if isinstance(key, Number) and (text := _number(key)):
        return text
    return _other(key)


def _number(value: Number) -> str:
    """A number as text, the same for equal numbers of any type. Empty if it equals no int and no float."""
    plain: Any = value.real if isinstance(value, complex) and not value.imag else value
    for kind in (int, float):
        try:
            found = kind(plain)
            if found == plain or found != found:  # noqa: PLR0124  # NaN does not equal itself
                return str(found)
        except (TypeError, OverflowError):
            continue
        except ValueError:  # NaN as an int, or an int of thousands of digits
            if kind is int and isinstance(value, int):
                return hex(value)
    return ""


def _other(key: object) -> str:
    kind = type(key)
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001  # a key whose repr fails must not hide the others
        text = f"whose repr fails, at {id(key):#x}"
    if not text.isprintable():
        text = repr(text)
    if text.startswith(f"{kind.__qualname__}("):
        return f"{kind.__module__}:{text}"
    return f"{kind.__module__}:{kind.__qualname__}[{text}]"
