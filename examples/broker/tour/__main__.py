"""The order of events. ``make run`` runs it. The package's docstring describes it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from examples.broker.tour.ledger import Ledger
from examples.broker.tour.settings import Settings
from examples.broker.tour.spark import Installation, Report, ReportError, equal_tables, what_is_missing

if TYPE_CHECKING:
    from examples.broker.tour.cluster import Cluster

_REPLICAS = 3
_KEPT_RATE = 20.0
_STOPPED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.broker.tour", description="A replicated broker under load."
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="how long the load lasts (12)")
    parser.add_argument("--rate", type=float, default=300.0, help="records a second (300)")
    parser.add_argument("--stop-at", type=float, help="when a leader is killed (after a quarter)")
    parser.add_argument("--resume-at", type=float, help="when it is started again (at 0.6 of the time)")
    parser.add_argument("--folder", type=Path, help="for logs, journal and report (var/run/tour-...)")
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C, with a little load")
    parser.add_argument("--no-report", action="store_true", help="without the page of the journal")
    parser.add_argument("--install-spark", default="", metavar="COMMAND", help="run this beside the load (nothing)")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    chosen = {"stop_at": options.stop_at, "resume_at": options.resume_at}
    given = {name: value for name, value in chosen.items() if value is not None}
    return Settings(seconds=options.seconds, rate=options.rate, **given)


def _make_page(journal: Path, folder: Path, installation: Installation) -> Path:
    """The report's page. Where Spark is, it makes the same tables of the same journal."""
    # As it is now: the cluster goes on, and its followers' idle polls while Spark starts would fill the page.
    load = shutil.copytree(journal, folder / "journal" / "load")
    print("\nThe journal of what just ran becomes a page, by DuckDB in one process:\n", flush=True)
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(Report(load, folder / "report"))
        spark = None
        if installation.is_over and what_is_missing() is None:  # its JVM starts while DuckDB works
            spark = stack.enter_context(Report(load, folder / "report-spark", engine="spark"))
        page = local.show()
        if not installation.is_over:
            print("\nPySpark is being installed. The same tables follow when it is there.", flush=True)
            installation.wait()
        if missing := what_is_missing():
            if os.environ.get("CI") == "true":
                raise ReportError(f"no report by Spark: {missing}")
            print(f"\nWithout the same on Spark: {missing}", flush=True)
            return page
        print("\nThe same on Spark, as for journals that outgrow a machine:\n", flush=True)
        spark = spark or stack.enter_context(Report(load, folder / "report-spark", engine="spark"))
        spark.show()
    print(f"\n  {equal_tables(page.parent, folder / 'report-spark')} tables, the same from both", flush=True)
    return page


def _addresses(cluster: Cluster, page: Path | None, *, keep: bool) -> None:
    """The end of the story: where to look, and at what first."""
    print()
    if page is not None:
        print("Open the report first: it shows which requests waited, for how long, and what the death of a node did.")
    elif keep:
        print("Open the console first: it shows the requests that wait now.")
    addresses = {**({} if page is None else {"report": page.resolve().as_uri()}), **cluster.urls}
    for name in ("report", "console", "metrics"):
        if name in addresses:
            print(f"  {name:<8} {addresses[name]}")
    if keep:
        print(f"The broker serves clients on {cluster.bootstrap} until Ctrl-C.")
    else:
        print("Console and metrics were served until now. `make run KEEP=1` stays up.")
    sys.stdout.flush()


def _tour(
    cluster: Cluster, folder: Path, settings: Settings, options: argparse.Namespace, installation: Installation
) -> int:
    from examples.broker.tour import screen  # noqa: PLC0415 - after it is known that the client is installed
    from examples.broker.tour.clients import Load, Topic, read_all  # noqa: PLC0415
    from examples.broker.tour.outage import watch  # noqa: PLC0415

    topic = Topic(cluster.bootstrap, settings.partitions, _REPLICAS)
    ledger = Ledger()
    with Load(cluster.bootstrap, settings, ledger):
        outage = watch(cluster, topic, settings, ledger, screen.say)
    balance = ledger.balance(read_all(cluster.bootstrap, settings.partitions))
    screen.clients(ledger, outage, settings.timeout_ms)
    purgatories = cluster.purgatories()
    screen.purgatories(purgatories)
    print(f"\n{screen.verdict(balance, purgatories['produce']['totals']['expired'])}", flush=True)
    page = None if options.no_report else _make_page(cluster.journal / "node-1", folder, installation)
    _addresses(cluster, page, keep=options.keep)
    if options.keep:
        with Load(cluster.bootstrap, settings, Ledger(), rate=_KEPT_RATE):
            _stay(cluster)
    return 0 if balance.holds else 1


def _stay(cluster: Cluster) -> None:
    try:
        while True:
            cluster.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        print("\nstopping ...", flush=True)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run it. Returns 0 if every acknowledged record is in the log, once, and the report was made."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        settings = _settings(options)
    except ValueError as error:
        parser.error(str(error))
    for module, install in (("confluent_kafka", "confluent-kafka"), ("google_crc32c", "google-crc32c")):
        if importlib.util.find_spec(module) is None:
            print(f"error: this needs {install}: pip install {install}, or let `make run` do it", file=sys.stderr)
            return 2
    from examples.broker.tour.cluster import Cluster, ClusterError  # noqa: PLC0415

    folder = options.folder or Path("var/run") / time.strftime("tour-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)  # ended like Ctrl-C, so that everything started is ended too
    print(
        f"{_REPLICAS} replicas, {settings.partitions} partitions; {settings.producers} idempotent producers, "
        f"{settings.rate:g} records a second with acks=all; {settings.consumers} consumers.\n"
        f"A write waits {settings.timeout_ms} ms for its replicas, "
        f"and a node that is silent for {settings.session_ms} ms is given up.\n",
        flush=True,
    )
    try:
        with (
            Installation(options.install_spark, folder / "install-spark.log") as installation,
            Cluster(folder, settings) as cluster,
        ):
            code = _tour(cluster, folder, settings, options, installation)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return _STOPPED
    except (ClusterError, ReportError, TimeoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if code == 0:
        shutil.rmtree(folder / "data")  # the journal and the page stay
    return code


if __name__ == "__main__":
    sys.exit(main())
