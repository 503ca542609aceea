"""The checkers as a library, for use in tests: `check(history, model) -> Verdict`.

    from shaketable.checkers.api import Event, check

    verdict = check("history.edn", "cas-register")
    assert verdict.outcome is Outcome.VALID, verdict.summary

A history is a table of OPERATIONS, a path that `harness.history.foreign` reads, or an iterable of
`Event` or `Operation` objects. It is checked in this process, key by key. A key that exceeds the
budget is UNKNOWN. docs/checking.md has examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.engine.judge import TAGGED, conclude, judge_partition
from shaketable.checkers.linearizability.linearizable import NAME, Linearizable
from shaketable.checkers.linearizability.model_choice import (
    model_named,
    model_of_recording,
    recognise_model,
    require_fit,
)
from shaketable.checkers.models.model import Model
from shaketable.harness.budget_clock import budget_clock_s
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.plugins import CheckContext, Checker, Promises, SearchBudget
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.foreign import History, read_history
from shaketable.harness.history.foreign.columns import Columns, Pairing, key_text
from shaketable.harness.history.schema import OPERATIONS

__all__ = [
    "Event",
    "NotLinearizableError",
    "Operation",
    "Outcome",
    "SearchBudget",
    "Verdict",
    "assert_linearizable",
    "check",
    "judge_table",
    "to_operations",
]

NOTHING_KNOWN: Final = "no operation of known outcome in the history"
"""A checker's summary if it got no operation of known outcome, as for an empty history."""
TIME_S: Final = 60.0
"""Default time budget of `check` in seconds, for all keys together."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as a client records it: an invoke, later its ok, fail or info.

    `value` is as in Jepsen: the input of an invoke (a cas: `(old, new)`), the output of an ok.
    Without `time_ns` the order of the events is the order in time.
    """

    process: int
    type: str
    f: str
    value: Any = None
    key: str | int | None = None
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, as a client records it; indeterminate (info) without `return_ns`."""

    process: int
    f: str
    call_ns: int
    return_ns: int | None = None
    input: Any = None
    output: Any = None
    expected: Any = None
    offset: int | None = None
    key: str | int | None = None
    outcome: str | None = None


Recorded: TypeAlias = "pa.Table | History | Path | str | Iterable[Event] | Iterable[Operation]"


class NotLinearizableError(AssertionError):
    """A test's history is not linearizable, or could not be decided; `verdict` has the reasons."""

    def __init__(self, verdict: Verdict) -> None:
        kinds = Counter(finding.kind for finding in verdict.findings)
        words = {kind: record_of(kind) for kind in kinds}
        found = "; ".join(
            f"{count} {words[kind].one if count == 1 else words[kind].several}"
            for kind, count in kinds.items()
        )
        first = f"{verdict.outcome.name}  {found or verdict.summary}"
        lines = [first, *(finding.message for finding in verdict.findings[:3])]
        super().__init__("\n".join(lines))
        self.verdict = verdict


def check(
    history: Recorded,
    model: str | Model | None = None,
    *,
    initial: object = None,
    time_s: float = TIME_S,
    memory_bytes: int = SearchBudget().memory_bytes,
) -> Verdict:
    """Check whether a history is linearizable.

    Args:
        history: OPERATIONS, a `History`, a path, or events or operations in any iterable.
        model: the sequential model or its name; None: recognised from the operations.
        initial: the first state: a text as `--initial` takes it, or a JSON value (0, [1, 2]).
        time_s: time budget in seconds, for all keys together.
        memory_bytes: memory limit of one key's search.

    Raises:
        UsageError: the history cannot be read, or the model does not know its operations.
    """
    read = history if isinstance(history, History) else _read(history)
    if model is None and read.operations.num_rows == 0:
        return verdict_on_nothing(read)
    if model is None and read.model is not None:
        model = model_of_recording(read.model)
    if model is None:
        model = recognise_model(read.operations)
    elif isinstance(model, str):
        model = model_named(model)
    require_fit(model, pc.unique(read.operations["f"]).to_pylist())
    budget = SearchBudget(time_s, memory_bytes, budget_clock_s() + time_s)
    context = CheckContext((), {}, Promises(), search=budget, clock_unix_s=budget_clock_s)
    first = read.initial if initial is None else initial
    context = replace(context, incomplete=read.hole, is_timed=read.is_timed)
    (verdict,) = judge_table(read.operations, (Linearizable(model, first),), context)
    answered = pc.sum(pc.equal(read.operations["outcome"], "ok")).as_py() or 0
    return with_history_state(verdict, read, answered)


def assert_linearizable(history: Recorded, model: str | Model | None = None, **how: Any) -> Verdict:
    """Return the verdict of `check` if it is VALID and at least one operation was checked.

    Raises:
        NotLinearizableError: it is INVALID or UNKNOWN, or there was nothing to check; the message
            has the reasons.
        UsageError: as for `check`.
    """
    __tracebackhide__ = True  # pytest shows the test's own line
    verdict = check(history, model, **how)
    if verdict.outcome is not Outcome.VALID or not verdict.counts.get("operations"):
        raise NotLinearizableError(verdict)
    return verdict


def with_history_state(verdict: Verdict, history: History, answered: int) -> Verdict:
    """Combine the verdict on a history's operations with what is known of the history.

    A history whose end is missing is never VALID. One without a single ok operation is VALID:
    nothing contradicts it. An empty one, and one that lacks events, is UNKNOWN.

    Args:
        verdict: what a checker concluded.
        history: the history that was checked.
        answered: the number of its ok operations, counted in the history: a checker that was
            cut short counts none.
    """
    is_open = verdict.findings or verdict.outcome is Outcome.INVALID
    if (
        verdict.checker == NAME
        and answered == 0
        and not is_open
        and "traceback" not in verdict.data
    ):
        return verdict_on_nothing(history)
    if answered:  # the time was over before the first operation, or the checker crashed
        verdict = replace(verdict, summary=verdict.summary.removeprefix(f"{NOTHING_KNOWN}; "))
    if history.cut is None or verdict.outcome is not Outcome.VALID:
        return verdict
    text = f"the history is incomplete: {history.cut}"
    summary = f"{text}; what there is: {verdict.summary}"
    return replace(verdict, outcome=Outcome.UNKNOWN, summary=summary)


def verdict_on_nothing(history: History) -> Verdict:
    """Return the verdict on a history without operations of known outcome."""
    if history.incomplete is not None:
        text = f"the history is incomplete: {history.incomplete}"
        return Verdict(NAME, Outcome.UNKNOWN, text)
    if history.events == 0:
        text = f"0 operations: {history.format}, nothing to check"
        return Verdict(NAME, Outcome.UNKNOWN, text)
    text = f"nothing to object to: {history.events} events, no operation of known outcome"
    return Verdict(NAME, Outcome.VALID, text, counts={"operations": 0})


def judge_table(
    operations: pa.Table, checkers: Sequence[Checker], context: CheckContext
) -> list[Verdict]:
    """Run checkers of operations over a table, key by key, in this process."""
    ordered = operations.sort_by([("key", "ascending"), ("call_ns", "ascending")])
    codes = ordered["key"].combine_chunks().dictionary_encode(null_encoding="encode")
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    ends = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *ends.tolist(), ordered.num_rows]
    found = [TAGGED.empty_table()]
    for start, end in pairwise(bounds):
        part = {"operations": ordered.slice(start, end - start)}
        found.append(judge_partition(checkers, part, context))
    return conclude(checkers, pa.concat_tables(found), context)


def to_operations(recorded: Recorded) -> pa.Table:
    """Convert events, operations or a file of them to OPERATIONS.

    Raises:
        UsageError: one of them cannot be converted; the message is one line.
    """
    return (recorded if isinstance(recorded, History) else _read(recorded)).operations


def _read(history: pa.Table | Path | str | Iterable[Event] | Iterable[Operation]) -> History:
    if isinstance(history, pa.Table):
        try:
            table = history.select(OPERATIONS.names).cast(OPERATIONS)
        except (KeyError, pa.ArrowInvalid) as error:
            raise UsageError(f"the table is none of OPERATIONS: {error}") from error
        return History(Path("table"), "a table", table, table.num_rows)
    if isinstance(history, (str, Path)):
        return read_history(history)
    recorded = list(history)
    try:
        if all(isinstance(each, Operation) for each in recorded):
            return _from_operations(recorded)
        return _from_events(recorded)
    except ValueError as error:
        raise UsageError(f"the history is none: {error}") from error


def _from_operations(recorded: Iterable[Any]) -> History:
    columns = Columns()
    for number, given in enumerate(recorded):
        key = None if given.key is None else key_text(given.key)
        row = columns.call(number, columns.number_of(given.process), given.f, key, given.call_ns)
        for name in ("input", "expected", "output", "offset"):
            columns.put(row, name, getattr(given, name))
        outcome = given.outcome or ("info" if given.return_ns is None else "ok")
        if outcome != "info" and (given.return_ns is None or given.return_ns < given.call_ns):
            raise ValueError(f"{given} is {outcome}, and returned at no time, or before its call")
        columns.finish(row, outcome, given.return_ns or 0)
    return History(Path("operations"), "operations", columns.table(), len(columns))


def _from_events(recorded: Iterable[Any]) -> History:
    pairing = Pairing("event")
    count = 0
    is_timed = None
    for number, event in enumerate(recorded):
        if not isinstance(event, Event):
            raise UsageError(f"{event!r} is neither an Event nor an Operation")
        if is_timed is None:
            is_timed = event.time_ns is not None
        if is_timed != (event.time_ns is not None):
            raise ValueError("some events have a time and some have none")
        time_ns = number if event.time_ns is None else event.time_ns
        process = pairing.columns.number_of(event.process)
        key = None if event.key is None else key_text(event.key)
        if event.type == "invoke":
            pairing.invoke(number, process, event.f, key, event.value, time_ns)
        elif event.type in ("ok", "fail", "info"):
            pairing.complete(event.type, process, event.f, event.value, time_ns, number)
        else:
            raise ValueError(f"{event.type!r} is no type of an event")
        count = number + 1
    table = pairing.columns.table()
    return History(
        Path("events"), "events", table, count, hole=pairing.problem, is_timed=bool(is_timed)
    )
