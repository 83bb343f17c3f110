"""Where a page and its tables go: into a folder of this machine, or wherever Spark writes.

They are small, so they are always written to a local folder. For a place that only Spark reaches (`s3a://...`,
`hdfs://...`) that is a temporary folder, which is copied when it is complete. A job that fails leaves nothing in the
place, and the output of an earlier run stays until then. Whether a place can be written is tested before the work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from purgatory.pipeline._spark.errors import PlaceUnusable


@contextmanager
def placed(out: str, command: str) -> Iterator[Path]:
    """A folder to write to, whose files and folders are in `out` once the block has ended well.

    Args:
        out: a folder, which is then the one that is given, or a place of Spark's.
        command: the command that writes, and the name of a session for it.

    Raises:
        PlaceUnusable: the folder cannot be made or written, or this session cannot write there.
    """
    if "://" not in out:
        yield _folder(out)
        return
    from purgatory.pipeline._spark import places  # pyspark is imported only where it is used
    from purgatory.pipeline._spark.session import session

    spark = session(command)
    places.writable(spark, out)
    with tempfile.TemporaryDirectory(prefix="purgatory-out-") as aside:
        yield Path(aside)
        for each in sorted(Path(aside).iterdir()):
            places.put(spark, each, f"{out.rstrip('/')}/{each.name}")


@contextmanager
def fetched(place: str | None, names: Sequence[str], command: str) -> Iterator[str | None]:
    """The folder that `placed` was once given, for reading: itself, or, of a place of Spark's, copies of these."""
    if place is None or "://" not in place:
        yield place
        return
    from purgatory.pipeline._spark import places
    from purgatory.pipeline._spark.session import session

    spark = session(command)
    places.readable(spark, place)
    with tempfile.TemporaryDirectory(prefix="purgatory-in-") as aside:
        for name in names:
            places.get(spark, f"{place.rstrip('/')}/{name}", Path(aside) / name)
        yield aside


def _folder(out: str) -> Path:
    folder = Path(out)
    probe = folder / f".writable-{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise PlaceUnusable(out, error.strerror or str(error)) from None
    return folder
