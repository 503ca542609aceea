"""The check pipeline on PySpark, local[*] or a cluster: `spark*` alone import pyspark.

Operations come from Parquet, the nodes' logs are decoded on the executors, both are
grouped by the column that the checkers asked for, and each group goes through the same
pure functions that checkers.engine.local calls. Only findings come back to the driver.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.engine.java import Java
from checkers.engine.job import CheckJob, Progress, no_progress
from checkers.engine.judge import PARTITIONS, TAGGED, conclude, needs
from checkers.engine.spark_frames import judge_groups, read_operations
from checkers.engine.spark_logs import decode_logs, unreadable_logs
from checkers.engine.spark_parts import is_split, judge_split
from checkers.engine.spark_session import Session
from harness.errors import HarnessError
from harness.verdict import Verdict


class SparkEngine:
    """A Spark session for checking; start it while the campaign drains, use it, stop it.

    `start` takes some seconds and may run in a thread of its own; `run` and `stop` wait
    for it. Nothing is imported or launched before `start`. A process has one engine with a
    driver of its own at a time. The JVM ends when this process does, however that ends.
    """

    def __init__(self, master: str = "local[*]") -> None:
        self.master = master
        self._lock = threading.Lock()
        self._session = Session(master)

    @property
    def java(self) -> Java | None:
        """The Java that the driver runs on; None before the start, and on a remote server."""
        return self._session.java

    @property
    def scratch(self) -> Path | None:
        """The folder of the session's files while it is open."""
        return self._session.scratch

    def start(self) -> Java | None:
        """Find Java, launch Spark or connect to it, warm it up; idempotent.

        Raises:
            UsageError: no fitting Java, or a master elsewhere cannot be used.
            HarnessError: the local Spark does not start.
        """
        with self._lock:
            if self._session.frames is None:
                self._session.open()
            return self._session.java

    def run(self, job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
        """Like `checkers.engine.local.run_local`, through Spark; starts it if need be.

        Raises:
            HarnessError: Spark failed, or the operations cannot be read.
            UsageError: it does not start.
        """
        progress("waiting for Spark")
        self.start()
        try:
            return _run(self._session.frames, job, progress)
        except HarnessError:
            raise
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            text = lines[0] if lines else type(error).__name__
            raise HarnessError(f"Spark failed while checking: {text}") from error

    def stop(self) -> None:
        """End the session and its JVM, remove its files; idempotent."""
        with self._lock:
            self._session.close()


def _run(session: Any, job: CheckJob, progress: Progress) -> list[Verdict]:
    split = [checker for checker in job.checkers if is_split(checker)]
    others = [checker for checker in job.checkers if not is_split(checker)]
    frames: dict[str, Any] = {}
    unreadable: list[str] = []
    found = [TAGGED.empty_table()]
    if needs(others, "operations"):
        frames["operations"] = read_operations(session, job.operations)
    if split:
        progress("judging " + ", ".join(checker.name for checker in split))
        findings, unreadable = judge_split(session, job, split)
        found.append(findings)
    try:
        if needs(others, "entries") and not unreadable:
            progress("reading the nodes' logs")
            frames["entries"] = decode_logs(session, job).persist()
            unreadable = unreadable_logs(frames["entries"])
        runnable = [c for c in others if not (unreadable and "entries" in c.tables)]
        for partition in PARTITIONS:
            checkers = [checker for checker in runnable if checker.partition == partition]
            if checkers:
                progress("judging " + ", ".join(checker.name for checker in checkers))
                found.append(judge_groups(frames, checkers, partition, job.context))
    finally:
        if "entries" in frames:
            frames["entries"].unpersist()
    progress("concluding")
    return conclude(job.checkers, pa.concat_tables(found), job.context, unreadable)
