"""The answers of a trace in a declarative pipeline, run by the program that PySpark brings."""

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import workloads
from tests.support.connect import SPARK
from tests.support.programs import QUICK_JVM

pytestmark = [pytest.mark.spark, pytest.mark.timeout(580)]

ROOT = Path(__file__).parents[2]
SHAPE = {"operations": 100, "events": 200}
SPEC = """
name: answers
storage: file://{folder}/storage
libraries: [{{glob: {{include: pipeline.py}}}}]
configuration:
  spark.sql.shuffle.partitions: "1"
  spark.sql.adaptive.enabled: "false"
  spark.sql.codegen.wholeStage: "false"
  spark.sql.codegen.factoryMode: NO_CODEGEN
  spark.sql.streaming.stateStore.providerClass: {rocksdb}
"""
PIPELINE = '''
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from purgatory.journal.records import TRACE
from purgatory.pipeline._rows.load import spark_schema
from purgatory.pipeline.stream import StreamSettings, answers_of

spark = SparkSession.active()


def rows():
    return spark.readStream.schema(spark_schema(TRACE)).parquet("{folder}/trace")


@dp.table
def inside():
    """Built in the decorated function."""
    return answers_of(rows(), StreamSettings(buckets=2))


dp.create_streaming_table("above")
BUILT = answers_of(rows(), StreamSettings(buckets=2))


@dp.append_flow(target="above")
def flow():
    """Built where the module is."""
    return BUILT


@dp.materialized_view
def outcomes():
    """Answers by outcome."""
    return spark.read.table("inside").where("part = 'done'").groupBy("outcome").count()
'''


def read(folder, name):
    return pa.concat_tables([pq.read_table(path) for path in (folder / "spark-warehouse" / name).glob("*.parquet")])


def test_answers_are_those_of_the_plainest_reading(tmp_path, brute, trace_rows):
    """A query that is built in a decorated function and one that is built above it have every operation once."""
    workloads.place_trace(tmp_path / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **SHAPE), 1, 1)
    (tmp_path / "pipeline.py").write_text(PIPELINE.format(folder=tmp_path))
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path, rocksdb=rocksdb))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment = {**kept, "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    # For any free port. The server has 15002 otherwise, as that of another run of the tests does.
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    settings = ("--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}", "--conf", "spark.ui.enabled=false")
    command = [str(SPARK / "bin" / "spark-pipelines"), *settings, "run", "--spec", "spark-pipeline.yml"]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, f"{run.stdout[-2000:]}{run.stderr[-3000:]}"
    expected = brute(trace_rows("kafka", **SHAPE))
    for name in ("inside", "above"):
        rows = read(tmp_path, name).select(["operation", "outcome", "finished"]).to_pylist()
        assert len(rows) == len(expected)
        assert {key: outcome for key, (outcome, _) in expected.items()} == {r["operation"]: r["outcome"] for r in rows}
    counts = {row["outcome"]: row["count"] for row in read(tmp_path, "outcomes").to_pylist()}
    assert len(expected) == sum(counts.values())
