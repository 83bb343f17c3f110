"""``python -m tests.benchmarks [NAME ...]``: run the benchmarks, show their tables, keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from pathlib import Path

import structlog

from tests.benchmarks.harness import Table, show, write_json

#: Every benchmark: a module ``bench_<name>`` with ``main(*, quick) -> Iterator[Table]``.
NAMES = (
    "editions",
    "timer",
    "purgatory",
    "lean",
    "where",
    "scale",
    "lateness",
    "load",
    "aio",
    "web",
    "gates",
    "streams",
    "journal",
    "metrics",
    "state",
    "feeds",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)}; all if none is given"
    )
    parser.add_argument("--quick", action="store_true", help="a look only: fewer rounds, smaller sizes")
    parser.add_argument(
        "--json", type=Path, default=Path("var/benchmarks.json"), help="where the results go (%(default)s)"
    )
    arguments = parser.parse_args(argv)
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    tables: list[Table] = []
    for name in arguments.names or NAMES:
        for table in importlib.import_module(f"tests.benchmarks.bench_{name}").main(quick=arguments.quick):
            show(table)
            tables.append(table)
        write_json(tables, arguments.json)
    print(f"results: {arguments.json}")
    return 0


if __name__ == "__main__":
    # Nothing of a purgatory's coming and going between the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main())
