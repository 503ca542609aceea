"""Compiles all kernels, and keeps Spark's classes, before tests run side by side that need them.

    .venv/bin/python -m tests.support.warm_caches

A kernel is compiled where it is first called, which takes minutes for all of them, and what is
compiled is kept beside the source. Tests in several processes would all begin with that, and
those with a limit of their time would miss it. So small histories of every model are judged
here, with and without the special cases, and a simulated campaign; where everything is kept
already that takes seconds. The archive that Spark starts with (checkers.spark.quick_start) is
made here, too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from shaketable.checkers.engine.java import find_java
from shaketable.checkers.spark.jvm import archive_of, spark_home
from shaketable.checkers.spark.quick_start import create
from shaketable.harness import discovery
from shaketable.harness.cli import run
from shaketable.harness.compiled import load_numba
from tests.soaks import isolation_levels
from tests.support.isolation_brute_force import draw
from tests.support.model_fuzz import compare
from tests.support.random_objects import OBJECTS

SEEDS = range(25)
"""Enough that each model meets valid and invalid histories, long and short searches."""
FIRST = "cas-register"
"""Its search calls all of the general kernels: by the time others need them they are there."""

JUDGED = (0, 1, 2)
"""What a run ends with that was judged, however it was."""


def judge_small_histories(models: list[str]) -> None:
    load_numba()  # else the smallest are searched by the same kernels as Python
    for model in models:
        for seed in SEEDS:
            compare(discovery.get("models", model), seed)


def judge_small_transactions() -> None:
    load_numba()
    for lists in (False, True):
        for seed in SEEDS:
            isolation_levels.judge(draw(seed, lists=lists))


def quicken_spark() -> None:
    create(archive_of(find_java(os.environ), spark_home()))


def judge_a_campaign() -> None:
    """A recorded history goes through the kernels that sort it, nodes' files through theirs."""
    with tempfile.TemporaryDirectory() as store:
        _shaketable(
            "run", "--world", "sim", "--time-limit", "12", "--seed", "kernels", "--spark-master",
            "local[1]", "--mutant", "ack-before-quorum", "--faults", "partition", "--store", store,
        )  # fmt: skip
        _shaketable("analyze", str((Path(store) / "latest").resolve()), "--engine", "local")


def _shaketable(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = run(arguments)
    if code not in JUDGED:
        raise SystemExit(said.getvalue())


def main() -> None:
    """Do it in two processes, what most others need first; say how long it took."""
    began = time.monotonic()
    with ProcessPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as processes:
        done = [
            processes.submit(judge_small_histories, [FIRST]),
            processes.submit(quicken_spark),
            processes.submit(judge_a_campaign),
            processes.submit(judge_small_transactions),
            processes.submit(judge_small_histories, sorted({*OBJECTS} - {FIRST})),
        ]
        for each in done:
            each.result()
    sys.stdout.write(f"kernels are compiled, Spark is quick ({time.monotonic() - began:.0f} s)\n")


if __name__ == "__main__":
    main()
