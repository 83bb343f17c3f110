"""`purgatory pipeline COMMAND`: parse, start Spark, hand over."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory._distribution import MissingExtra
from purgatory.journal.records import KEEP_KEYS_MS
from purgatory.journal.records.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 1000 * 365.25 * 86_400


def seconds(text: str) -> float:
    """A length of time: `90`, `60s`, `5m`, `250ms`, `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", text)
    if match is None or float(match[1]) <= 0:
        message = f"{text!r} is no length of time: write 90, 60s, 5m, 250ms or 1h"
        raise argparse.ArgumentTypeError(message)
    found = float(match[1]) * _UNITS[match[2] or "s"]
    if found > _LONGEST_S:
        message = f"{text!r} is longer than a thousand years"
        raise argparse.ArgumentTypeError(message)
    return found


def instant_us(text: str) -> int:
    """An instant in microseconds since the epoch: `2026-11-23T10:00:00Z`, or a length of time before now, as `1h`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return round((time.time() - seconds(text)) * 1_000_000)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _range(sub: argparse.ArgumentParser, what: str) -> None:
    for name, end in (("--since", "from this instant on"), ("--until", "before this instant")):
        how = f"{what} {end}: 2026-11-23T10:00:00Z (UTC by default), or 1h for an hour ago"
        sub.add_argument(name, type=instant_us, metavar="TIME", help=how)


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
    parser = argparse.ArgumentParser(prog="purgatory pipeline", description="Spark over journals and traces.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=globals()[f"_{name}"])
        if name not in ("gen", "compact"):
            sub.add_argument("--master", metavar="URL", help="Spark's master (default: this machine's cores)")
            sub.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting for Spark")
        return sub

    _report_arguments(command("report", "Tables and a page from journals."))

    _stream_arguments(
        command("stream", "The purgatory on the cluster: operations and events in, every operation's answer out.")
    )

    sub = command("monitor", "Windowed outcomes over a journal, live.")
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--journal", metavar="DIR|URL")
    what.add_argument("--stream", metavar="DIR", help="a stream's checkpoint: say once what is parked in it")
    sub.add_argument("--out", metavar="DIR", help="Parquet instead of the console")
    sub.add_argument("--checkpoint", metavar="DIR")
    sub.add_argument("--window", type=whole_seconds, default=10)
    sub.add_argument("--delay", type=whole_seconds, default=5)
    sub.add_argument("--allow-gaps", action="store_true", help="go on where records are missing")
    sub.add_argument("--once", action="store_true")

    sub = command("compact", "Merge the small files of a Delta table of answers, also while a stream writes to it.")
    sub.add_argument("--answers", required=True, metavar="DIR", help="the --out of a stream with --format delta")
    sub.add_argument(
        "--retention",
        type=seconds,
        default=7 * 86_400.0,
        metavar="TIME",
        help="keep replaced files so long (default 7d)",
    )

    sub = command("replay", "Every operation's answer from a whole trace, in one batch.")
    sub.add_argument("--trace", required=True, metavar="DIR")
    sub.add_argument("--out", required=True, metavar="DIR")
    _keep_keys(sub)
    _range(sub, "answer rows")
    sub.add_argument("--allow-gaps", action="store_true", help="go on where rows are missing, and say which")

    sub = command("whatif", "Try timeouts, purge intervals, wheels and shards out on what has happened.")
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--trace", metavar="DIR", help="exact")
    which.add_argument("--journal", metavar="DIR", help="an estimate, up to the timeouts in use")
    _range(sub, "try out what happened")
    _engine(sub)
    _normal(sub)
    sub.add_argument("--grid", metavar="FILE", help="TOML or JSON; what it leaves out has a default")
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument("--allow-gaps", action="store_true", help="go on where rows are missing, and say which")

    sub = command("verify", "Library = stream = batch twin, operation by operation, on seeded workloads.")
    sub.add_argument("--workload", action="append", metavar="NAME", help="may be repeated (default: all)")
    sub.add_argument("--operations", type=int, default=2_000)
    sub.add_argument("--seed", type=int, default=1)

    sub = command("gen", "A workload: a trace, or a journal to report on.")
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument("--workload", default="kafka", metavar="NAME", help="a trace's kind, or journal")
    sub.add_argument("--operations", type=int, default=10_000)
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--files", type=int, default=8)
    sub.add_argument("--flush", action="store_true", help="end with a row that lets a stream settle all that is open")
    return parser


def _keep_keys(sub: argparse.ArgumentParser) -> None:
    how = "forget a key that no row has named for so long, or `forever` (default 7d)"
    sub.add_argument("--keep-keys", type=_time_to_keep, default=KEEP_KEYS_MS, metavar="TIME", help=how)


def _time_to_keep(text: str) -> int | None:
    return None if text == "forever" else round(seconds(text) * 1000)


def _stream_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--in", dest="source", required=True, metavar="DIR", help="a folder of sealed trace files")
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument("--checkpoint", required=True, metavar="DIR", help="it fixes --buckets, --partitions, --keep-keys")
    sub.add_argument("--delay", type=seconds, default=5.0, help="how late a row may come (default 5s)")
    sub.add_argument("--buckets", type=int, default=16, help="a power of two up to 65536 (default 16)")
    sub.add_argument("--partitions", type=int, default=4, help="tasks of a stage (default 4)")
    _keep_keys(sub)
    sub.add_argument("--files-per-batch", type=int, default=1000)
    sub.add_argument("--files-out", type=int, default=1, help="files that a batch writes at most, of each part")
    sub.add_argument(
        "--format", choices=("parquet", "delta"), default="parquet", help="of the answers (default parquet)"
    )
    sub.add_argument("--trigger", type=seconds, default=0.0, metavar="TIME", help="no batch sooner than so long")
    sub.add_argument("--allow-gaps", action="store_true", help="start also where a segment is missing in between")
    sub.add_argument("--once", action="store_true", help="stop when the input is used up")
    sub.add_argument("--quiet", action="store_true", help="no line for each batch")


def _engine(sub: argparse.ArgumentParser) -> None:
    how = "read a journal in this process (local), or with Spark (default: auto, by size; a trace needs Spark)"
    sub.add_argument("--engine", choices=("auto", "local", "spark"), default="auto", help=how)


def _normal(sub: argparse.ArgumentParser) -> None:
    for name, way in (("--expiry-normal", "by their deadline"), ("--cancel-normal", "by a cancel")):
        how = f"a type whose operations end {way} as a rule (may be repeated)"
        sub.add_argument(name, action="append", default=[], metavar="TYPE", help=how)


def _report_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--journal",
        type=place,
        required=True,
        action="append",
        metavar="DIR",
        help="a journal's folder, or one that holds journals' folders; may be repeated: they are reported on together",
    )
    sub.add_argument("--out", required=True, metavar="DIR")
    sub.add_argument(
        "--engine",
        choices=("auto", "local", "spark"),
        default="auto",
        help="local goes over the journal in this process, without Spark (default: auto, by size)",
    )
    _range(sub, "report on operations that left")
    sub.add_argument("--against", metavar="DIR", help="an earlier report's folder, to compare with")
    sub.add_argument(
        "--allow-gaps", action="store_true", help="report on the rest where records are missing, and say so"
    )
    sub.add_argument("--window", type=whole_seconds, help="length of a window, as 60s (by default, as fits the span)")
    sub.add_argument("--title", default="", help="the page's heading")
    _normal(sub)
    sub.add_argument("--quiet", action="store_true", help="no progress")


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
