"""A Spark session, traces and their plain answers, as a plugin of pytest. The tests of an example load it, too."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from tests.support.programs import QUICK_JVM, ROOT


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One small session for all tests: quick to start (C1 only), nothing to be measured with."""
    from purgatory.pipeline._spark.session import session  # noqa: PLC0415  # Spark need not be there

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Xmn512m -Xss4m",
            "spark.driver.memory": "2g",
            "spark.sql.codegen.wholeStage": "false",  # few rows are over before their code is compiled
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture
def brute() -> Callable[..., Any]:
    """Answer a trace's rows one by one, in the plainest way that one can write down."""

    def brute(rows: list[Any], keep_us: int = 2**60) -> dict[str, Any]:
        """``keep_us``: how long a key keeps its level after the latest row that named it."""
        events = [(r["ts"], r["keys"][0], r["levels"][0]) for r in rows if r["kind"] == "event"]
        named = [(r["ts"], key) for r in rows for key in r["keys"]]

        def counts(instant: int, key: str, at: int) -> bool:
            """Whether nowhere between an event and a watch the key was unnamed for long enough to be forgotten."""
            if instant > at:
                return True
            between = sorted({t for t, k in named if k == key and instant <= t <= at})
            return all(later - earlier <= keep_us for earlier, later in itertools.pairwise(between))

        answers: dict[str, Any] = {}
        for row in rows:
            if row["kind"] != "operation" or row["operation"] in answers:
                continue
            at, deadline = row["ts"], row["ts"] + max(0, row["delay_ms"]) * 1000
            firsts = [
                min((t for t, k, v in events if k == key and v >= level and counts(t, key, at)), default=None)
                for key, level in zip(row["keys"], row["levels"], strict=True)
            ]
            ready = None if None in firsts else max([at, *firsts])
            if ready is not None and ready <= at:
                answers[row["operation"]] = ("immediate", at)
            elif ready is not None and ready < deadline:
                answers[row["operation"]] = ("satisfied", ready)
            else:
                answers[row["operation"]] = ("expired", deadline)
        return answers

    return brute


@pytest.fixture
def trace_rows() -> Callable[..., Any]:
    """A generated trace as plain rows, instants in microseconds."""

    from tests.support import workloads  # noqa: PLC0415  # Arrow need not be there

    def trace_rows(workload: str, seed: int = 1, **changes: Any) -> list[dict[str, Any]]:
        shape = attrs.evolve(workloads.WORKLOADS[workload], **changes)
        table = workloads.trace(shape, seed)
        instants = table.column("ts").cast("int64").to_pylist()
        return [{**row, "ts": ts} for row, ts in zip(table.drop_columns("ts").to_pylist(), instants, strict=True)]

    return trace_rows
