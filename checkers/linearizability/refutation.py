"""Writes a refutation down: the shortest failing part of a history as JSON-able evidence.

`details` of a finding "not-linearizable" or "undecided":

- model, method: which model, and what decided ("search", "window", "zones", "fifo" ...).
- operations: {op, process, call, call_ns, return_ns, outcome} of the failing part, at most
  OPERATIONS_MAX, in the order of their calls; return_ns is null where the outcome is unknown.
  One that evidence closed stands there as it was recorded, with the evidence as "closed".
- prefix: {op, state} of the longest linearizable prefix inside the part, its last PREFIX_MAX.
- stuck: id of the operation whose return cannot be passed; could_not: {op, why} for it and for
  those that were open then; before: how many operations had returned before the part.
- states: how the object could stand at the part's begin.
- stale: where a read is stale by real time alone, {read, written, over, since_ns}: see
  `staleness.Stale`.
- why (undecided only): the budget that was used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence.closing import CLOSED, Citation, sentences
from checkers.linearizability.longest_prefix import Prefix, as_found, longest_prefix
from checkers.linearizability.staleness import Stale, in_words, stale_read, stalest_read
from checkers.models.columns import call_of
from checkers.models.model import Call, Model
from checkers.search.found import Found, Part
from checkers.search.problem import NEVER, Problem
from checkers.special.decision import Accusation, Decision
from harness.verdict import Finding, Outcome

NOT_LINEARIZABLE = "not-linearizable"
UNDECIDED = "undecided"
OPERATIONS_MAX = 200
PREFIX_MAX = 200
STATES_MAX = 20
CLOSED_MAX = 20
NS_PER_S = 1e9

Json = dict[str, Any]


class Operations:
    """One partition's operations, told in words by their model.

    `table` has them as they are judged. Those that evidence closed, `cited`, are told as they
    were recorded: of unknown outcome.
    """

    def __init__(
        self, table: pa.Table, model: Model, cited: Mapping[int, Citation] | None = None
    ) -> None:
        """Take rows of OPERATIONS."""
        self.table, self.model = table, model
        self.cited: Mapping[int, Citation] = {} if cited is None else cited

    def rows(self, ops: Iterable[int]) -> dict[int, Json]:
        """Return the rows of these operations by id."""
        ids = pa.array(sorted(set(ops)), pa.int64())
        found = self.table.filter(pc.is_in(self.table["op"], ids))
        return {row["op"]: row for row in found.to_pylist()}

    def open_at(self, end: int, ops: Iterable[int]) -> dict[int, Json]:
        """Return the rows of those operations that are not over before that time."""
        return_ns = self.table["return_ns"]
        is_open = pc.or_kleene(
            pc.not_equal(self.table["outcome"], "ok"), pc.greater_equal(return_ns, end)
        )
        wanted = set(ops)
        rows = self.table.filter(pc.and_(is_open, pc.less_equal(self.table["call_ns"], end)))
        return {row["op"]: row for row in rows.to_pylist() if row["op"] in wanted}

    def shown(self, ops: Sequence[int]) -> list[Json]:
        """Return what a report shows of these operations, in the order of their calls."""
        recorded = [self._recorded(row) for row in self.rows(ops).values()]
        return [
            {
                "op": row["op"],
                "process": row["process"],
                "call": self.model.describe_call(call_of(row)),
                "call_ns": row["call_ns"],
                "return_ns": row["return_ns"] if row["outcome"] == "ok" else None,
                "outcome": row["outcome"],
            }
            | ({CLOSED: self.cited[row["op"]]["message"]} if row["op"] in self.cited else {})
            for row in sorted(recorded, key=lambda row: (row["call_ns"], row["op"]))
        ]

    def _recorded(self, row: Json) -> Json:
        return row | {"outcome": "info", "return_ns": None} if row["op"] in self.cited else row

    def name(self, op: int) -> str:
        """Name an operation: "read 3 by process 2 (op 88)"."""
        row = self._recorded(self.rows([op])[op])
        call = self.model.describe_call(call_of(row))
        return f"{call} by process {row['process']} (op {op})"


def explain_part(
    part: Part, problem: Problem, operations: Operations, method: str | None = None
) -> Finding:
    """Say which part of the history cannot be linearized, and what could not come next."""
    prefix = longest_prefix(part, problem)
    details = _details(part, prefix, operations) | {"method": method or part.method}
    op = prefix.stuck
    reasons = {each["op"]: each["why"] for each in details["could_not"]}
    stuck = reasons.get(op, "no order of what was called by then allows it")
    message = f"{operations.name(op)} cannot take effect {_by_when(op, operations)}: {stuck}."
    stale = _stale(operations, details, [op, *(each for each in prefix.operations if each != op)])
    message += stale + sentences(operations.cited, _needed(prefix, operations))
    return Finding(NOT_LINEARIZABLE, message, None, None, _ids(details), details)


def explain_open_part(part: Part, why: str, operations: Operations) -> Finding:
    """Say which part of the history could not be decided within the budget."""
    details = _details(part, as_found(part), operations) | {"why": why}
    known = part.operations.tolist()
    first, last = (known[0], part.stuck) if known else (part.stuck, part.stuck)
    message = (
        f"undecided when the budget of {why} was used up; open from operation {first}"
        f" ({part.first_ns / NS_PER_S:.3f} s) to operation {last}"
        f" ({part.last_ns / NS_PER_S:.3f} s), {part.before} operations before it."
    )
    details |= {"first": first, "last": last, "first_ns": part.first_ns, "last_ns": part.last_ns}
    return Finding(UNDECIDED, message, None, None, _ids(details), details)


def explain_decision(
    decision: Decision,
    problem: Problem,
    operations: Operations,
    decide: Callable[[Problem], Found],
) -> Finding | None:
    """Say what a special case found wrong, None if nothing is."""
    if decision.part is not None:
        return explain_part(decision.part, problem, operations, decision.method)
    if decision.accusation is None:
        return None
    return _explain_accusation(decision, decision.accusation, problem, operations, decide)


def _explain_accusation(
    decision: Decision,
    accusation: Accusation,
    problem: Problem,
    operations: Operations,
    decide: Callable[[Problem], Found],
) -> Finding:
    """Say what a special case found.

    Where the accused operations alone are already impossible, the search is asked to show it:
    that finds the longest prefix, and holds the special case to its word.
    """
    why = accusation.why.format(*(operations.name(op) for op in accusation.ops))
    ops = accusation.ops[:OPERATIONS_MAX]
    about: Json = {}
    stale = _stale(operations, about, accusation.ops)
    message = f"{why}.{stale}{sentences(operations.cited, accusation.ops)}"
    if accusation.closed:
        alone = only(problem, accusation.ops)
        found = decide(alone)
        assert found.outcome is not Outcome.VALID, f"{decision.method} accuses what is valid: {why}"
        if found.part is not None and found.outcome is Outcome.INVALID:
            shown = explain_part(found.part, alone, operations, decision.method)
            details = shown.details | about | {"operations": operations.shown(ops)}
            return replace(shown, message=message, operations=ops, details=details)
    details = {
        "model": operations.model.name,
        "method": decision.method,
        "operations": operations.shown(ops),
        "prefix": [],
        "stuck": ops[0],
        "could_not": [{"op": ops[0], "why": why}],
        "before": int((problem.return_ns < _call_of(problem, ops[0])).sum()),
        "states": [],
        **about,
    }
    return Finding(NOT_LINEARIZABLE, message, None, None, ops, details)


def _stale(operations: Operations, details: Json, among: Sequence[int]) -> str:
    """Say which of these operations is a stale read, and note it in the details.

    Where none of them can be shown to be, say so of the stalest read of this register; "" if it
    has none.
    """
    about = (operations.model.name, operations.table)
    unsure = operations.cited.keys()
    found = stale_read(*about, among, unsure)
    begin = "The read"
    if found is None:
        found = stalest_read(*about, unsure)
        begin = "Seen most plainly elsewhere: the read"
    if found is None:
        return ""
    details["stale"] = asdict(found)
    shown = {each["op"] for each in details.get("operations", ())}
    named = (found.read, found.written, found.over, found.written_seen, found.over_seen)
    more = [op for op in dict.fromkeys(named) if op is not None and op not in shown]
    if "operations" in details and len(shown) + len(more) <= OPERATIONS_MAX:
        details["operations"] = operations.shown([*shown, *more])
    new = operations.model.describe_call(call_of(operations.rows([found.over])[found.over]))
    old = None if found.written is None else operations.name(found.written)
    return f" {begin} of op {found.read} is stale: {_written_over(found, old, new)}."


def _written_over(found: Stale, old: str | None, new: str) -> str:
    """Say how it is known that `new` was written over `old` before that read began."""
    told = f"{new} (op {found.over})"
    if old is not None and found.written_seen is None:
        told += f", called after {old} was over,"
    elif old is not None:
        told += f", called after op {found.written_seen} had read what {old} wrote,"
    since = in_words(found.since_ns)
    if found.over_seen is None:
        return f"{told} had been acknowledged {since} before it began"
    return f"{told} had been read by op {found.over_seen} {since} before it began"


def only(problem: Problem, ops: Sequence[int]) -> Problem:
    """Return the problem with these operations alone."""
    rows = np.flatnonzero(np.isin(problem.op, np.asarray(ops, dtype=np.int64)))
    return replace(
        problem,
        kind=problem.kind[rows],
        call_ns=problem.call_ns[rows],
        return_ns=problem.return_ns[rows],
        op=problem.op[rows],
    )


def _call_of(problem: Problem, op: int) -> int:
    return int(problem.call_ns[np.flatnonzero(problem.op == op)[0]])


def _ids(details: Json) -> tuple[int, ...]:
    """Return the operations of known outcome that a finding names, the stuck one first."""
    known = [
        each["op"] for each in details["operations"] if each["outcome"] == "ok" or CLOSED in each
    ]
    return (details["stuck"], *(op for op in known if op != details["stuck"]))


def _details(part: Part, prefix: Prefix, operations: Operations) -> Json:
    """Return what both kinds of findings carry of a part."""
    steps = prefix.steps[-PREFIX_MAX:]
    unknown = set(part.unknown.tolist())
    used = [op for op, _ in steps if op in unknown]
    known = [op for op in prefix.operations if op != prefix.stuck]
    could_not = _could_not(prefix, operations)
    # Those that a person needs most: the stuck one, those of which it is said why they cannot come
    # next, unknown ones that were used, those that were closed with what closed them, the last.
    closed = _needed(prefix, operations)[:CLOSED_MAX]
    witnesses = [operations.cited[op]["evidence_op"] for op in closed]
    evidence = [op for pair in zip(closed, witnesses, strict=True) for op in pair if op is not None]
    refused = [each["op"] for each in could_not]
    chosen = [prefix.stuck, *refused, *used, *evidence, *known[::-1]]
    chosen = list(dict.fromkeys(chosen))[:OPERATIONS_MAX]
    model = operations.model
    return {
        "model": model.name,
        "method": part.method,
        "operations": operations.shown(chosen),
        "prefix": [{"op": op, "state": model.describe_state(state)} for op, state in steps],
        "stuck": prefix.stuck,
        "could_not": could_not,
        "before": part.before,
        "states": [model.describe_state(state) for state in part.states[:STATES_MAX]],
    }


def _could_not(prefix: Prefix, operations: Operations) -> list[Json]:
    """Say why the stuck operation, and others open at its return, cannot follow the prefix."""
    model = operations.model
    done = {op for op, _ in prefix.steps}
    (stuck,) = operations.rows([prefix.stuck]).values()
    rows = operations.open_at(_end(stuck), set(prefix.operations) - done - {prefix.stuck})
    calls: list[tuple[int, Call]] = [(prefix.stuck, call_of(stuck))]
    calls += [(op, call_of(row)) for op, row in sorted(rows.items())]
    refused = [(op, call) for op, call in calls if model.step(prefix.state, call) is None]
    return [
        {"op": op, "why": model.why_not(prefix.state, call)}
        for op, call in refused[:OPERATIONS_MAX]
    ]


def _by_when(op: int, operations: Operations) -> str:
    """Say when the operation that cannot be placed must have taken effect."""
    citation = operations.cited.get(op)
    if citation is None:
        return "before it returns"
    witness = citation["evidence_op"]
    return "by the end" if witness is None else f"before op {witness} returns"


def _needed(prefix: Prefix, operations: Operations) -> list[int]:
    """Return those that evidence closed and that the refutation rests on, the stuck one first."""
    begin = [prefix.stuck, *(op for op, _ in reversed(prefix.steps)), *reversed(prefix.operations)]
    return [op for op in begin if op in operations.cited]


def _end(row: Json) -> int:
    return int(row["return_ns"]) if row["outcome"] == "ok" else NEVER
