"""The record format of journals and traces, version 2.

This module is all that a reader has to know. It imports no purgatory and no timer, so the pipeline and other tools can
depend on the format without the library that writes it.

A *journal* has one record per operation that left a purgatory. A *trace* has two main kinds of row: an operation with
what it waits for (a level on each of several keys), and an event (a key has reached a level). A journal says what
happened. From a trace one can compute exactly what would have happened under another timeout.

*What a trace does not explain.* An operation that is cancelled, forced or extended leaves in a way that follows from no
level. Each of these has one more row (``ENDED``), with its purgatory and type. Readers answer such operations by their
levels and their first deadline alone, and offer no other timeout for their types.

*Identity.* A key is a purgatory's name and a label. Keys that the library tells apart have different labels, and the
same label in two purgatories is two keys. An operation is a purgatory's name and a name of its own, while it is open. A
row of a trace with the name of an operation that is open at that row's instant cannot be true. The exception is that
operation's own row again (the same instant, keys, levels and delay), which says nothing new. From the instant of its
answer on, the name may be used for another operation, but not at the instant of its own arrival. Of two rows at one
instant, the one with the lower sequence number came first.

*Levels.* The level of a key is the highest that an event has given it. A reader must forget a key that no row has named
for a time (``KEEP_KEYS_MS`` by default), so that all readers give the same answers: an operation that comes later finds
no level there, as if no event had ever named the key. Only the instants of the rows count. The row of any operation on
the key names it, whatever becomes of that operation. What an operation found on a key, at its arrival or later, remains
found.

*Ended by a shutdown.* A shutdown completes the operations that are still parked before their deadlines. Their outcome
is "expired", and ``ended_by`` is "shutdown". Such a record only says that the operation waited for at least that long.
Statistics of waits and outcomes leave it out (they treat it as censored). Records of earlier writers have no
``ended_by``, and a reader gives None.

*Normal ends.* ``normal_ends`` names the ends that the operation's type calls normal: ``expired``, ``cancelled``, or
both with a space between. Records of earlier writers, and of types that name none, have none. See ``normal``.

*What is missing.* Rows are numbered without gaps, so a missing number means a lost row. Rows that the writer dropped
never had a number. The header of the next frame says how many there were (``dropped``), and so does the sealed file's
metadata for all of its frames.

Instants are microseconds since the epoch. The two instants of a record come from one monotonic clock, shifted by one
constant. So their difference is a true wait, also while the wall clock is adjusted. If the wall clock is set, later
records of a journal have another constant. All rows of a trace have one, from its opening to its end.

Evolution: a reader ignores unknown columns and gives a missing one its default. So a column may be added without a new
version. A changed meaning needs a new version, and a reader rejects a version that it does not know. Version 1 was
never released, and no reader knows it.
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
    default: Any


@attrs.frozen
class Schema:
    """The columns of one kind of folder, in order. The sequence number comes first and is implied."""

    name: str
    row: type[Record | TraceRow]
    fields: tuple[Field, ...]

    @property
    def texts(self) -> tuple[Field, ...]:
        """The columns that are stored together in a frame's dictionary."""
        return tuple(field for field in self.fields if field.kind in ("text", "texts"))

    @property
    def numbers(self) -> tuple[Field, ...]:
        """The columns that are stored as packed integers."""
        return tuple(field for field in self.fields if field.kind not in ("text", "texts"))


OPERATION: Final = "operation"
EVENT: Final = "event"
FLUSH: Final = "flush"
"""A trace row that only moves time. It lets a stream complete open operations."""

ENDED: Final = "ended"
"""A trace row for an operation that no event explains: ``outcome`` says that it was cancelled, forced or extended."""

EXTENDED: Final = "extended"
"""The ``outcome`` of an ``ENDED`` row whose operation was extended, and was not cancelled or forced."""

KEEP_KEYS_MS: Final = 7 * 86_400_000
"""How long a key keeps its level after the latest row that named it, by default."""

SHUTDOWN: Final = "shutdown"
"""The value of a record's ``ended_by`` where the service's shutdown, and not the deadline, ended the operation."""

OUTCOMES: Final = ("immediate", "satisfied", "expired", "cancelled", "forced")

LATEST_US: Final = 7_258_118_400_000_000
"""The year 2200, in microseconds since the epoch. A record of a later instant cannot be true."""


Instant: TypeAlias = int
"""Microseconds since the epoch."""


@attrs.frozen(kw_only=True)
class Record:
    """One operation that left a purgatory."""

    seq: int
    purgatory: str
    type: str
    operation: str | None = None
    keys: tuple[str, ...]
    instance: str
    outcome: str
    error: str | None = None
    created: Instant
    delay_ms: int
    finished: Instant
    checks: int
    ended_by: str | None = None
    """``SHUTDOWN`` if a shutdown completed the operation before its deadline, else None."""
    normal_ends: str | None = None
    """The ends that are normal for the type, in alphabetical order: ``cancelled expired``. None if it names none."""

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
    """An operation and what it waits for, or an event: ``levels[i]`` belongs to ``keys[i]``."""

    seq: int
    kind: str
    purgatory: str
    operation: str | None
    keys: tuple[str, ...]
    ts: Instant
    delay_ms: int
    levels: tuple[int, ...]
    type: str = ""
    """The operation's class. An event has none."""
    watches: tuple[str, ...] | None = None
    """The keys that an operation was watched under; None if these are ``keys``."""
    outcome: str | None = None
    """Of an ``ENDED`` row alone: how the operation ended."""
    normal_ends: str | None = None
    """Of an operation's row: as in ``Record``."""


#: By the type of a row's attribute: the kind of its column, and what a file without the column is read as.
_COLUMNS: Final[dict[str, tuple[Kind, Any]]] = {
    "str": ("text", ""),
    "str | None": ("text", None),
    "tuple[str, ...]": ("texts", ()),
    "tuple[str, ...] | None": ("texts", None),
    "int": ("int", 0),
    "tuple[int, ...]": ("ints", ()),
    "Instant": ("instant", 0),
}


def _schema(name: str, row: type[Record | TraceRow]) -> Schema:
    return Schema(name, row, tuple(Field(f.name, *_COLUMNS[str(f.type)]) for f in attrs.fields(row)[1:]))


JOURNAL: Final = _schema("journal", Record)
TRACE: Final = _schema("trace", TraceRow)
SCHEMAS: Final = {schema.name: schema for schema in (JOURNAL, TRACE)}

ADDED: Final = frozenset({"normal_ends"})
"""Columns that files of this version may lack, because they were added to the version later."""
