"""``purgatory pipeline COMMAND``: parse the arguments and run the command."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory._distribution import NAME, MissingExtra
from purgatory.journal.records import JOURNAL, TRACE
from purgatory.journal.records.errors import JournalDamaged, JournalError
from purgatory.journal.records.normal import Normal
from purgatory.pipeline._arguments import parser
from purgatory.pipeline._rows.validity import DataError, check_malformed
from purgatory.pipeline._spark.errors import PlaceMissing, describe, is_sparks
from purgatory.pipeline._spark.places import inside, is_folder, is_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from purgatory.journal.records import Schema
    from purgatory.pipeline._tables.local import Local

#: The extra that brings a missing package. ``report`` brings all others, and needs neither Spark nor Java.
_EXTRAS = {"deltalake": "delta", "pyiceberg": "iceberg"} | dict.fromkeys(
    ("google", "pandas", "py4j", "pyspark"), "spark"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit status."""
    options = parser().parse_args(argv)
    try:
        if "master" in options and (options.master or options.remote or options.conf):
            from purgatory.pipeline._spark.session import configure

            configure(options.master, options.remote, options.conf)
        status: int = globals()[f"_{options.command}"](options)
    except (JournalError, ValueError) as error:
        sys.stderr.write(f"purgatory pipeline: {error}\n")
        return 3 if isinstance(error, (DataError, JournalDamaged)) else 2
    except ImportError as error:
        needs_spark = options.command in {"monitor", "stream"}
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "spark" if needs_spark else "report")
        remedy = f"; install it with: pip install '{NAME}[{extra}]'"
        sys.stderr.write(f"purgatory pipeline: {error}{'' if isinstance(error, MissingExtra) else remedy}\n")
        return 2
    except Exception as error:
        if not is_sparks(error):
            raise
        sys.stderr.write(f"purgatory pipeline: Spark failed: {describe(error)}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _report(options: argparse.Namespace) -> int:
    from purgatory.pipeline._spark.outputs import local_copy, output_folder
    from purgatory.pipeline.report import COMPARISON_FILES, ReportOptions, report

    engine = _engine(options, options.journal, JOURNAL)
    with (
        local_copy(options.against, COMPARISON_FILES, "report") as against,
        output_folder(options.out, "report") as folder,
    ):
        given = {name: getattr(options, name) for name in ("window_s", "title", "allow_gaps", "quiet")}
        settings = ReportOptions(**given, normal=Normal.of(options), against=against)
        if not options.quiet:
            sys.stderr.write(f"{sum(map(len, engine.expected)):,} records, engine {engine.name}\n")
        report(engine, folder, settings)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    _print(_page_of(options.out))
    check_malformed(about["malformed"], about["rows"], options.max_malformed)
    return 0


def _engine(options: argparse.Namespace, folders: Sequence[str], schema: Schema) -> Local:
    from purgatory.pipeline._rows.between import Between
    from purgatory.pipeline._tables.engine import engine_for

    between = Between(options.since, options.until)
    return engine_for(folders, options.engine, between, schema=schema, command=options.command)


def _page_of(out: str) -> str:
    if is_folder(out):
        return str(Path(out, "index.html").resolve())
    return inside(out, "files" if is_table(out) else "index.html")


def _stream(options: argparse.Namespace) -> int:
    from attrs import fields_dict

    from purgatory.pipeline import stream
    from purgatory.pipeline._rows.completeness import check_streamable
    from purgatory.pipeline._spark.session import session
    from purgatory.pipeline._spark.sinks import aside_of

    settings = stream.StreamSettings(**{name: getattr(options, name) for name in fields_dict(stream.StreamSettings)})
    if is_folder(options.source):
        check_streamable(Path(options.source), allow_gaps=options.allow_gaps)
    spark = session("stream")
    on_progress = None if options.quiet else lambda progress: sys.stderr.write(f"{progress}\n")
    counts = stream.run(spark, options.source, options.out, options.checkpoint, settings, on_progress=on_progress)
    _print(f"{counts['rows']:,} rows in {counts['batches']} batches and {counts['seconds']:.1f} s")
    for out, kind in ((options.out, "outcome"), (aside_of(options.out), "part")):
        with suppress(PlaceMissing):
            for row in stream.answers(spark, out, options.format).groupBy(kind).count().orderBy(kind).collect():
                _print(f"{row[kind]:<10} {row['count']:>12,}")
    return 0


def _compact(options: argparse.Namespace) -> int:
    from purgatory.pipeline._spark.delta import compact

    _print(compact(options.answers, retention_s=options.retention))
    return 0


def _monitor(options: argparse.Namespace) -> int:
    from purgatory.pipeline import monitor
    from purgatory.pipeline._spark.session import session

    if options.out and not options.checkpoint:
        raise ValueError("--out needs --checkpoint: it is what makes the output exact after a restart")
    if options.stream:
        from purgatory.pipeline._state.checkpoint_state import read_status

        _print(str(read_status(session("monitor"), options.stream)))
        return 0
    names = ("journal", "out", "checkpoint", "window_s", "delay_s", "once", "allow_gaps")
    monitor.run(session("monitor"), **{name: getattr(options, name) for name in names})
    return 0


def _replay(options: argparse.Namespace) -> int:
    from contextlib import nullcontext

    from purgatory.pipeline._spark.outputs import output_folder
    from purgatory.pipeline.replay import replay

    engine = _engine(options, [options.trace], TRACE)
    keep_us = None if options.keep_ms is None else options.keep_ms * 1000
    with nullcontext(options.out) if engine.name == "spark" else output_folder(options.out, "replay") as out:
        replayed = replay(engine, str(out), keep_us=keep_us, allow_gaps=options.allow_gaps)
    for line in replayed.missing:
        _print(f"not read: {line}")
    for line in replayed.unexplained:
        _print(f"answered by levels and first deadlines alone: {line}")
    for name, count in {**replayed.counts, "malformed": replayed.malformed}.items():
        _print(f"{name:<10} {count:>12,}")
    check_malformed(replayed.malformed, replayed.rows, options.max_malformed)
    return 0


def _whatif(options: argparse.Namespace) -> int:
    from purgatory.pipeline._spark.outputs import output_folder
    from purgatory.pipeline._summaries.choices import Grid
    from purgatory.pipeline.whatif import whatif

    grid = Grid() if options.grid is None else Grid.read(options.grid)
    normal = Normal.of(options)
    place, schema = (options.journal, JOURNAL) if options.trace is None else (options.trace, TRACE)
    with output_folder(options.out, "whatif") as folder:
        path = whatif(_engine(options, [place], schema), folder, grid, allow_gaps=options.allow_gaps, normal=normal)
        chosen = json.loads((path.parent / "choice.json").read_text(encoding="utf-8"))
    for each in chosen:
        _print(f"{each['setting']:<15} {each['of']:<28} {each['value']:>8,}   {each['why']}")
    _print(_page_of(options.out))
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
