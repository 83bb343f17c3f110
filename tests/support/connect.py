"""A Spark Connect server from the pip package, as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.support.programs import QUICK_JVM
from tests.support.served import free_port

SPARK = Path(pyspark.__file__).parent
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.codegen.wholeStage": "false",  # few rows are over before their code is compiled
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@contextmanager
def connect_server(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server whose warehouse and log are in a folder. Gives its address."""
    port = free_port()
    settings = {**_SETTINGS, "spark.connect.grpc.binding.port": str(port), "spark.sql.warehouse.dir": str(folder / "w")}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", "--class", main, *words, "spark-internal"]
    log = folder / "server.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    own = {**kept, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=own, cwd=folder, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 400
        while not re.search("Spark Connect server started at", log.read_text(errors="replace")):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextmanager
def connect_client(address: str) -> Iterator[None]:
    """Let this process be a client of a server. A classic session is hidden: PySpark allows no client beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkContext, "_active_spark_context", None)
        patch.setattr(SparkSession, "_instantiatedSession", None)
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        patch.setenv("SPARK_REMOTE", address)
        try:
            yield
        finally:
            running = SparkSession.getActiveSession()
            if running is not None:
                running.stop()
