"""What both engines share: the job, judging one partition by all its checkers, and concluding.

Pure. An exception of a checker is caught here, so that the others continue and its findings in
other partitions are kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.budget_clock import budget_clock_s, unix_time_s
from shaketable.harness.contracts.plugins import CheckContext, Checker
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.schema import ENTRIES, FINDINGS, OPERATIONS

# The job: what an engine has to check, as plain data.

ReadLog = Callable[[Path, str], Iterator[pa.RecordBatch]]
"""`Target.read_log`, or a function like it: (node's folder, node) -> batches of ENTRIES.

It is pickled and called on Spark's executors, so it must be importable there.
"""


@dataclass(frozen=True, slots=True)
class SegmentedReader:
    """How a target's logs are read in parts (see `contracts.abilities.SegmentedLog`)."""

    log_segments: Callable[[Path, str], Sequence[str]]
    read_segment: Callable[[Path, str, str], Iterator[pa.RecordBatch]]


Progress = Callable[[str], None]
"""Called with a short text on what the engine does next, in the caller's thread."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A recorded run and the checkers that judge it.

    `operations` are Parquet files of OPERATIONS; `logs` maps each node to the folder that
    `read_log` decodes (may be empty: then no checker may need entries). `segments` reads the same
    logs in parts, if the target can.
    """

    operations: tuple[Path, ...]
    logs: Mapping[str, Path]
    read_log: ReadLog
    context: CheckContext
    checkers: tuple[Checker, ...]
    segments: SegmentedReader | None = None


def with_clock(job: CheckJob) -> CheckJob:
    """Return the job with a clock for its checkers, unless it has one."""
    if job.context.clock_unix_s is not None:
        return job
    return replace(job, context=replace(job.context, clock_unix_s=budget_clock_s))


def for_other_processes(context: CheckContext) -> CheckContext:
    """Return the context with its deadline as other processes have it.

    Their budget clocks did not stand still while this process compiled.
    """
    deadline = context.search.deadline_unix_s
    if deadline is None or context.clock_unix_s is not budget_clock_s:
        return context
    return replace(context, search=replace(context.search, deadline_unix_s=unix_time_s(deadline)))


def no_progress(_text: str) -> None:
    """Ignore the progress."""


BUCKET_ENTRIES = 262_144
"""Entries of each node in a "bucket": ranges of the log index that are judged by themselves."""

PARTITIONS = ("key", "bucket", "history")
"""How checkers may have the tables split; "history": not at all."""

CRASHED = "checker-crashed"
NOT_JUDGED = "not-judged"
"""Kinds of an engine's own rows: a part that crashed a checker, parts that a deadline left out."""
UNREADABLE = "unreadable: "
"""Prefix of the problem in the one row that represents a log that could not be read."""

SCHEMAS = {"operations": OPERATIONS, "entries": ENTRIES}
TAGGED = FINDINGS.insert(0, pa.field("checker", pa.string()))
"""FINDINGS with the name of the checker that found them."""

_ORDER = ("checker", "kind", "key", "offset", "message", "details")


def needs(checkers: Iterable[Checker], table: str) -> bool:
    """True if any of the checkers reads that table."""
    return any(table in checker.tables for checker in checkers)


def judges_by_key(checker: Checker) -> bool:
    """True if the checker reads operations alone, key by key."""
    return checker.partition == "key" and tuple(checker.tables) == ("operations",)


def judges_partial_logs(checker: Checker) -> bool:
    """True if the checker can judge the other logs where some cannot be read."""
    return bool(getattr(checker, "judges_partial_logs", False))


def without_unreadable(job: CheckJob, unreadable: Sequence[str]) -> CheckJob:
    """Return the job without these logs, for checkers that can do so; it names their nodes."""
    unread = [
        n for n in job.logs if any(text.startswith(f"the log of {n}: ") for text in unreadable)
    ]
    logs = {node: path for node, path in job.logs.items() if node not in unread}
    return replace(job, logs=logs, context=replace(job.context, unread=tuple(unread)))


def judge_partition(
    checkers: Sequence[Checker], tables: Mapping[str, pa.Table], context: CheckContext
) -> pa.Table:
    """Run the checkers over one partition; return rows of TAGGED.

    A checker is called where at least one of the tables that it reads has rows here.
    """
    found = [TAGGED.empty_table()]
    for checker in checkers:
        mine = {name: tables[name] for name in checker.tables}
        if not any(table.num_rows for table in mine.values()):
            continue
        found.append(judged(checker.name, partial(checker.check, mine, context)))
    return pa.concat_tables(found)


def judged(name: str, judge: Callable[[], pa.Table]) -> pa.Table:
    """Return a checker's findings as rows of TAGGED; one row with the traceback if it raises."""
    try:
        findings = judge().cast(FINDINGS)
    except Exception:
        return unjudged(name, CRASHED, traceback.format_exc())
    return tagged(name, findings)


def unjudged(name: str, kind: str, message: str, parts: int = 1) -> pa.Table:
    """Return a row of TAGGED with the reason why the checker did not judge some parts."""
    row = {"kind": kind, "count": parts, "message": message}
    return tagged(name, pa.Table.from_pylist([row], FINDINGS))


def tagged(name: str, findings: pa.Table) -> pa.Table:
    """Return rows of FINDINGS as rows of TAGGED, found by the checker of that name."""
    names = pa.array([name] * findings.num_rows, pa.string())
    return findings.add_column(0, "checker", names)


def conclude(
    checkers: Sequence[Checker],
    findings: pa.Table,
    context: CheckContext,
    unreadable: Sequence[str] = (),
) -> list[Verdict]:
    """Join the findings (rows of TAGGED, in any order) into each checker's verdict.

    `unreadable` has the logs that could not be read: checkers of entries cannot judge then, except
    those that read on. What these find in the other logs is proven nevertheless.
    """
    ordered = findings.sort_by([(column, "ascending") for column in _ORDER])
    verdicts = []
    for checker in checkers:
        mine = ordered.filter(pc.equal(ordered["checker"], checker.name)).drop_columns("checker")
        if unreadable and "entries" in checker.tables:
            why = f"the logs cannot be judged: {'; '.join(unreadable)}"
            verdict = Verdict(checker.name, Outcome.UNKNOWN, why)
            if judges_partial_logs(checker):
                found = _conclude_one(checker, mine, context)
                verdict = (
                    _with_doubt(found, why, {}) if found.outcome is Outcome.INVALID else verdict
                )
            verdicts.append(verdict)
            continue
        verdicts.append(_conclude_one(checker, mine, context))
    return verdicts


def _conclude_one(checker: Checker, findings: pa.Table, context: CheckContext) -> Verdict:
    is_crash = pc.equal(findings["kind"], CRASHED)
    is_left = pc.equal(findings["kind"], NOT_JUDGED)
    tracebacks = findings.filter(is_crash)["message"].to_pylist()
    left_out = findings.filter(is_left)
    try:
        true_findings = findings.filter(pc.invert(pc.or_(is_crash, is_left)))
        verdict = checker.conclude(true_findings, context)
    except Exception:
        tracebacks.append(traceback.format_exc())
        verdict = Verdict(checker.name, Outcome.UNKNOWN, "")
    if tracebacks:
        error = tracebacks[0].strip().rpartition("\n")[2]
        text = f"the checker crashed in {len(tracebacks)} part(s) of its work: {error}"
        verdict = _with_doubt(verdict, text, {"traceback": tracebacks[0]})
    if left_out.num_rows:
        parts = pc.sum(left_out["count"]).as_py()
        message = left_out["message"][0].as_py()
        verdict = _with_doubt(verdict, f"{parts} part(s) were not judged: {message}", {})
    if context.incomplete is not None and verdict.outcome is Outcome.VALID:
        text = f"the history is incomplete: {context.incomplete}"
        verdict = replace(verdict, outcome=Outcome.UNKNOWN, summary=text)
    return verdict


def _with_doubt(verdict: Verdict, why: str, data: Mapping[str, str]) -> Verdict:
    """Return the verdict as not VALID, with the reason; its findings are kept."""
    summary = "" if verdict.outcome is Outcome.VALID else verdict.summary
    return replace(
        verdict,
        outcome=max(verdict.outcome, Outcome.UNKNOWN),
        summary=f"{summary}; {why}" if summary else why,
        data={**verdict.data, **data},
    )
