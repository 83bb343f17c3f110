"""One way to get a Spark session, whoever starts us.

Under `spark-submit` the master and the resources are the submitter's; started as plain Python there is
none, and the machine's own cores are used. What is set here are facts about this job, each with its reason,
and everything can be overridden by `spark-defaults.conf` or `--conf`.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",  # windows must not move with a laptop
    "spark.ui.showConsoleProgress": "false",  # we report progress in words
    "spark.sql.shuffle.partitions": "8",  # tables here are small once grouped
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",  # lets format("purgatory") skip segments by sequence number
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"  # transformWithState needs it
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",  # upload changes, not snapshots
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def session(name: str, settings: dict[str, str] | None = None) -> SparkSession:
    """The running session, or a new one."""
    given = SparkConf()
    builder = SparkSession.builder.appName(f"purgatory {name}")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and not given.contains("spark.master"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master("local[*]")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        if submitted and key.startswith("spark.driver."):
            continue
        if not given.contains(key):
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
