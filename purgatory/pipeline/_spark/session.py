"""One way to get a Spark session, however the program was started: a JVM of this process, or a server.

Settings of others take precedence: ``--master`` and ``--conf`` of the command line, those of ``spark-submit``,
``spark-defaults.conf``, and those of a session that exists already. The settings here are facts about these jobs, each
with its reason. They apply where nothing else was set. Without a master, the machine's own cores are used.

The other settings are known only once the JVM runs, because the JVM reads ``spark-defaults.conf`` and the arguments of
``spark-submit``. So the JVM is started first, and asked. Through Spark Connect (``--remote``, ``SPARK_REMOTE``) the
server's settings are asked for, and only those of a session can be set. No Java is needed here then.

Some settings follow the number of records that a command reads. Few records are over before the JVM has compiled its
code, so little is compiled: one compiler instead of two, and for very few, Spark interprets its expressions. Adaptive
execution runs each exchange as a job of its own, which costs more than it gains for small relations.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from purgatory import pipeline

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: What a session needs for the stream: it sets these itself (``stream.settled``).
STREAMING: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,  # transformWithState needs it
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",  # upload changes, not snapshots
}

#: Options of Spark's reader. A wrong page checksum, or a file that a worker does not see, stops the job.
STRICT: Final[Mapping[str, str]] = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}

_RUNTIME: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",  # windows must not move with a laptop
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, is read without its time zone
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",  # lets format("purgatory") skip segments by sequence number
    **STREAMING,
}
_SETTINGS: Final[Mapping[str, str]] = {
    **_RUNTIME,
    "spark.log.level": "ERROR",
    "spark.sql.codegen.cache.maxEntries": "5000",  # a second report finds all its code compiled: the default is 100
    "spark.python.authenticate.socketTimeout": "120s",  # a worker on a busy machine needs more than 15 s to answer
}
#: Where driver and executors are one process: on a cluster, the driver must be found, and the cluster's size counts.
_LOCAL: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "8",  # tables here are small once grouped
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
#: Records up to which Spark interprets its expressions and starts no web page of its own: the work is soon over.
_FEW: Final = 200_000
#: Records up to which one compiler does: beyond, the slower code costs more than was saved.
_MANY: Final = 3_000_000
_SHORT: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
#: Settings of the command line for a session of Spark Connect, which is opened later.
_REMOTE: Final[dict[str, str]] = {}

#: The name of an archive of classes in the environment's folder. Another JVM, or other jars, ignore it.
CLASS_ARCHIVE: Final = "purgatory-spark.jsa"
_JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_BAR: Final = "spark.ui.showConsoleProgress"


class WrongSetting(ValueError):
    """An invalid setting for Spark."""


def submitted() -> bool:
    """Whether ``spark-submit`` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def configure(master: str | None, remote: str | None, settings: Iterable[str]) -> None:
    """Set the master or the server, and settings (``NAME=VALUE``), of a session that is started later.

    Raises:
        WrongSetting: a setting has no value, or it is too late: ``spark-submit`` has started the JVM already.
    """
    pairs = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.startswith("spark."):
            message = f"a Spark setting must be spark.NAME=VALUE, got {setting!r}: write --conf spark.NAME=VALUE"
            raise WrongSetting(message)
        pairs[name] = value
    if remote is not None:
        os.environ["SPARK_REMOTE"] = remote
    if "SPARK_REMOTE" in os.environ:
        if master is not None:
            raise WrongSetting(f"--master must not be given with a server, got {master!r}: use --remote alone")
        _REMOTE.update(pairs)
        return
    words = [] if master is None else ["--master", master]
    words += [word for name, value in pairs.items() for word in ("--conf", f"{name}={value}")]
    if not words:
        return
    if submitted():
        raise WrongSetting("started by spark-submit: give it --master and --conf, before the program")
    others = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(words)} {others}"


def session(name: str, settings: Mapping[str, str] | None = None, records: int | None = None) -> SparkSession:
    """The running session, or a new one.

    Args:
        name: the name of the application, after "purgatory".
        settings: settings that take precedence.
        records: how many it will read, if that is known. The settings of a new session follow it.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    remote = os.environ.get("SPARK_REMOTE")
    if remote is None:
        return _start(name, settings or {}, records)
    return _connect(remote, {**_REMOTE, **(settings or {})})


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _connect(remote: str, settings: Mapping[str, str]) -> SparkSession:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    others = spark.conf.getAll  # those that the server or its user has set
    for key, value in {**{key: _RUNTIME[key] for key in _RUNTIME.keys() - others}, **settings}.items():
        spark.conf.set(key, value)
    return spark


def _start(name: str, settings: Mapping[str, str], records: int | None) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # not in the plain client

    insisted = list(settings.items())
    conf = SparkConf(loadDefaults=False).setAll(insisted)
    by_size, java_options = settings_for(records)
    others = os.environ.get(_JAVA_OPTIONS, "")  # those of the user come after ours, and win
    os.environ[_JAVA_OPTIONS] = f"{java_options} {_shared_classes()} {others}"
    try:
        SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001  # nothing public starts the JVM without a context
    finally:
        os.environ[_JAVA_OPTIONS] = others
    given = SparkConf().setAll(insisted)
    if given.get("spark.master", None) is None:
        given.setMaster("local[*]")
    local = given.get("spark.master", "").startswith("local")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in {**_SETTINGS, **(_LOCAL if local else {}), **by_size}.items():
        given.setIfMissing(key, value)
    if not submitted() and _BAR not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        given.set(_BAR, "false")  # we report progress in words, and what starts the JVM has set it as for a shell
    if given.get("spark.app.name", "pyspark-shell") in {"pyspark-shell", "__main__.py"}:
        given.setAppName(f"purgatory {name}")
    spark = SparkSession.builder.config(conf=given).getOrCreate()
    spark.sparkContext.setLogLevel(given.get("spark.log.level", "ERROR") or "ERROR")
    importable(spark)
    return spark


def settings_for(records: int | None) -> tuple[Mapping[str, str], str]:
    """The settings of a session, and the options of its JVM, for a number of records (None: unknown)."""
    if records is None or records > _MANY:
        return {}, ""
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    return {**settings, **(_SHORT if records <= _FEW else {})}, "-XX:TieredStopAtLevel=1"


def _shared_classes() -> str:
    """The option for an archive of loaded classes beside the environment, if there is one. It halves a JVM's start."""
    archive = Path(sys.prefix, CLASS_ARCHIVE)
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive.exists() else ""


def importable(spark: SparkSession) -> None:
    """Let the Python processes of this session find this package where we did, unless it is installed.

    What ``spark-submit`` is given by ``--py-files`` the executors find by themselves, but not the process that Spark
    starts beside the driver to set up a stateful stage. Through Spark Connect, it must be installed on the server.
    """
    if is_connect(spark):
        return
    root = str(Path(pipeline.__file__).parents[2])  # a folder, or a zip
    environment = spark.sparkContext.environment
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    if not root.endswith(("site-packages", "dist-packages")) and root not in places:
        environment["PYTHONPATH"] = os.pathsep.join([root, *places])
