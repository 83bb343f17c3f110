"""`purgatory pipeline COMMAND`: parse, start Spark, hand over."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory._distribution import MissingExtra
from purgatory.journal.records import KEEP_KEYS_MS
from purgatory.journal.records.errors import JournalError
from purgatory.journal.records.instants import add_range, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence


def place(text: str) -> str:
    """Where something is; no name at all would be the folder that one happens to be in."""
    if not text:
        message = "it has no name: give a folder, or . for this one"
        raise argparse.ArgumentTypeError(message)
    return text


def whole_seconds(text: str) -> int:
    """A length of time of at least a second, in whole seconds."""
    value = seconds(text)
    if value < 1:
        message = f"{text!r} is shorter than a second"
        raise argparse.ArgumentTypeError(message)
    return round(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    options = _parser().parse_args(argv)
    try:
        if "master" in options and (options.master or options.conf):
            from purgatory.pipeline.spark.session import say

            say(options.master, options.conf)
        status: int = options.run(options)
    except (JournalError, ValueError) as error:
        sys.stderr.write(f"purgatory pipeline: {error}\n")
        return 2
    except ImportError as error:
        remedy = "; install it with: pip install 'delayed-operation-purgatory[spark]'"
        sys.stderr.write(f"purgatory pipeline: {error}{'' if isinstance(error, MissingExtra) else remedy}\n")
        return 2
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        sys.stderr.write(f"purgatory pipeline: Spark failed: {spark_says(error)}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def spark_says(error: Exception) -> str:
    """The one line that matters of what Spark says when a job has failed: the cause, without the stacks around it."""
    text = str(error).partition("=== Streaming Query ===")[0]  # the query's plan, which says nothing about it
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    lines = [line for line in lines if line != "Driver stacktrace:"]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Exception|Error): ", line)]
    told = causes[-1].removeprefix("Caused by: ") if causes else (lines or [type(error).__name__])[0]
    segments = sorted(set(_SEGMENT.findall(str(error))))
    if segments and not any(name in told for name in segments):
        told = f"{', '.join(segments[:3])}: {told}"
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 1]}…"


_LONGEST = 500
_SEGMENT = re.compile(r"(?:journal|trace)-\d{20}-\d{20}\.parquet")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory pipeline", description="Reports, replays and streams over journals and traces."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=globals()[f"_{name}"])
        if name not in ("gen", "compact"):
            sub.add_argument("--master", metavar="URL", help="Spark master (default: local cores)")
            sub.add_argument(
                "--conf", action="append", default=[], metavar="NAME=VALUE", help="Spark setting (may be repeated)"
            )
        return sub

    _report_arguments(command("report", "report on journals: a page and tables"))

    _stream_arguments(command("stream", "compute the outcome of each operation of a trace, continuously"))

    sub = command("monitor", "show outcomes by window while a journal is written")
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--journal", metavar="DIR|URL", help="folder of a journal, or the URL of a served one")
    what.add_argument("--stream", metavar="DIR", help="checkpoint of a stream: print once what is parked in it")
    sub.add_argument("--out", metavar="DIR", help="write Parquet to this folder, not to the console")
    sub.add_argument("--checkpoint", metavar="DIR", help="folder of the checkpoint, required with --out")
    sub.add_argument("--window", type=whole_seconds, default=10, help="length of a window (default 10s)")
    sub.add_argument("--delay", type=whole_seconds, default=5, help="how late a record may come (default 5s)")
    sub.add_argument("--allow-gaps", action="store_true", help="continue if records are missing")
    sub.add_argument("--once", action="store_true", help="stop at the end of the input")

    sub = command("compact", "merge the small files of a Delta table, also while a stream writes to it")
    sub.add_argument("--answers", required=True, metavar="DIR", help="--out of a stream with --format delta")
    sub.add_argument(
        "--retention",
        type=seconds,
        default=7 * 86_400.0,
        metavar="TIME",
        help="how long to keep replaced files (default 7d)",
    )

    sub = command("replay", "compute the outcome of each operation of a trace, in one batch")
    sub.add_argument("--trace", required=True, metavar="DIR", help="folder of a trace")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    _keep_keys(sub)
    add_range(sub, "answer rows")
    sub.add_argument("--allow-gaps", action="store_true", help="continue if rows are missing, and list them")

    sub = command("whatif", "try other timeouts, purge intervals, wheels and shards on recorded operations")
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--trace", metavar="DIR", help="folder of a trace: exact results")
    which.add_argument("--journal", metavar="DIR", help="folder of a journal: estimates, up to the timeouts in use")
    add_range(sub, "use operations")
    _engine(sub)
    _normal(sub)
    sub.add_argument("--grid", metavar="FILE", help="TOML or JSON file with the settings to try (default: built in)")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    sub.add_argument("--allow-gaps", action="store_true", help="continue if rows are missing, and list them")

    sub = command("verify", "compare library, stream and batch, operation by operation")
    sub.add_argument(
        "--workload", action="append", metavar="NAME", help="workload to compare (may be repeated, default: all)"
    )
    sub.add_argument("--operations", type=int, default=2_000, help="operations per workload (default 2000)")
    sub.add_argument("--seed", type=int, default=1, help="seed of the workloads (default 1)")

    sub = command("gen", "generate a trace or a journal")
    sub.add_argument("--out", required=True, metavar="DIR", help="local folder to write")
    sub.add_argument(
        "--workload", default="kafka", metavar="NAME", help="workload of a trace, or `journal` (default kafka)"
    )
    sub.add_argument("--operations", type=int, default=10_000, help="number of operations (default 10000)")
    sub.add_argument("--seed", type=int, default=1, help="seed of the workload (default 1)")
    sub.add_argument("--files", type=int, default=8, help="number of files (default 8)")
    sub.add_argument("--flush", action="store_true", help="end with a row that completes all open operations")
    return parser


def _keep_keys(sub: argparse.ArgumentParser) -> None:
    how = "forget a key that no row has named for this time, or `forever` (default 7d)"
    sub.add_argument("--keep-keys", type=_time_to_keep, default=KEEP_KEYS_MS, metavar="TIME", help=how)


def _time_to_keep(text: str) -> int | None:
    return None if text == "forever" else round(seconds(text) * 1000)


def _stream_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--in", dest="source", required=True, metavar="DIR", help="folder of a trace")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the answers")
    sub.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="folder that fixes --buckets, --partitions, --keep-keys"
    )
    sub.add_argument("--delay", type=seconds, default=5.0, help="how late a row may come (default 5s)")
    sub.add_argument(
        "--buckets", type=int, default=16, help="number of buckets, a power of two up to 65536 (default 16)"
    )
    sub.add_argument("--partitions", type=int, default=4, help="tasks per stage (default 4)")
    _keep_keys(sub)
    sub.add_argument("--files-per-batch", type=int, default=1000, help="most files to read per batch (default 1000)")
    sub.add_argument("--files-out", type=int, default=1, help="most files to write per batch and part (default 1)")
    sub.add_argument(
        "--format", choices=("parquet", "delta"), default="parquet", help="format of the answers (default parquet)"
    )
    sub.add_argument(
        "--trigger", type=seconds, default=0.0, metavar="TIME", help="shortest time between batches (default 0)"
    )
    sub.add_argument("--allow-gaps", action="store_true", help="start also if a segment is missing")
    sub.add_argument("--once", action="store_true", help="stop at the end of the input")
    sub.add_argument("--quiet", action="store_true", help="print no line per batch")


def _engine(sub: argparse.ArgumentParser) -> None:
    how = "read a journal in this process (local) or with Spark (default auto, by size)"
    sub.add_argument("--engine", choices=("auto", "local", "spark"), default="auto", help=how)


def _normal(sub: argparse.ArgumentParser) -> None:
    for name, way in (("--expiry-normal", "expiry"), ("--cancel-normal", "cancellation")):
        how = f"count each {way} of this type as a good end (may be repeated)"
        sub.add_argument(name, action="append", default=[], metavar="TYPE", help=how)


def _report_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--journal",
        type=place,
        required=True,
        action="append",
        metavar="DIR",
        help="folder of one or several journals (may be repeated)",
    )
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the report")
    sub.add_argument(
        "--engine",
        choices=("auto", "local", "spark"),
        default="auto",
        help="read the journal in this process (local) or with Spark (default auto, by size)",
    )
    add_range(sub, "report on operations that left")
    sub.add_argument("--against", metavar="DIR", help="folder of an earlier report to compare with")
    sub.add_argument("--allow-gaps", action="store_true", help="report on the rest if records are missing")
    sub.add_argument(
        "--window", type=whole_seconds, help="length of a window, such as 60s (default: at most 90 windows)"
    )
    sub.add_argument("--title", default="", help="heading of the page (default: the journal's instance)")
    _normal(sub)
    sub.add_argument("--quiet", action="store_true", help="print no progress")


def _report(options: argparse.Namespace) -> int:
    from purgatory.pipeline.report import OF_AN_EARLIER, Wishes, report
    from purgatory.pipeline.rows.between import Between
    from purgatory.pipeline.spark.outputs import fetched, placed
    from purgatory.pipeline.tables.engine import engine_for

    engine = engine_for(options.journal, options.engine, Between(options.since, options.until))
    with (
        fetched(options.against, OF_AN_EARLIER, "report") as against,
        placed(options.out, "report") as folder,
    ):
        wishes = Wishes(
            window_s=options.window,
            title=options.title,
            expiry_normal=options.expiry_normal,
            cancel_normal=options.cancel_normal,
            against=against,
            allow_gaps=options.allow_gaps,
            quiet=options.quiet,
        )
        if not options.quiet:
            sys.stderr.write(f"{sum(map(len, engine.expected)):,} records, engine {engine.name}\n")
        report(engine, folder, wishes)
    _print(_page_of(options.out))
    return 0


def _page_of(out: str) -> str:
    return f"{out.rstrip('/')}/index.html" if "://" in out else str(Path(out, "index.html").resolve())


def _stream(options: argparse.Namespace) -> int:
    from purgatory.pipeline import stream
    from purgatory.pipeline.rows.completeness import check_streamable
    from purgatory.pipeline.spark import places
    from purgatory.pipeline.spark.session import session

    settings = stream.StreamSettings(
        delay_ms=round(options.delay * 1000),
        buckets=options.buckets,
        partitions=options.partitions,
        keep_ms=options.keep_keys,
        files_per_batch=options.files_per_batch,
        files_out=options.files_out,
        trigger_s=options.trigger,
        format=options.format,
        once=options.once,
    )
    if "://" not in options.source:
        check_streamable(Path(options.source), allow_gaps=options.allow_gaps)
    spark = session("stream")
    tell = None if options.quiet else lambda progress: sys.stderr.write(f"{progress}\n")
    counts = stream.run(spark, options.source, options.out, options.checkpoint, settings, tell=tell)
    _print(f"{counts['rows']:,} rows in {counts['batches']} batches and {counts['seconds']:.1f} s")
    if any(places.exists(spark, f"{options.out}/{log}") for log in ("_spark_metadata", "_delta_log")):
        for row in stream.answers(spark, options.out).groupBy("part", "outcome").count().orderBy("part").collect():
            _print(f"{row['part']:<10} {row['outcome'] or '':<10} {row['count']:>12,}")
    return 0


def _compact(options: argparse.Namespace) -> int:
    from datetime import timedelta

    from purgatory.pipeline.spark import delta

    if not delta.is_table(options.answers):
        message = f"--answers must be a Delta table, got {options.answers!r}: run the stream with --format delta"
        raise ValueError(message)
    _print(str(delta.compact(options.answers, retention=timedelta(seconds=options.retention))))
    return 0


def _monitor(options: argparse.Namespace) -> int:
    from purgatory.pipeline import monitor
    from purgatory.pipeline.spark.session import session

    if options.out and not options.checkpoint:
        message = "--out needs --checkpoint: it is what makes the output exact after a restart"
        raise ValueError(message)
    if options.stream:
        from purgatory.pipeline.state.checkpoint_state import standing

        _print(str(standing(session("monitor"), options.stream)))
        return 0
    monitor.start(
        session("monitor"),
        options.journal,
        options.out,
        options.checkpoint,
        window_s=options.window,
        delay_s=options.delay,
        once=options.once,
        allow_gaps=options.allow_gaps,
    ).awaitTermination()
    return 0


def _replay(options: argparse.Namespace) -> int:
    from purgatory.journal.records import TRACE
    from purgatory.pipeline.replay import answered, judge
    from purgatory.pipeline.rows.between import Between
    from purgatory.pipeline.rows.completeness import load_whole
    from purgatory.pipeline.spark import places
    from purgatory.pipeline.spark.session import session

    spark = session("replay")
    places.classic(spark, "replay")
    places.writable(spark, options.out)
    trace, missing = load_whole(
        spark, options.trace, TRACE, allow_gaps=options.allow_gaps, between=Between(options.since, options.until)
    )
    for line in missing:
        _print(f"not read: {line}")
    found = judge(trace, None if options.keep_keys is None else options.keep_keys * 1000)
    answers = f"{options.out}/answers"
    answered(found.rows, found.forgotten).write.mode("overwrite").parquet(answers)
    found.malformed.write.mode("overwrite").parquet(f"{options.out}/malformed")
    for row in spark.read.parquet(answers).groupBy("outcome").count().orderBy("outcome").collect():
        _print(f"{row['outcome']:<10} {row['count']:>12,}")
    _print(f"{'malformed':<10} {spark.read.parquet(f'{options.out}/malformed').count():>12,}")
    return 0


def _whatif(options: argparse.Namespace) -> int:
    from purgatory.pipeline.rows.between import Between
    from purgatory.pipeline.spark.outputs import placed
    from purgatory.pipeline.summaries.choices import Grid
    from purgatory.pipeline.tables.engine import chosen_for
    from purgatory.pipeline.whatif import whatif

    grid = Grid() if options.grid is None else Grid.read(options.grid)
    given = {"trace": options.trace, "journal": options.journal, "allow_gaps": options.allow_gaps}
    given["between"] = Between(options.since, options.until)
    given["normal"] = frozenset([*options.expiry_normal, *options.cancel_normal])
    local = options.trace is None and chosen_for([options.journal], options.engine) == "local"
    with placed(options.out, "whatif") as folder:
        spark = None
        if not local:
            from purgatory.pipeline.spark.session import session

            spark = session("whatif")
        path = whatif(spark, str(folder), grid, **given)
        chosen = json.loads((path.parent / "choice.json").read_text(encoding="utf-8"))
    for each in chosen:
        _print(f"{each['setting']:<15} {each['of']:<28} {each['value']:>8,}   {each['why']}")
    _print(_page_of(options.out))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from purgatory.pipeline.rows.gen import WORKLOADS
    from purgatory.pipeline.spark.session import session
    from purgatory.pipeline.verify import verify

    names = options.workload or list(WORKLOADS)
    _known(names, list(WORKLOADS))
    spark = session("verify", {"spark.sql.shuffle.partitions": "2"})
    _print(f"{'workload':<14} {'operations':>10} {'late':>6} {'malformed':>9} {'differ: stream':>15} {'library':>8}")
    compared = different = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="purgatory-verify-") as folder:
            found = verify(spark, name, Path(folder) / "run", operations=options.operations, seed=options.seed)
        _print(
            f"{name:<14} {found.operations:>10,} {found.late:>6,} {found.malformed:>9,} "
            f"{found.stream_differs:>15,} {found.library_differs:>8,}"
        )
        compared += found.operations
        different += found.differences
    _print(f"{compared:,} operations compared, {different:,} differences")
    return 1 if different else 0


def _gen(options: argparse.Namespace) -> int:
    import attrs

    from purgatory.journal.records import JOURNAL, TRACE
    from purgatory.pipeline.rows import gen
    from purgatory.pipeline.verify import place_trace

    _known([options.workload], [*gen.WORKLOADS, "journal"])
    if "://" in options.out:
        message = f"{options.out} can't be used: gen writes into a folder of this machine"
        raise ValueError(message)
    folder = Path(options.out)
    if folder.exists() and not folder.is_dir():
        message = f"{folder} is a file: give a new folder"
        raise ValueError(message)
    if folder.exists() and any(folder.iterdir()):
        message = f"{folder} is not empty: give a new folder"
        raise ValueError(message)
    if options.workload == "journal":
        gen.write(folder, gen.journal(options.operations, options.seed), JOURNAL, files=options.files)
        return 0
    shape = attrs.evolve(gen.WORKLOADS[options.workload], operations=options.operations, events=2 * options.operations)
    if options.flush:
        place_trace(folder, shape, options.seed, options.files)
    else:
        gen.write(folder, gen.trace(shape, options.seed), TRACE, files=options.files)
    return 0


def _known(names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        message = f"unknown workload {', '.join(unknown)}: choose from {', '.join(known)}"
        raise ValueError(message)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
