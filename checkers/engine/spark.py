"""The check pipeline on PySpark, local[*] or a cluster: `spark*` alone import pyspark.

Operations come from Parquet files that are written by key, the nodes' logs are decoded on the
executors; each key or range goes through the same pure functions that checkers.engine.local
calls. Only findings come back to the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.java import Java
from shaketable.checkers.engine.job import CheckJob, Progress, no_progress, with_clock
from shaketable.checkers.engine.judge import (
    CRASHED,
    NOT_JUDGED,
    PARTITIONS,
    TAGGED,
    conclude,
    judges_by_key,
    lost,
    needs,
    reads_on,
    without_unreadable,
)
from shaketable.checkers.engine.key_judge import Spent
from shaketable.checkers.engine.log_evidence import with_log_evidence
from shaketable.checkers.engine.spark_frames import judge_groups, read_operations
from shaketable.checkers.engine.spark_guard import Guard
from shaketable.checkers.engine.spark_logs import decode_logs, unreadable_logs
from shaketable.checkers.engine.spark_operations import judge_by_key
from shaketable.checkers.engine.spark_parts import is_split, judge_split
from shaketable.checkers.engine.spark_session import Session, first_line
from shaketable.harness.errors import HarnessError
from shaketable.harness.plugins import Checker
from shaketable.harness.verdict import Verdict

DAMAGED_INPUT = "shaketable.harness.errors.HarnessError"
"""How an executor's traceback names the error of a file that cannot be read."""


class SparkEngine:
    """A Spark session for checking; start it while the campaign drains, use it, stop it.

    `start` takes some seconds and may run in a thread of its own; `run` and `stop` wait
    for it. Nothing is imported or launched before `start`. A process has one engine with a
    driver of its own at a time. The JVM ends when this process does, however that ends.

    `spent` says of the last `run` how long its tasks read and judged operations by key.
    """

    def __init__(self, master: str = "local[*]") -> None:
        self.master = master
        self._lock = threading.Lock()
        self._session = Session(master)
        self.spent = Spent()

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

        Where a job fails because a process died, each of its checkers gets a job of its own, so
        that only who is at fault is UNKNOWN. A job still under way GRACE_S after the
        deadline is cancelled.

        Raises:
            HarnessError: Spark failed, or the operations cannot be read.
            UsageError: it does not start.
        """
        progress("waiting for Spark")
        self.start()
        job = with_log_evidence(with_clock(job), progress)
        try:
            run = _Run(self._session.frames, job, progress)
            verdicts = run.verdicts()
        except HarnessError:
            raise
        except Exception as error:
            raise HarnessError(f"Spark failed while checking: {first_line(error)}") from error
        self.spent = run.spent
        return verdicts

    def stop(self) -> None:
        """End the session and its JVM, remove its files; idempotent."""
        with self._lock:
            self._session.close()


class _Run:
    """One job on an open session."""

    def __init__(self, frames: Any, job: CheckJob, progress: Progress) -> None:
        self.spent = Spent()
        self._frames = frames
        self._job = job
        self._progress = progress
        self._unreadable: list[str] = []
        self._guard = Guard(frames, job.context)

    def verdicts(self) -> list[Verdict]:
        """Run all checkers, those of a kind together."""
        split = [checker for checker in self._job.checkers if is_split(checker)]
        by_key = [c for c in self._job.checkers if judges_by_key(c) and c not in split]
        others = [c for c in self._job.checkers if c not in split and c not in by_key]
        found = [TAGGED.empty_table()]
        if split:
            found.append(self._apart(split, self._judge_split))
        if by_key:
            found.append(self._apart(by_key, self._judge_by_key))
        if others:
            found += self._judge_others(others)
        self._progress("concluding")
        joined = pa.concat_tables(found)
        return conclude(self._job.checkers, joined, self._job.context, self._unreadable)

    def _judge_split(self, checkers: Sequence[Checker]) -> pa.Table:
        findings, unreadable = judge_split(self._frames, self._job, list(checkers))
        if unreadable:  # once more, without these logs: what the others show stays proven
            self._unreadable = unreadable
            self._job = without_unreadable(self._job, unreadable)
            able = [checker for checker in checkers if reads_on(checker)]
            findings, more = judge_split(self._frames, self._job, able)
            findings = TAGGED.empty_table() if more else findings
        return findings

    def _judge_by_key(self, checkers: Sequence[Checker]) -> pa.Table:
        findings, self.spent = judge_by_key(self._frames, self._job, checkers)
        return findings

    def _judge_others(self, others: Sequence[Checker]) -> list[pa.Table]:
        """Run the checkers that need whole tables, or logs in a form of their own."""
        frames: dict[str, Any] = {}
        if needs(others, "operations"):
            frames["operations"] = read_operations(self._frames, self._job.operations)
        found = []
        try:
            if needs(others, "entries") and not self._unreadable:
                self._progress("reading the nodes' logs")
                frames["entries"] = decode_logs(self._frames, self._job).persist()
                self._unreadable = unreadable_logs(frames["entries"])
            able = [c for c in others if not (self._unreadable and "entries" in c.tables)]
            for partition in PARTITIONS:
                checkers = [checker for checker in able if checker.partition == partition]
                if checkers:
                    judge = partial(judge_groups, frames, partition, self._job.context)
                    found.append(self._apart(checkers, judge))
        finally:
            if "entries" in frames:
                frames["entries"].unpersist()
        return found

    def _apart(
        self, checkers: Sequence[Checker], judge: Callable[[Sequence[Checker]], pa.Table]
    ) -> pa.Table:
        """Judge together; where that fails, each by itself, so that one takes no other along."""
        self._progress("judging " + ", ".join(checker.name for checker in checkers))
        try:
            with self._guard:
                return judge(checkers)
        except HarnessError:
            raise
        except Exception as error:
            if self._guard.has_struck:
                message = "the deadline passed while they were judged"
                return pa.concat_tables(lost(c.name, NOT_JUDGED, message) for c in checkers)
            if DAMAGED_INPUT in str(error):
                raise HarnessError(_said_by_executor(error)) from error
            if len(checkers) == 1:
                return lost(checkers[0].name, CRASHED, str(error))
            return pa.concat_tables(self._apart([checker], judge) for checker in checkers)


def _said_by_executor(error: Exception) -> str:
    """Return the message of the HarnessError that an executor raised."""
    line = next(line for line in str(error).splitlines() if DAMAGED_INPUT in line)
    return line.partition(DAMAGED_INPUT)[2].strip(": ")
