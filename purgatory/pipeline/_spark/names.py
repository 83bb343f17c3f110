"""The three ways to name a place: a folder of this machine, an address in a store, a table of a catalog. No pyspark.

A word and a colon before a slash begin an address (``s3a://bucket/x``, ``dbfs:/x``). Three words joined by dots name a
table (``main.ops.answers``). Everything else is a folder. ``./a.b.c`` is a folder, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){2}")


def is_table(place: str) -> bool:
    """Whether a place is a table's full name."""
    return _TABLE.fullmatch(place) is not None


def is_folder(place: str) -> bool:
    """Whether a place is a folder of this machine."""
    return not _ADDRESS.match(place) and not is_table(place)


def inside(place: str, name: str) -> str:
    """A folder inside a place. Beside a table, the table with the name at its end."""
    return f"{place}_{name}" if is_table(place) else f"{place.rstrip('/')}/{name}"


def for_spark(place: str) -> str:
    """A place as Spark is given it: a folder that is on this machine by its address, whatever ``fs.defaultFS`` is.

    Spark takes the name as it is, so nothing in it is quoted.
    """
    return f"file://{Path(place).absolute()}" if is_folder(place) and Path(place).exists() else place
