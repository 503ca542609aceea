"""The process that Spark's Python workers are forked from, with what they need loaded already.

PySpark starts `pyspark.daemon`, which forks a worker for each task, and each loads PySpark from a
zip file, which Python compiles anew every time, pyarrow, numba and our checkers: 3 s of processor
time a worker, more than most histories take to be judged. Here they are loaded once, from the
files that Python has compiled before, and the workers share them.

Spark starts this one by `spark.python.daemon.module`, where driver and workers are on one machine:
elsewhere our packages come only after the daemon has started.

Source: pyspark.daemon, whose `manager` serves Spark; PythonWorkerFactory in Spark's core.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

MODULE: Final = "shaketable.checkers.spark.worker_daemon"
"""What `spark.python.daemon.module` is set to: it runs as __main__."""
PACKAGES: Final = ("pyspark", "py4j")
"""What Spark puts on the path as zip files."""
_SINGLE_THREADED: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""A thread that a library starts at its import would be lost by the fork."""


def main() -> None:
    """Load what workers need, then serve Spark until it ends."""
    load()
    gc.freeze()  # a worker's collections would copy the pages that hold this
    importlib.import_module("pyspark.daemon").manager()


def load() -> None:
    """Load what workers need; afterwards only jemalloc's thread runs, which it stops for a fork."""
    _leave_archives_out()
    for variable in _SINGLE_THREADED:
        os.environ[variable] = "1"
    for module in ("pyspark.worker", "pyspark.sql.pandas.serializers"):
        importlib.import_module(module)
    _load_ours()


def _leave_archives_out() -> None:
    """Import PySpark and Py4J from their installed packages, and not from Spark's zip files."""
    kept = [path for path in sys.path if not _is_archive(path)]
    if any(PathFinder.find_spec(package, kept) is None for package in PACKAGES):
        return
    sys.path[:] = kept
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.path_importer_cache.clear()


def _is_archive(path: str) -> bool:
    name = Path(path).name
    return name.endswith(".zip") and name.startswith(PACKAGES)


def _load_ours() -> None:
    """Load our checkers, and numba with what it needs to load machine code."""
    from shaketable.harness.compiled import load_numba  # noqa: PLC0415 - once the archives are out of the path
    from shaketable.harness.without_pandas import leave_pandas_out  # noqa: PLC0415 - as above

    leave_pandas_out()
    importlib.import_module("shaketable.checkers.spark.frames")
    load_numba()


if __name__ == "__main__":
    main()
