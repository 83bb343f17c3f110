"""``purgatory journal summary|verify|tail|seal|retain|serve DIR``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from purgatory import PurgatoryError
from purgatory._serving import add_token
from purgatory.journal._reader import read, verify
from purgatory.journal._segments import FolderLock, has_parquet, recover, seal
from purgatory.journal._segments.retention import retain
from purgatory.journal._serve import serve
from purgatory.journal.records.errors import JournalError
from purgatory.journal.records.folder import journals_in, list_segments, tip
from purgatory.journal.records.instants import add_range, seconds, whole
from purgatory.journal.records.normal import add_normal
from purgatory.journal.summary import Normal, as_json, as_text, summarize_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from purgatory.journal.records import Record, TraceRow


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit status: 0 success, 1 the journal is not sound, 2 an error."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (JournalError, PurgatoryError) as error:
        sys.stderr.write(f"purgatory journal: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # ``| head`` has seen enough
        _write_no_more()
        return 0
    except OSError as error:  # a full disk, or one that can't be read
        sys.stderr.write(f"purgatory journal: {error}\n")
        _write_no_more()
        return 2
    return status


def _write_no_more() -> None:
    """Discard what is still to be written. Otherwise the interpreter would try again at its end, and print an error."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory journal", description="Summarize, verify, seal and serve a journal."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=globals()[f"_{name}"])
        return sub

    def on_folder(name: str, text: str) -> argparse.ArgumentParser:
        sub = command(name, text)
        sub.add_argument("folder", type=Path, metavar="DIR", help="folder of a journal or trace")
        return sub

    look = command("summary", "summarize outcomes by type, waits, and the hottest keys")
    what = "folder of one or several journals, one file, or JSON lines (- for stdin)"
    look.add_argument("source", metavar="SOURCE", help=what)
    add_normal(look)
    look.add_argument("--top", type=whole, default=10, metavar="N", help="number of keys to show (default 10)")
    look.add_argument("--json", action="store_true", help="print one line of JSON")
    add_range(look, "summarize operations that left")
    _allow_gaps(look)
    on_folder("verify", "check every checksum, and that no record is missing or doubled")
    tail = on_folder("tail", "print the last records as JSON lines")
    tail.add_argument("-n", type=int, default=10, metavar="N", help="number of records (default 10, -1 for all)")
    tail.add_argument("-f", "--follow", action="store_true", help="print new records as they are written")
    _allow_gaps(tail)
    on_folder("seal", "seal the segments that a killed writer left open, as Parquet if pyarrow is installed")
    keep = on_folder("retain", "delete the oldest sealed segments, also while a writer runs")
    keep.add_argument("--bytes", type=_size, metavar="SIZE", help="largest total size to keep, such as 500M or 20G")
    keep.add_argument("--age", type=seconds, metavar="TIME", help="greatest age to keep, such as 12h or 7d")
    keep.add_argument("--dry-run", action="store_true", help="print the segments, delete nothing")
    web = on_folder("serve", "serve the journal over HTTP until interrupted")
    web.add_argument("--port", type=int, default=9097, help="port to listen on, 0 for a free one (default 9097)")
    web.add_argument("--addr", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add_token(web, "token that readers must send, required unless on loopback")
    return parser


def _allow_gaps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-gaps", action="store_true", help="continue if records are missing or doubled")


def _summary(options: argparse.Namespace) -> int:
    summary = summarize_source(
        options.source,
        top=options.top,
        allow_gaps=options.allow_gaps,
        normal=Normal.of(options),
        since_us=options.since,
        until_us=options.until,
    )
    if not summary.records and not summary.aside and (options.since, options.until) != (None, None):
        raise JournalError(f"{options.source} holds no record of an operation that left in this range of time")
    sys.stdout.write(as_json(summary) if options.json else as_text(summary, options.source))
    return 0


def _verify(options: argparse.Namespace) -> int:
    statuses = []
    for folder in journals_in(options.folder):
        if folder != options.folder:
            _print(f"{folder}:")
        statuses.append(_verify_one(folder))
    return max(statuses)


def _verify_one(folder: Path) -> int:
    verdict = verify(folder)
    _print(f"{verdict.rows} records, sequence {verdict.first} to {verdict.last}")
    _print(f"{verdict.segments} segments, {verdict.open_segments} of them open")
    if verdict.torn_bytes:
        _print(f"{verdict.torn_bytes} bytes of a torn tail: not acknowledged, cut off at the next start")
    _print(f"{verdict.missing} missing, {verdict.doubled} doubled, {verdict.damaged_bytes} bytes damaged")
    if verdict.dropped:
        _print(f"{verdict.dropped} more were dropped by the writer, and are in no segment")
    for line in verdict.damaged:
        _print(line)
    _print("sound" if verdict.ok else "NOT sound")
    return 0 if verdict.ok else 1


def _tail(options: argparse.Namespace) -> int:
    after = tip(options.folder, there=options.allow_gaps)["last"] - options.n if options.n >= 0 else -1
    rows = _follow if options.follow else read
    for row in rows(options.folder, after, allow_gaps=options.allow_gaps):
        _print(json.dumps(attrs.asdict(row), ensure_ascii=False))
    return 0


def _follow(folder: Path, after: int, *, allow_gaps: bool) -> Iterator[Record | TraceRow]:
    while True:
        for row in read(folder, after, allow_gaps=allow_gaps):
            after = row.seq
            yield row
        sys.stdout.flush()
        time.sleep(0.2)


def _seal(options: argparse.Namespace) -> int:
    if not options.folder.is_dir():
        raise JournalError(f"{options.folder} is not a folder")
    with FolderLock(options.folder):
        recover(options.folder)
        for segment in list_segments(options.folder) if has_parquet() else ():
            if segment.path.suffix == ".frames":
                seal(segment.path)
        for segment in list_segments(options.folder):
            _print(segment.path.name)
    return 0


def _retain(options: argparse.Namespace) -> int:
    if options.bytes is None and options.age is None:
        raise JournalError("say what may stay: --bytes, --age, or both")
    tip(options.folder)
    gone = retain(options.folder, most_bytes=options.bytes, most_seconds=options.age, dry_run=options.dry_run)
    for name in gone.names:
        _print(name)
    _print(f"{gone.segments} segments, {gone.bytes:,} bytes {'would go' if options.dry_run else 'deleted'}")
    return 0


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 500M or 20G")
    return round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2]])


def _serve(options: argparse.Namespace) -> int:
    tip(options.folder)
    with serve(options.folder, options.port, options.addr, token=options.token) as server:
        _print(f"serving {options.folder} at {server.url}")
        sys.stdout.flush()
        while True:
            time.sleep(3600)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
