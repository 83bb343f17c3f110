"""A standalone cluster of two worker processes, and a job submitted to it with the package in a zip."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.support import workloads
from tests.support.programs import QUICK_JVM

pytestmark = [pytest.mark.spark, pytest.mark.timeout(580)]

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the cluster's workers keep what they run."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def outside(folder):
    """An environment in which Python finds everything that is installed, but nothing of this project."""
    python = folder / "python"  # without `site`, which would follow an editable install's path file to the project
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    found = {
        **kept,
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
    }
    imported = subprocess.run(
        [python, "-c", "import purgatory"], env=found, cwd=folder, capture_output=True, check=False
    )
    assert b"No module named 'purgatory'" in imported.stderr
    return found


@pytest.fixture(scope="module")
def cluster(folder, outside):
    """A master and two workers of a core each, for all tests. Gives the master's address and its log."""
    running = []
    log = folder / "master.log"

    def start(log, *command):
        place = str(SPARK / "bin" / "spark-class")
        with log.open("wb") as out:
            running.append(subprocess.Popen([place, *command], env=outside, cwd=folder, stdout=out, stderr=out))

    def until(pattern, count=1):
        end = time.monotonic() + 120
        while len(found := re.findall(pattern, log.read_text())) < count:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        return found[0]

    deploy = "org.apache.spark.deploy"
    start(log, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        address = until(r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            place = str(folder / f"worker-{number}")
            own = ("--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "600m", "-d", place, address)
            start(folder / f"worker-{number}.log", f"{deploy}.worker.Worker", *own)
        until("Registering worker", 2)
        yield address, log
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def package(tmp_path):
    """The project's packages in a zip, for --py-files."""
    place = tmp_path / "packages.zip"
    with zipfile.ZipFile(place, "w") as found:
        for name in ("purgatory", "timer"):
            for path in (ROOT / name).rglob("*.py"):
                found.write(path, path.relative_to(ROOT))
    return place


@pytest.fixture
def submission(tmp_path, cluster, package):
    """The command that submits the stream, of a trace in `trace`, to the cluster."""
    address, _ = cluster
    main = shutil.copy(ROOT / "purgatory" / "pipeline" / "__main__.py", tmp_path / "main.py")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.sql.codegen.wholeStage": "false",  # few rows are over before their code is compiled
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.ui.enabled": "false",
        "spark.app.name": "submitted",
    }
    told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    memory = ("--driver-memory", "512m", "--executor-memory", "512m")
    command = [SPARK / "bin" / "spark-submit", "--master", address, *memory, *told, "--py-files", package, main]
    places = ("--in", tmp_path / "trace", "--out", tmp_path / "out", "--checkpoint", tmp_path / "checkpoint")
    ours = ("stream", *places, "--once", "--partitions", "2", "--buckets", "4")
    return [*command, *ours]


def executors(folder):
    """The processes of a cluster's executors: those that a worker runs in its own folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in words and (place / "cwd").readlink().is_relative_to(folder):
                found.append(int(place.name))
    return found


def answered(out):
    """The answers by operation, and how many there are."""
    table = pa.concat_tables([pq.ParquetFile(path).read() for path in out.glob("commit=*/date=*/*.parquet")])
    finished = table.column("finished").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    names, outcomes = (table.column(name).to_pylist() for name in ("operation", "outcome"))
    return dict(zip(names, zip(outcomes, finished, strict=True), strict=True)), len(names)


@pytest.mark.timeout(1_200)
def test_a_submitted_stream_is_exact_although_an_executor_and_the_driver_are_killed(
    tmp_path, folder, outside, cluster, submission, brute, trace_rows
):
    """`spark-submit --py-files` runs the stream on two workers, by the submitter's settings: every answer is right.

    It goes on without an executor that was killed, and from where it was, its driver killed.
    """
    shape = {"operations": 200, "events": 400}
    workloads.place_trace(tmp_path / "trace", attrs.evolve(workloads.WORKLOADS["kafka"], **shape), 1, 4)
    command = [*submission, "--files-per-batch", "1"]
    log = tmp_path / "driver.log"
    with log.open("wb") as said:
        driver = subprocess.Popen(command, env=outside, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)

    def until(batches):
        end = time.monotonic() + 500
        while not (tmp_path / "checkpoint" / "commits" / str(batches - 1)).exists():
            assert driver.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)

    try:
        until(1)
        # An executor on each. On a slow machine one may have been lost, and started again.
        assert {"worker-0", "worker-1"} == {path.parts[-3] for path in folder.glob("worker-?/app-*/*")}
        os.kill(executors(folder)[0], signal.SIGKILL)
        until(2)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert not (tmp_path / "checkpoint" / "commits" / "3").exists()
    run = subprocess.run(command, env=outside, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr[-3000:]
    assert 2 == cluster[1].read_text().count("Registered app submitted")
    answers, count = answered(tmp_path / "out")
    assert brute(trace_rows("kafka", **shape)) == answers
    assert count == len(answers)


def test_defaults_and_settings_are_honoured(tmp_path):
    """What spark-defaults.conf says counts, what --conf says before it, and ours only where neither says anything."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 5\nspark.sql.session.timeZone Asia/Tokyo\nspark.driver.memory 600m\n"
        f"spark.driver.extraJavaOptions {QUICK_JVM}\n"
    )
    program = (
        "import json; from purgatory.pipeline._spark.session import configure, session;"
        "configure('local[1]', None, ['spark.sql.session.timeZone=Asia/Seoul', 'spark.ui.enabled=false']);"
        "c = session('honest', records=100).sparkContext.getConf();"
        "names = ('master', 'app.name', 'sql.shuffle.partitions', 'sql.session.timeZone', 'sql.codegen.wholeStage');"
        "names += ('driver.memory', 'log.level', 'ui.showConsoleProgress', 'sql.codegen.cache.maxEntries');"
        "print(json.dumps([c.get('spark.' + name) for name in names]))"
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    expected = ["local[1]", "purgatory honest", "5", "Asia/Seoul", "false", "600m", "ERROR", "false", "5000"]
    assert str(expected).replace("'", '"') == run.stdout.strip().splitlines()[-1]
