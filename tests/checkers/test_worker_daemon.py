"""Spark's Python workers are forked from a process that has loaded what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

NEEDED = ["numba", "pyarrow", "pyspark.worker", "shaketable.checkers.spark.frames"]

TELL = """
import json, sys
from pathlib import Path
from shaketable.checkers.spark import worker_daemon
assert "pyspark" in sys.modules, "from the zip file, as Spark starts it"
worker_daemon.load()
threads = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
print(json.dumps({
    "names": [name for name in json.loads(sys.argv[1]) if name in sys.modules],
    "pyspark": sys.modules["pyspark"].__file__,
    "py4j": sys.modules["py4j"].__file__,
    "threads": threads,
}))
"""


def test_the_daemon_has_loaded_what_workers_need_and_from_compiled_files():
    archives = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    assert len(archives) == 2
    path = os.pathsep.join([*map(str, archives), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", f"import pyspark\n{TELL}", json.dumps([*NEEDED, "pandas"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["names"] == NEEDED
    assert ".zip" not in told["pyspark"] + told["py4j"]
    # jemalloc stops its own thread around a fork.
    assert len([name for name in told["threads"] if not name.startswith("jemalloc")]) == 1


@pytest.mark.spark
def test_workers_are_forked_from_it(spark):
    def tell(batches):
        name = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [name]})

    frame = spark._session.frames.range(1)
    (row,) = frame.mapInArrow(tell, "daemon string").toArrow().to_pylist()
    assert "shaketable.checkers.spark.worker_daemon" in row["daemon"]
