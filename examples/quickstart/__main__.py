"""Run the quickstart: ``python -m examples.quickstart [--seconds 15] [--rate 1500] ...``."""

from __future__ import annotations

import argparse
import sys
import time

import attrs

from examples.quickstart.load import Load, Settings
from examples.quickstart.looking import looked_at
from examples.quickstart.report import Report, summarise
from examples.quickstart.screen import progress, show
from examples.quickstart.service import Service


def settings(arguments: list[str]) -> tuple[Settings, bool]:
    """Read the command line: an option for each of the settings, and whether to stay."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.quickstart",
        description="A small replicated log under load. Requests that must wait are parked in a purgatory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for field in attrs.fields(Settings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=" ")
    parser.add_argument("--keep", action="store_true", help="go on after the report, until interrupted")
    chosen = vars(parser.parse_args(arguments))
    keep = chosen.pop("keep")
    try:
        return Settings(**chosen), keep
    except ValueError as error:
        parser.error(str(error))


def run(chosen: Settings) -> Report:
    """Run the load for as long as is asked, and answer everyone."""
    with Service(partitions=chosen.partitions, followers=chosen.followers) as service:
        load = Load(service, chosen)
        began = time.perf_counter()
        with progress(service, chosen.seconds) as tick:
            load.start()
            try:
                while (passed := time.perf_counter() - began) < chosen.seconds:
                    tick(passed)
                    time.sleep(min(0.1, chosen.seconds - passed))
                tick(chosen.seconds)
            finally:
                load.stop()
        snapshots = (service.produce.snapshot(), service.fetch.snapshot())
        return summarise(load, snapshots, answered_by_shutdown=service.close())


def main(arguments: list[str] | None = None) -> int:
    """Run, show, and answer 0 if every client got exactly one answer."""
    chosen, keep = settings(sys.argv[1:] if arguments is None else arguments)
    with looked_at() as urls:
        where = "".join(f"\n  {what:<8} {url}" for what, url in urls.items())
        print(
            f"{chosen.seconds:g} s: {chosen.partitions} partitions on {chosen.followers + 1} replicas, "
            f"{chosen.rate:,} acks=all appends a second, {chosen.consumers:,} consumers polling. Look in:{where}"
        )
        try:
            report = run(chosen)
            show(report)
            print(f"served until now:{where}" if not keep else f"still served, and loaded; Ctrl-C ends it:{where}")
            while keep and report.holds:
                report = run(chosen)
        except KeyboardInterrupt:
            print("\nstopped: every waiting request was answered")
            return 130
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
