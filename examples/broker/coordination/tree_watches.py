"""The watches of one process on the tree in a file, and which of them a change concerns.

A second connection looks, because ``PRAGMA data_version`` reports only what other connections have committed. It finds
the changes of other processes and those of this one, in the table ``changes`` (see ``tree``).

Used by one thread, except ``add`` and the ``cancel`` of a watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable


@attrs.frozen(eq=False)
class _Watch:
    """A callback for a path, until cancelled."""

    key: tuple[str, bool]
    """The path, and whether the names below it are meant."""
    callback: Callable[[], None]
    since: int
    """The last change when the watch was set. It reports later ones."""
    watches: dict[_Watch, None]

    def cancel(self) -> None:
        self.watches.pop(self, None)


class TreeWatches:
    """Watches, and the last change that they have reported.

    Args:
        observer: the connection that looks. ``close`` closes it.
    """

    def __init__(self, observer: sqlite3.Connection) -> None:
        self._observer = observer
        self._watches: dict[_Watch, None] = {}
        self._seen_version = -1
        self._seen_change = _last_change(observer)

    def add(self, path: str, callback: Callable[[], None], db: sqlite3.Connection, *, below: bool) -> _Watch:
        """Set a watch on a path, or on the names below it. ``db`` is the connection of the calling thread."""
        watch = _Watch((path, below), callback, _last_change(db), self._watches)
        self._watches[watch] = None
        return watch

    def all(self) -> list[Callable[[], None]]:
        """Return the callbacks of all watches."""
        return [watch.callback for watch in list(self._watches)]

    def has_news(self) -> bool:
        """Whether another connection has committed since the last call."""
        before = self._seen_version
        (self._seen_version,) = self._observer.execute("PRAGMA data_version").fetchone()
        return self._seen_version != before

    def changed(self) -> list[Callable[[], None]]:
        """Return the callbacks of the nodes that have changed since the last call."""
        rows = self._observer.execute(
            "SELECT seq, path, below FROM changes WHERE seq > ? ORDER BY seq", (self._seen_change,)
        ).fetchall()
        if not rows:
            return []
        last = {(path, bool(below)): seq for seq, path, below in rows}
        oldest, newest = rows[0][0], rows[-1][0]
        # If some changes are deleted already, every node may have changed.
        otherwise = newest if oldest != self._seen_change + 1 else 0
        self._seen_change = newest
        return [watch.callback for watch in list(self._watches) if watch.since < last.get(watch.key, otherwise)]

    def close(self) -> None:
        self._observer.close()


def _last_change(db: sqlite3.Connection) -> int:
    (seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM changes").fetchone()
    return int(seq)
