"""The arguments of each ``purgatory pipeline COMMAND``."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Final

from purgatory.journal.records import KEEP_KEYS_MS
from purgatory.journal.records.instants import add_range, milliseconds, seconds
from purgatory.journal.records.normal import add_normal


def place(text: str) -> str:
    """A folder or place. An empty name is rejected, because it would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty: give a folder, or . for the current one")
    return text


def whole_seconds(text: str) -> int:
    """A length of time of at least a second, in whole seconds."""
    value = seconds(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is shorter than a second")
    return round(value)


def limit(text: str) -> float:
    """A number of rows as an ``int``, or with ``%`` a share of them as a ``float`` (0.5% is 0.005)."""
    share = text.endswith("%")
    with suppress(ValueError):
        value = float(text.removesuffix("%")) / 100 if share else int(text)
        if 0 <= value <= (1 if share else value):
            return value
    raise argparse.ArgumentTypeError(f"must be a number or a share such as 0.1%, got {text!r}")


def parser() -> argparse.ArgumentParser:
    """The parser. It leaves the name of the command as ``command``."""
    top = argparse.ArgumentParser(
        prog="purgatory pipeline", description="Reports, replays and streams over journals and traces."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (text, add) in _COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add(sub)
        if name != "compact":
            where = sub.add_mutually_exclusive_group()
            where.add_argument("--master", metavar="URL", help="Spark master (default: local cores)")
            how = "Spark Connect server, such as sc://host:15002 (default: SPARK_REMOTE)"
            where.add_argument("--remote", metavar="URL", help=how)
            how = "Spark setting (may be repeated)"
            sub.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=how)
    return top


def _report(sub: argparse.ArgumentParser) -> None:
    how = "folder of one or several journals (may be repeated)"
    sub.add_argument("--journal", type=place, required=True, action="append", metavar="DIR", help=how)
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the report")
    _engine(sub)
    add_range(sub, "report on operations that left")
    sub.add_argument("--against", metavar="DIR", help="folder of an earlier report to compare with")
    sub.add_argument("--allow-gaps", action="store_true", help="report on the rest if records are missing")
    how = "length of a window, such as 60s (default: at most 90 windows)"
    sub.add_argument("--window", dest="window_s", metavar="WINDOW", type=whole_seconds, help=how)
    sub.add_argument("--title", default="", help="heading of the page (default: the journal's instance)")
    add_normal(sub)
    _max_malformed(sub)
    sub.add_argument("--quiet", action="store_true", help="print no progress")


def _stream(sub: argparse.ArgumentParser) -> None:
    how = "folder of a trace, or a table with its columns"
    sub.add_argument("--in", "--trace", dest="source", required=True, metavar="DIR|TABLE", help=how)
    sub.add_argument("--out", required=True, metavar="DIR|TABLE", help="folder or table for the answers")
    how = "folder that fixes --buckets, --partitions, --keep-keys"
    sub.add_argument("--checkpoint", required=True, metavar="DIR", help=how)
    how = "how late a row may come (default 5s)"
    sub.add_argument("--delay", dest="delay_ms", type=milliseconds, default=5_000, metavar="TIME", help=how)
    how = "number of buckets, a power of two up to 65536 (default 16)"
    sub.add_argument("--buckets", type=int, default=16, help=how)
    sub.add_argument("--partitions", type=int, default=4, help="tasks per stage (default 4)")
    _keep_keys(sub)
    sub.add_argument("--files-per-batch", type=int, default=1000, help="most files to read per batch (default 1000)")
    how = "most bytes to read per batch, instead of --files-per-batch"
    sub.add_argument("--bytes-per-batch", type=int, metavar="BYTES", help=how)
    sub.add_argument("--files-out", type=int, default=1, help="most files to write per batch and part (default 1)")
    how = "format of the answers (default parquet, or what the catalog of a table makes)"
    sub.add_argument("--format", choices=("parquet", "delta", "iceberg"), default="parquet", help=how)
    how = "shortest time between batches (default 0)"
    sub.add_argument("--trigger", dest="trigger_s", type=seconds, default=0.0, metavar="TIME", help=how)
    sub.add_argument("--allow-gaps", action="store_true", help="start also if a segment is missing")
    sub.add_argument("--once", action="store_true", help="stop at the end of the input")
    sub.add_argument("--quiet", action="store_true", help="print no line per batch")


def _monitor(sub: argparse.ArgumentParser) -> None:
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--journal", metavar="DIR|URL", help="folder of a journal, or the URL of a served one")
    what.add_argument("--stream", metavar="DIR", help="checkpoint of a stream: print once what is parked in it")
    sub.add_argument("--out", metavar="DIR", help="write Parquet to this folder, not to the console")
    sub.add_argument("--checkpoint", metavar="DIR", help="folder of the checkpoint, required with --out")
    how = "length of a window (default 10s)"
    sub.add_argument("--window", dest="window_s", metavar="WINDOW", type=whole_seconds, default=10, help=how)
    how = "how late a record may come (default 5s)"
    sub.add_argument("--delay", dest="delay_s", metavar="DELAY", type=whole_seconds, default=5, help=how)
    sub.add_argument("--allow-gaps", action="store_true", help="continue if records are missing")
    sub.add_argument("--once", action="store_true", help="stop at the end of the input")


def _compact(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--answers", required=True, metavar="DIR", help="--out of a stream with --format delta")
    how = "how long to keep replaced files (default 7d)"
    sub.add_argument("--retention", type=seconds, default=7 * 86_400.0, metavar="TIME", help=how)


def _replay(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--trace", required=True, metavar="DIR", help="folder of a trace")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    _engine(sub)
    _keep_keys(sub)
    add_range(sub, "answer rows")
    _max_malformed(sub)
    _gaps(sub)


def _whatif(sub: argparse.ArgumentParser) -> None:
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--trace", metavar="DIR", help="folder of a trace: exact results")
    which.add_argument("--journal", metavar="DIR", help="folder of a journal: estimates, up to the timeouts in use")
    add_range(sub, "use operations")
    _engine(sub)
    add_normal(sub)
    sub.add_argument("--grid", metavar="FILE", help="TOML or JSON file with the settings to try (default: built in)")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    _gaps(sub)


def _max_malformed(sub: argparse.ArgumentParser) -> None:
    how = "exit with status 3 if more rows cannot be true, a number or a share such as 0.1%% (default: any number)"
    sub.add_argument("--max-malformed", type=limit, metavar="N|SHARE%%", help=how)


def _keep_keys(sub: argparse.ArgumentParser) -> None:
    """Add ``--keep-keys``, in milliseconds as ``keep_ms``. None means forever."""
    how = "forget a key that no row has named for this time, or `forever` (default 7d)"
    sub.add_argument("--keep-keys", dest="keep_ms", type=_time_to_keep, default=KEEP_KEYS_MS, metavar="TIME", help=how)


def _time_to_keep(text: str) -> int | None:
    return None if text == "forever" else milliseconds(text)


def _engine(sub: argparse.ArgumentParser) -> None:
    how = "compute in this process (local) or with Spark (default auto, by size)"
    sub.add_argument("--engine", choices=("auto", "local", "spark"), default="auto", help=how)


def _gaps(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--allow-gaps", action="store_true", help="continue if rows are missing, and list them")


_COMMANDS: Final = {
    "report": ("report on journals: a page and tables", _report),
    "stream": ("compute the outcome of each operation of a trace, continuously", _stream),
    "monitor": ("show outcomes by window while a journal is written", _monitor),
    "compact": ("merge the small files of a Delta table, also while a stream writes to it", _compact),
    "replay": ("compute the outcome of each operation of a trace, in one batch", _replay),
    "whatif": ("try other timeouts, purge intervals, wheels and shards on recorded operations", _whatif),
}
