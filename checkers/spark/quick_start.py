"""Creates the archive that Spark starts with (`checkers.spark.jvm`).

The first command that judges through Spark on this machine creates it, in about 20 seconds, or

    python -m shaketable.checkers.spark.quick_start

Where the variable CI is set commands create none: an environment that one job makes for itself
would pay for it without any use.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers import stats
from shaketable.checkers.engine.java import find_java
from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.logs import committed_prefix, durability, linearizable_log
from shaketable.checkers.spark.jvm import ClassArchive, archive_of, spark_home
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.history.schema import ENTRIES, OPERATIONS

_LOG = logging.getLogger(__name__)


def missing_archive(env: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive that a command should create first, if any.

    Raises:
        UsageError: there is no suitable Java.
    """
    if env.get("CI"):
        return None
    archive = archive_of(find_java(env), spark_home())
    return archive if archive.is_missing else None


def create(archive: ClassArchive) -> bool:
    """Create an archive; return whether it is there now.

    One process creates it; others that come meanwhile start without. What goes wrong is logged:
    an archive only saves time.
    """
    with _alone(archive) as is_alone:
        if not is_alone or archive.path.exists():
            return archive.is_there
        fresh = archive.path.with_suffix(f".{os.getpid()}")
        try:
            _exercise(fresh)
            if not fresh.is_file():
                fresh.touch()  # this Java cannot: an empty file says so, and it is not tried again
            for old in archive.path.parent.glob(f"*{archive.path.suffix}"):
                old.unlink()
            fresh.replace(archive.path)
        except (OSError, HarnessError, UsageError) as error:
            _LOG.warning("spark class archive not created: error=%s", error)
        finally:
            fresh.unlink(missing_ok=True)
    return archive.is_there


@contextlib.contextmanager
def _alone(archive: ClassArchive) -> Iterator[bool]:
    """Hold the lock of an archive's folder, if no other process does and it can be written."""
    with contextlib.ExitStack() as opened:
        try:
            archive.path.parent.mkdir(exist_ok=True)
            lock = opened.enter_context((archive.path.parent / "spark.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _exercise(classes: Path) -> None:
    """Judge a small run by what every check uses, in a JVM that keeps its classes."""
    engine = SparkEngine("local[1]", keep_classes=classes)
    with tempfile.TemporaryDirectory() as folder:
        operations = Path(folder) / "operations.parquet"
        pq.write_table(pa.Table.from_pylist(_OPERATIONS, schema=OPERATIONS), operations)
        context = CheckContext(nodes=("n0",), committed={"n0": 0}, promises=Promises())
        job = CheckJob((operations,), {"n0": Path(folder)}, _one_entry, context, _CHECKERS)
        try:
            engine.run(job)
        finally:
            engine.stop()


_KEY = "topic/0"
_OPERATIONS = [
    {"op": 0, "process": 0, "f": "append", "key": _KEY, "input": 7, "offset": 0,
     "call_ns": 0, "return_ns": 1, "outcome": "ok"},
    {"op": 2, "process": 1, "f": "read", "key": _KEY, "offset": 0, "output": 7,
     "call_ns": 2, "return_ns": 3, "outcome": "ok"},
]  # fmt: skip
_CHECKERS = (linearizable_log.PLUGIN, durability.PLUGIN, committed_prefix.PLUGIN, stats.PLUGIN)


def _one_entry(_folder: Path, node: str) -> Iterator[pa.RecordBatch]:
    entry = {"node": node, "index": 0, "term": 1, "position": 0, "size": 100, "crc": 0}
    entry |= {"key": _KEY, "offset": 0, "value": 7}
    yield pa.RecordBatch.from_pylist([entry], schema=ENTRIES)


def main() -> int:
    """Create the archive of this environment; return 0 if Spark starts with one."""
    archive = archive_of(find_java(os.environ), spark_home())
    if not archive.path.exists():
        sys.stdout.write("preparing Spark for quick starts, once\n")
        sys.stdout.flush()
    is_there = create(archive)
    sys.stdout.write(f"{archive.path}\n" if is_there else "this Java keeps no archive of classes\n")
    return 0 if is_there else 1


if __name__ == "__main__":
    sys.exit(main())
