"""Find the journals of a report: the folders that were given and those in a fleet's folder, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from posixpath import normpath

from purgatory.journal.records import JOURNAL, Schema
from purgatory.journal.records.folder import check_kind, folders_in, is_trace, journals_in, list_segments, tip
from purgatory.pipeline._rows.completeness import Run
from purgatory.pipeline._spark.places import is_folder


def folders(given: Iterable[str], schema: Schema = JOURNAL, qualified: Callable[[str], str] = str) -> list[str]:
    """The journals' folders, each once: as given, or, where it holds none itself, those inside it (a fleet's).

    Args:
        given: as the caller spelled them. Of several spellings of one folder, the first is used.
        schema: what they hold.
        qualified: spells a place of a store in the one way that its file system has for it.

    Raises:
        JournalMissing: there is no journal in one of them, nor in a folder inside it.
        JournalFormat: one holds something else.
    """
    by_identity: dict[Hashable, str] = {}
    for name in given:
        fleet = journals_in(Path(name)) if schema is JOURNAL and is_folder(name) else []
        for each in [name] if fleet in ([], [Path(name)]) else map(str, fleet):
            by_identity.setdefault(_identity(each, qualified), each)
    for name in by_identity.values():
        if is_folder(name):
            check_kind(Path(name), schema)
    return list(by_identity.values())


def left_out(given: Iterable[str]) -> list[str]:
    """What lies beside the journals of a fleet and may be thought to be one, each in a line."""
    lines = []
    for name in given:
        folder = Path(name)
        fleet = is_folder(name) and folder.is_dir() and not list_segments(folder)
        inside = folders_in(folder) if fleet else []
        empty = [each for each in inside if not list_segments(each)]
        lines += [f"{each}: a trace" for each in inside if is_trace(each)]
        for each in empty if len(empty) < len(inside) else ():
            deeper = any(map(list_segments, folders_in(each)))
            lines.append(f"{each}: {'its journals lie one folder deeper' if deeper else 'no segment is in it'}")
    return list(dict.fromkeys(lines))


def _identity(name: str, qualified: Callable[[str], str]) -> Hashable:
    """One name for a place, however it is spelled: a slash at the end, a link, a way around through other folders."""
    scheme, _, path = "", "", name
    if not is_folder(name):
        scheme, _, path = qualified(name).partition(":")
        path = f"/{path.lstrip('/')}" if scheme == "file" else path
    if scheme in {"", "file"}:
        with suppress(OSError):
            status = Path(path).stat()
            return status.st_dev, status.st_ino
    return scheme, normpath(path)


def sealed_runs(journals: Sequence[str]) -> list[Run]:
    """The rows of each journal, by the sequence numbers at its two ends."""
    runs = [Run(name, **tip(Path(name))) for name in journals]
    return [run for run in runs if len(run) > 0]
