"""The check pipeline on PySpark, local[*] or a cluster; only `spark*` import pyspark.

Operations come from Parquet files that are written by key, and the nodes' logs are decoded on the
executors. Each key or range goes through the same pure functions that checkers.engine.local calls.
Only findings return to the driver.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.compiling import compile_first
from shaketable.checkers.engine.java import Java
from shaketable.checkers.engine.judge import (
    CRASHED,
    NOT_JUDGED,
    PARTITIONS,
    TAGGED,
    UNREADABLE,
    CheckJob,
    Progress,
    ReadLog,
    conclude,
    for_other_processes,
    judges_by_key,
    judges_partial_logs,
    needs,
    no_progress,
    unjudged,
    with_clock,
    without_unreadable,
)
from shaketable.checkers.engine.keys import (
    Spent,
    Task,
    coded,
    judge_tables,
    plan,
    read_files,
    split_times,
)
from shaketable.checkers.engine.local import limited_memory
from shaketable.checkers.engine.log_evidence import with_log_evidence
from shaketable.checkers.online import Progress as StreamProgress
from shaketable.checkers.spark.frames import (
    ddl,
    is_split,
    judge_groups,
    judge_split,
    read_operations,
)
from shaketable.checkers.spark.session import Session, first_line
from shaketable.checkers.spark.streaming import StreamPlan, start_query
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.schema import ENTRIES

DAMAGED_INPUT = "shaketable.harness.contracts.errors.HarnessError"
"""The name, in an executor's traceback, of the error for a file that cannot be read."""


class SparkEngine:
    """A Spark session for checking; start it while the campaign drains, use it, stop it.

    `start` takes some seconds and may run in a thread of its own; `run` and `stop` wait
    for it. Nothing is imported or launched before `start`. A process has at most one engine with
    a driver of its own at a time. The JVM ends when this process does, however that ends.

    A driver here writes its classes to `keep_classes` as it ends, if given.

    `spent` is how long the tasks of the last `run` took to read and judge operations by key.
    """

    def __init__(self, master: str = "local[*]", keep_classes: Path | None = None) -> None:
        self.master = master
        self._lock = threading.Lock()
        self._session = Session(master, keep_classes)
        self.spent = Spent()

    @property
    def java(self) -> Java | None:
        """Return the Java of the driver; None before the start, and on a remote server."""
        return self._session.java

    @property
    def is_here(self) -> bool:
        """Return whether the driver's process does all the work, on this machine."""
        return self._session.is_here

    @property
    def scratch(self) -> Path | None:
        """Return the folder of the session's files while it is open."""
        return self._session.scratch

    def start(self) -> Java | None:
        """Find Java, launch Spark or connect to it, warm it up; idempotent.

        Raises:
            UsageError: no suitable Java, or a remote master cannot be used.
            HarnessError: the local Spark does not start.
        """
        with self._lock:
            if self._session.frames is None:
                self._session.open()
            return self._session.java

    def judge_stream(self, plan: StreamPlan, take: Callable[[list[StreamProgress]], None]) -> Any:
        """Start a query that judges a history while it grows; the session is open.

        Raises:
            HarnessError: Spark does not start it.
        """
        return start_query(self._session, plan, take)

    def run(self, job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
        """Run a job as `checkers.engine.local.run_local` does, on Spark; start it if needed.

        If a Spark job fails because a process died, each of its checkers gets a job of its own, so
        that only the checker at fault is UNKNOWN. A job that still runs GRACE_S after the deadline
        is cancelled.

        Raises:
            HarnessError: Spark failed, or the operations cannot be read.
            UsageError: it does not start.
        """
        progress("waiting for Spark")
        self.start()
        if self.is_here:
            compile_first(progress)
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
        self._job = replace(job, context=for_other_processes(job.context))
        self._progress = progress
        self._unreadable: list[str] = []
        self._guard = Guard(frames, job.context)

    def verdicts(self) -> list[Verdict]:
        """Run all checkers, those of the same kind together."""
        split = [checker for checker in self._job.checkers if is_split(checker)]
        by_key = [c for c in self._job.checkers if judges_by_key(c) and c not in split]
        others = [c for c in self._job.checkers if c not in split and c not in by_key]
        found = [TAGGED.empty_table()]
        if split:
            found.append(self._judge_isolated(split, self._judge_split))
        if by_key:
            found.append(self._judge_isolated(by_key, self._judge_by_key))
        if others:
            found += self._judge_others(others)
        self._progress("concluding")
        joined = pa.concat_tables(found)
        return conclude(self._job.checkers, joined, self._job.context, self._unreadable)

    def _judge_split(self, checkers: Sequence[Checker]) -> pa.Table:
        findings, unreadable = judge_split(self._frames, self._job, list(checkers))
        if unreadable:  # again without these logs: findings from the others remain proven
            self._unreadable = unreadable
            self._job = without_unreadable(self._job, unreadable)
            able = [checker for checker in checkers if judges_partial_logs(checker)]
            findings, more = judge_split(self._frames, self._job, able)
            findings = TAGGED.empty_table() if more else findings
        return findings

    def _judge_by_key(self, checkers: Sequence[Checker]) -> pa.Table:
        findings, self.spent = judge_by_key(self._frames, self._job, checkers)
        return findings

    def _judge_others(self, others: Sequence[Checker]) -> list[pa.Table]:
        """Run the checkers that need whole tables, or decoded logs."""
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
                    found.append(self._judge_isolated(checkers, judge))
        finally:
            if "entries" in frames:
                frames["entries"].unpersist()
        return found

    def _judge_isolated(
        self, checkers: Sequence[Checker], judge: Callable[[Sequence[Checker]], pa.Table]
    ) -> pa.Table:
        """Judge checkers together; if that fails, each by itself, so that only one is UNKNOWN."""
        self._progress("judging " + ", ".join(checker.name for checker in checkers))
        try:
            with self._guard:
                return judge(checkers)
        except HarnessError:
            raise
        except Exception as error:
            if self._guard.has_cancelled:
                message = "the deadline passed while they were judged"
                return pa.concat_tables(unjudged(c.name, NOT_JUDGED, message) for c in checkers)
            if DAMAGED_INPUT in str(error):
                raise HarnessError(_executor_message(error)) from error
            if len(checkers) == 1:
                return unjudged(checkers[0].name, CRASHED, str(error))
            return pa.concat_tables(self._judge_isolated([checker], judge) for checker in checkers)


def _executor_message(error: Exception) -> str:
    """Return the message of the HarnessError that an executor raised."""
    line = next(line for line in str(error).splitlines() if DAMAGED_INPUT in line)
    return line.partition(DAMAGED_INPUT)[2].strip(": ")


# Operations judged by key in Spark: files as they were written, or sorted first.
#
# A row of the first data frame is a task: its files are read by pyarrow on the executor and judged
# key after key, so nothing is shuffled and the JVM sees only findings. Executors must reach the
# files under the paths that the driver uses (on a cluster, in a shared folder).
#
# Files from elsewhere that are not sorted by key are sorted first: Spark partitions their rows by
# key and sorts each partition, and the same code judges them.

WORKERS_UNKNOWN = 16
"""The assumed number of workers behind a Spark Connect server."""

Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def judge_by_key(
    session: Any, job: CheckJob, checkers: Sequence[Checker]
) -> tuple[pa.Table, Spent]:
    """Run checkers of operations by key; return rows of TAGGED, and the time spent.

    Raises:
        HarnessError: a file cannot be read.
    """
    planned = plan(job.operations, workers=_workers(session))
    found = [TAGGED.empty_table()]
    if planned.tasks:
        count = len(planned.tasks)
        tasks = session.range(0, count, 1, count)
        judge = _judge_tasks(planned.tasks, tuple(checkers), job.context)
        found.append(tasks.mapInArrow(judge, ddl(TAGGED)).toArrow().cast(TAGGED))
    if planned.unsorted:
        found.append(_judge_unsorted(session, planned.unsorted, checkers, job.context))
    return split_times(pa.concat_tables(found))


def _workers(session: Any) -> int:
    """Return how many tasks Spark runs at a time; a Spark Connect server does not report it."""
    if not hasattr(session, "_jsparkSession"):
        return WORKERS_UNKNOWN
    return max(1, int(session.sparkContext.defaultParallelism))


def _judge_tasks(
    tasks: tuple[Task, ...], checkers: tuple[Checker, ...], context: CheckContext
) -> Judge:
    """Return the function that judges tasks by their numbers, on an executor."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with limited_memory(context.search.memory_bytes):
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    tables = read_files(tasks[number].paths)
                    for found in judge_tables(tables, checkers, context, time.perf_counter):
                        yield from found.to_batches()

    return judge


def _judge_unsorted(
    session: Any, paths: Sequence[Path], checkers: Sequence[Checker], context: CheckContext
) -> pa.Table:
    """Partition the rows of files by key and sort them, then judge."""
    frame = read_operations(session, paths)
    dealt = frame.repartition("key").sortWithinPartitions("key", "call_ns", "op")
    judge = _judge_rows(tuple(checkers), context)
    return dealt.mapInArrow(judge, ddl(TAGGED)).toArrow().cast(TAGGED)


def _judge_rows(checkers: tuple[Checker, ...], context: CheckContext) -> Judge:
    """Return the function that judges sorted rows of OPERATIONS, on an executor."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with limited_memory(context.search.memory_bytes):
            tables = (coded(pa.Table.from_batches([batch])) for batch in batches)
            for found in judge_tables(tables, checkers, context, time.perf_counter):
                yield from found.to_batches()

    return judge


# The nodes' logs in Spark: decoded on the executors into rows of ENTRIES.


def decode_logs(session: Any, job: CheckJob) -> Any:
    """Return a data frame of all nodes' entries, decoded on the executors, one task a node."""
    schema = ddl(ENTRIES)
    logs = [(node, str(path)) for node, path in sorted(job.logs.items())]
    if not logs:
        return session.createDataFrame([], schema)
    nodes = session.createDataFrame(logs, "node string, path string")
    spread = nodes.repartitionByRange(len(logs), "node")
    return spread.mapInArrow(_decoder(job.read_log), schema)


def _decoder(read_log: ReadLog) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that turns rows of (node, path) into entries, on an executor."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    yield from read_log(Path(row["path"]), row["node"])
                except Exception as error:  # a plug-in's reader: its failure is data
                    last = traceback.format_exception_only(error)[-1].strip()
                    lost = {"node": row["node"], "problem": f"{UNREADABLE}{last}"}
                    yield pa.RecordBatch.from_pylist([lost], ENTRIES)

    return decode


def unreadable_logs(entries: Any) -> list[str]:
    """Return which logs could not be read, and why; this runs the decoding."""
    rows = entries.where(f"`index` is null and startswith(problem, '{UNREADABLE}')").collect()
    quoted = sorted((row["node"], row["problem"].removeprefix(UNREADABLE)) for row in rows)
    return [f"the log of {node}: {problem}" for node, problem in quoted]


# Cancels the jobs of a Spark session after the deadline of a check.

GRACE_S = 0.4
"""How long a job may run after the deadline: checkers end by themselves, with their undecided
parts."""
CANCEL_AGAIN_S = 0.5
"""The interval at which a job that still runs is cancelled again."""

_LOG = logging.getLogger(__name__)


class Guard:
    """Cancels the jobs of a session, inside `with`, GRACE_S after the deadline."""

    def __init__(self, frames: Any, context: CheckContext) -> None:
        self.has_cancelled = False
        self._frames = frames
        self._context = context
        self._tag = f"shaketable-{secrets.token_hex(4)}"
        self._watch: threading.Thread | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        """Start to watch."""
        deadline, clock = self._context.search.deadline_unix_s, self._context.clock_unix_s
        if deadline is None or clock is None:
            return
        self._frames.addTag(self._tag)
        self._is_over.clear()
        left_s = max(0.0, deadline - clock()) + GRACE_S
        self._watch = threading.Thread(target=self._cancel, args=(left_s,), daemon=True)
        self._watch.start()

    def __exit__(self, *_raised: object) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._is_over.set()
            self._watch.join()
            self._watch = None
            self._frames.removeTag(self._tag)

    def _cancel(self, after_s: float) -> None:
        """Interrupt jobs until `with` ends: a job that is being created is not seen at first."""
        while not self._is_over.wait(after_s):
            self.has_cancelled = True
            try:
                if not self._frames.interruptTag(self._tag):
                    _cancel_all(self._frames)
            except Exception as error:  # it may have ended just now
                _LOG.debug("spark job not interrupted: error=%s", error)
            after_s = CANCEL_AGAIN_S


def _cancel_all(frames: Any) -> None:
    """Cancel all jobs of a session: the watched one may have no tag, and is the only one."""
    if hasattr(frames, "_jsparkSession"):  # the driver is ours
        frames.sparkContext.cancelAllJobs()
    else:
        frames.interruptAll()
