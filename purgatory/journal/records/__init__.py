"""What a journal and a trace say: the record format, version 2.

This module is the whole of what a reader has to know. It imports nothing that lives (no purgatory, no
timer), so that the pipeline, and anybody else's tool, can depend on the format without depending on the
library that writes it.

A *journal* has one record for each operation that left a purgatory. A *trace* has two main kinds of row: an
operation with what it waits for (a level on each of several keys), and an event (a key has reached a
level). A journal says what happened; from a trace one can compute what would have happened under another
timeout, exactly.

*What a trace does not explain.* An operation that is cancelled, forced or extended leaves in a way that follows from no
level. Each of these has one more row (`ENDED`), with its purgatory and type. Readers answer such operations by their
levels and their first deadline alone, and offer no other timeout for their types.

*Identity.* A key is a purgatory's name and a label; two keys that the library tells apart have two labels, and the
same label in two purgatories is two keys. An operation is a purgatory's name and a name of its own, for as long as it
is open. A trace's row that has the name of an operation which is open at that row's instant can't be true, unless it
is that operation's own row once more (the same instant, keys, levels and delay), which says nothing new. Once
answered, from the instant of the answer on, the name may be used for another one; not at the instant of its own
arrival, though. Of two rows at one instant that with the lower sequence number came first.

*Levels.* Of a key the highest level counts that an event has given it. Whoever answers a trace may forget a key that no
row has named for a while (`KEEP_KEYS_MS`, unless told otherwise), and must, so that all give the same answers: an
operation that comes after such a while finds no level there, as if no event had ever named the key. It is the rows' own
instants that count, and the row of any operation on the key names it, whatever becomes of that. What an operation has
found on a key, at its arrival or since, stays found.

*Ended by a shutdown.* A shutdown completes the operations that are still parked before their deadlines. Their outcome
is "expired", and `ended_by` is "shutdown". Such a record says only that the operation waited for at least that long, so
statistics of waits and outcomes leave it out (they treat it as censored). Records of earlier writers have no
`ended_by`, and a reader gives None.

*What is missing.* Rows are numbered without gaps: a number that isn't there was there once. What the writer dropped or
refused never had a number; the next frame's header says how many rows that were (`dropped`), and so does the sealed
file's metadata of all its frames.

Instants are microseconds since the epoch. A record's two instants come from one monotonic clock shifted by
one constant, so their difference is a true wait even when the wall clock is being corrected.

Evolution: a reader ignores the columns that it doesn't know and gives a missing one its default, so a
column may be added without a new version. A changed meaning needs a new version, and a reader refuses a
version it doesn't know. Versions:

1. Events name no purgatory, so a trace's keys are of all purgatories together. A reader takes the rows of a trace as
   those of one purgatory without a name (`one_purgatory`). Labels of different keys may be alike.
2. Events name their purgatory; labels are injective.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs

VERSION: Final = 2

Kind: TypeAlias = Literal["text", "texts", "int", "ints", "instant"]


@attrs.frozen
class Field:
    """One column: its name, its kind, and what a file that lacks it is read as."""

    name: str
    kind: Kind
    default: Any = None


@attrs.frozen
class Schema:
    """The columns of one kind of folder, in order. The sequence number comes first and is implied."""

    name: str
    fields: tuple[Field, ...]

    @property
    def texts(self) -> tuple[Field, ...]:
        """The columns that are stored together in a frame's dictionary."""
        return tuple(field for field in self.fields if field.kind in ("text", "texts"))

    @property
    def numbers(self) -> tuple[Field, ...]:
        """The columns that are stored as packed integers."""
        return tuple(field for field in self.fields if field.kind not in ("text", "texts"))


JOURNAL: Final = Schema(
    "journal",
    (
        Field("purgatory", "text", ""),
        Field("type", "text", ""),
        Field("operation", "text"),
        Field("keys", "texts", ()),
        Field("instance", "text", ""),
        Field("outcome", "text", ""),
        Field("error", "text"),
        Field("created", "instant", 0),
        Field("delay_ms", "int", 0),
        Field("finished", "instant", 0),
        Field("checks", "int", 0),
        Field("ended_by", "text"),
    ),
)

TRACE: Final = Schema(
    "trace",
    (
        Field("kind", "text", ""),
        Field("purgatory", "text", ""),
        Field("operation", "text"),
        Field("keys", "texts", ()),
        Field("ts", "instant", 0),
        Field("delay_ms", "int", 0),
        Field("levels", "ints", ()),
        Field("type", "text", ""),
        Field("watches", "texts"),
        Field("outcome", "text"),
    ),
)

SCHEMAS: Final = {schema.name: schema for schema in (JOURNAL, TRACE)}


def one_purgatory(schema: Schema, version: int) -> bool:
    """Whether rows of that version name no purgatory that means anything: a trace's before version 2."""
    return schema is TRACE and version < _EVENTS_NAME_THEIRS


_EVENTS_NAME_THEIRS: Final = 2

OPERATION: Final = "operation"
EVENT: Final = "event"
FLUSH: Final = "flush"
"""A trace row that only moves time. It lets a stream complete open operations."""

ENDED: Final = "ended"
"""A trace row for an operation that no event explains: `outcome` says that it was cancelled, forced or extended."""

EXTENDED: Final = "extended"
"""The `outcome` of an `ENDED` row whose operation was extended, and was not cancelled or forced."""

KEEP_KEYS_MS: Final = 7 * 86_400_000
"""How long a key keeps its level after the latest row that named it, by default."""

SHUTDOWN: Final = "shutdown"
"""The value of a record's `ended_by` where the service's shutdown, and not the deadline, ended the operation."""

OUTCOMES: Final = ("immediate", "satisfied", "expired", "cancelled", "forced")


@attrs.frozen(kw_only=True)
class Record:
    """One operation that left a purgatory."""

    seq: int
    purgatory: str
    type: str
    keys: tuple[str, ...]
    instance: str
    created: int
    delay_ms: int
    finished: int
    outcome: str
    checks: int
    error: str | None = None
    operation: str | None = None
    ended_by: str | None = None
    """`SHUTDOWN` if a shutdown completed the operation before its deadline, else None."""

    @property
    def waited_us(self) -> int:
        """How long the operation was in the purgatory."""
        return self.finished - self.created

    @property
    def is_censored(self) -> bool:
        """Whether a shutdown ended the wait. How long it would have taken, and how it would have ended, is unknown."""
        return self.ended_by == SHUTDOWN


@attrs.frozen(kw_only=True)
class TraceRow:
    """An operation and what it waits for, or an event: `levels[i]` belongs to `keys[i]`."""

    seq: int
    kind: str
    purgatory: str
    operation: str | None
    keys: tuple[str, ...]
    ts: int
    delay_ms: int
    levels: tuple[int, ...]
    type: str = ""
    """The operation's class. An event has none."""
    watches: tuple[str, ...] | None = None
    """The keys that an operation was watched under; None if these are `keys`."""
    outcome: str | None = None
    """Of an `ENDED` row alone: how the operation ended."""


ROWS: Final[dict[str, type[Record | TraceRow]]] = {"journal": Record, "trace": TraceRow}
