"""The engine without Spark: the same pure functions, one partition after the other.

For tests, quick looks (`check --engine local`) and machines without Java. Memory grows
with the history; the pipeline for real campaigns is checkers.engine.spark.
"""

from __future__ import annotations

from checkers.engine.job import CheckJob, Progress, no_progress
from harness.verdict import Verdict


def run_local(job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
    """Run every checker of `job`; return their verdicts in the order of `job.checkers`.

    A checker that raises gives UNKNOWN with its traceback in `Verdict.data["traceback"]`.

    Raises:
        HarnessError: the operations cannot be read.
    """
    raise NotImplementedError
