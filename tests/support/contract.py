"""The tables of the contract page: ``python -m tests.support.contract`` writes them to the end of ``docs/contract.md``.

Names and types come from the schemas that the program writes with. Units follow from the names. What may be null is
listed here, and tests compare the list with tables that were written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from purgatory.journal.records import JOURNAL, TRACE
from purgatory.journal.records.parquet import arrow_schema
from purgatory.pipeline._spark import sinks
from purgatory.pipeline._summaries.advice import ADVICE, CURVE
from purgatory.pipeline._tables import levels, queries
from purgatory.pipeline._tables.answers import ANSWERS, MALFORMED
from purgatory.pipeline._tables.relations import Widths
from purgatory.pipeline._tables.table import INSTANT

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE: Final = Path(__file__).parents[2] / "docs" / "contract.md"
#: The first version of the contract, and the version that each later column came with.
FIRST: Final = "0.1"
SINCE: Final[Mapping[tuple[str, str], str]] = {}

#: Columns that may be null, by table.
NULLABLE: Final[Mapping[str, str]] = {
    "journal": "operation error ended_by normal_ends",
    "trace": "operation watches outcome normal_ends",
    "answers": "",
    "malformed": f"seq {' '.join(field.name for field in TRACE.fields)}",
    "stream_aside": "purgatory operation created",
    "expiries": "key",
    "slowest": "operation keys",
    "advice": "timeout_ms",
    "quarantine": f"seq {' '.join(field.name for field in JOURNAL.fields)}",
}
#: Columns that only the tables of a stream have.
_OF_STREAMS: Final = {
    **dict.fromkeys(("part", "reason", "detail"), pa.string()),
    "ingested": INSTANT,
    "batch": pa.int64(),
    "date": pa.date32(),
}
_TYPES: Final = {
    pa.date32(): "date",
    pa.string(): "text",
    pa.int64(): "int64",
    pa.int32(): "int32",
    pa.float64(): "float64",
    pa.bool_(): "bool",
    INSTANT: "timestamp",
    pa.list_(pa.string()): "list of text",
    pa.list_(pa.int64()): "list of int64",
}
_LINE: Final = "<!-- made by tests/support/contract.py -->"
_EPOCH: Final = ("window_us", "slot_us", "at_us", "first_us", "last_us")
_SHARES: Final = ("expiry_share", "share", "survival", "survival_there", "answered_share", "target")


def schemas() -> dict[str, pa.Schema]:
    """Return the columns of every file and table, by name."""
    widths = Widths(window_us=1, slot_us=1, fine_us=1, slots=1)
    tables = {**queries.TABLES, "occupancy": levels.occupancy(widths), "peaks": levels.peaks(widths)}
    tables |= {"slowest": queries.slowest_of([]), "quarantine": queries.MALFORMED}
    del tables["waits"]  # the survival curve is what is written of it
    report = {name: _dated(table) for name, table in tables.items()} | {"survival": CURVE, "advice": ADVICE}
    files = {"journal": arrow_schema(JOURNAL), "trace": arrow_schema(TRACE), "answers": ANSWERS, "malformed": MALFORMED}
    types = {field.name: field.type for field in ANSWERS} | _OF_STREAMS
    for name, names in (("stream_answers", sinks.ANSWERS), ("stream_aside", sinks.ASIDE)):
        files[name] = pa.schema([(column, types[column]) for column in names])
    return files | dict(sorted(report.items()))


def columns(name: str, schema: pa.Schema) -> list[tuple[str, str, str, bool, str]]:
    """Return the name, type, unit, whether it may be null, and the first version of each column of a table."""
    nullable = NULLABLE.get(name, "").split()
    return [
        (field.name, _TYPES[field.type], unit(field), field.name in nullable, SINCE.get((name, field.name), FIRST))
        for field in schema
    ]


def unit(field: pa.Field) -> str:
    """Return the unit of a column."""
    if field.type == INSTANT:
        return "µs, UTC"
    if field.name in _EPOCH:
        return "µs since the epoch"
    if field.name == "area_us":
        return "operations x µs"
    by_end = {"_us": "µs", "_ms": "ms"}.get(field.name[-3:], "")
    return by_end or ("0 to 1" if field.name in _SHARES else "")


def _dated(table: Any) -> pa.Schema:
    return table.columns.append(pa.field(table.dated, INSTANT)) if table.dated else table.columns


def render() -> str:
    """Return the page with the tables of this code."""
    parts = [PAGE.read_text(encoding="utf-8").partition(_LINE)[0] + _LINE]
    for name, schema in schemas().items():
        rows = [
            f"| `{column}` | {kind} | {of or '-'} | {'yes' if null else 'no'} | {since} |"
            for column, kind, of, null, since in columns(name, schema)
        ]
        head = "| column | type | unit | null | since |\n|---|---|---|---|---|"
        parts.append(f"## {name}\n\n{_WHERE.get(name, f'`tables/{name}/` of a report.')}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


_WHERE: Final = {
    "journal": "`journal-*.parquet`. One row per operation that left a purgatory.",
    "trace": "`trace-*.parquet`. One row per operation and per event.",
    "answers": "`answers/` of a replay. One row per operation.",
    "malformed": "`malformed/` of a replay. Rows of the trace that cannot be true, with the reason.",
    "stream_answers": "`--out` of a stream. One row per operation. Views of Spark's catalog have no `batch`.",
    "stream_aside": "`<out>_aside` of a stream. Rows of the trace that were late or malformed.",
}


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
