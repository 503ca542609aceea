"""Explains a refutation: the shortest failing part of a history as JSON-able evidence.

`details` of a finding "not-linearizable" or "undecided":

- model, method: which model, and what decided ("search", "window", "zones", "fifo" ...).
- operations: {op, process, call, call_ns, return_ns, outcome} of the failing part, at most
  OPERATIONS_MAX, in the order of their calls; return_ns is null where the outcome is unknown.
  One that evidence resolved is listed as it was recorded, with the evidence as "closed".
- prefix: {op, state} of the longest linearizable prefix inside the part, its last PREFIX_MAX.
- stuck: id of the operation whose return no linearization passes; could_not: {op, why} for it and
  for those that were open then; before: how many operations had returned before the part.
- states: the possible states of the object at the part's start.
- stale: if a read is stale by real time alone, {read, written, over, since_ns}: see
  `staleness.Stale`. It is accused; with `without`, only once these operations are removed.
  Without since_ns if the history has no times.
- accused (not undecided): {operations, until_ns, why}: the operations at fault, see
  `accusation.Accused`. They come first in the finding's operations. If a limit was reached, `why`
  names it and there are none, which the message states.
- why (undecided only): the exhausted budget.

The longest prefix: the search abandons a configuration as soon as it cannot lead to a
linearization, often long before an answer contradicts the state: a write may make a later read
impossible. A reader wants to see that write applied and the read fail, even if the read returned a
little after the part that the search examined. So the prefix is extended as far as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.evidence import RESOLVED, Citation, citation_sentence
from shaketable.checkers.linearizability.accusation import (
    Accused,
    Register,
    Stale,
    format_duration,
    read_of_failed,
    stale_read,
)
from shaketable.checkers.linearizability.deciding import OF_MODEL, Answer
from shaketable.checkers.models.encoding import call_of
from shaketable.checkers.models.model import Call, Model
from shaketable.checkers.search.problem import NEVER, Found, Part, Problem, State, Witness
from shaketable.checkers.special.decision import Accusation
from shaketable.harness.contracts.verdict import Finding, Outcome

NOT_LINEARIZABLE = "not-linearizable"
UNDECIDED = "undecided"
OPERATIONS_MAX = 200
PREFIX_MAX = 200
STATES_MAX = 20
RESOLVED_MAX = 20
NS_PER_S = 1e9

Json = dict[str, Any]


class Operations:
    """One partition's operations, as their model describes them.

    `table` has them as they are judged. Those that evidence resolved, `cited`, are described as
    they were recorded: indeterminate. `whole` is the full history if `table` is a prefix, in which
    operations that were still open are indeterminate; they are described as in `whole`.
    """

    def __init__(
        self,
        table: pa.Table,
        model: Model,
        cited: Mapping[int, Citation] | None = None,
        whole: pa.Table | None = None,
        initial: State = None,
    ) -> None:
        """Take rows of OPERATIONS."""
        self.table, self.model, self._initial = table, model, initial
        self.cited: Mapping[int, Citation] = {} if cited is None else cited
        self._whole = table if whole is None else whole

    def rows(self, ops: Iterable[int]) -> dict[int, Json]:
        """Return the rows of these operations by id, as they are judged."""
        return _rows(self.table, ops)

    def open_at(self, end: int, ops: Iterable[int]) -> dict[int, Json]:
        """Return those operations that were called by then and had not returned ok before."""
        return_ns = self.table["return_ns"]
        is_open = pc.or_kleene(
            pc.not_equal(self.table["outcome"], "ok"), pc.greater_equal(return_ns, end)
        )
        wanted = set(ops)
        rows = self.table.filter(pc.and_(is_open, pc.less_equal(self.table["call_ns"], end)))
        return {row["op"]: row for row in rows.to_pylist() if row["op"] in wanted}

    def shown(self, ops: Sequence[int]) -> list[Json]:
        """Return these operations as a report shows them, in the order of their calls."""
        recorded = [self._recorded(row) for row in _rows(self._whole, ops).values()]
        return [
            {
                "op": row["op"],
                "process": row["process"],
                "call": self._call(row),
                "call_ns": row["call_ns"],
                "return_ns": None if row["outcome"] == "info" else row["return_ns"],
                "outcome": row["outcome"],
            }
            | ({RESOLVED: self.cited[row["op"]]["message"]} if row["op"] in self.cited else {})
            for row in sorted(recorded, key=lambda row: (row["call_ns"], row["op"]))
        ]

    def name(self, op: int) -> str:
        """Return an operation's name for messages: "read 3 by process 2 (op 88)"."""
        row = self._recorded(_rows(self._whole, [op])[op])
        return f"{self._call(row)} by process {row['process']} (op {op})"

    @property
    def register(self) -> Register:
        """These operations as a register's; they are judged only if the model is a register."""
        initial = self._initial
        value = initial[0] if isinstance(initial, tuple) and len(initial) == 1 else None
        return Register(self.model.name, self.table, value)

    def _recorded(self, row: Json) -> Json:
        return row | {"outcome": "info", "return_ns": None} if row["op"] in self.cited else row

    def _call(self, row: Json) -> str:
        text = self.model.describe_call(call_of(row))
        return f"{text.removesuffix(': ?')}: failed" if row["outcome"] == "fail" else text


def _rows(table: pa.Table, ops: Iterable[int]) -> dict[int, Json]:
    found = table.filter(pc.is_in(table["op"], pa.array(sorted(set(ops)), pa.int64())))
    return {row["op"]: row for row in found.to_pylist()}


@dataclass(frozen=True, slots=True)
class Judged:
    """A history: its operations, their encoding, and what shows that it is not linearizable."""

    answer: Answer
    problem: Problem
    operations: Operations


@dataclass(frozen=True, slots=True)
class Refuted:
    """A history that is not linearizable, and the operations at fault.

    `known` are the operations up to the return that no linearization passes, as they were known
    then; all of them if no operation is accused. `is_timed`: its times are more than a count of its
    events.
    """

    whole: Judged
    accused: Accused
    known: Operations
    is_timed: bool = True


def explain_refutation(
    refuted: Refuted,
    decide: Callable[[Problem], Found],
    until_then: Callable[[], Judged] | None = None,
    elsewhere: Callable[[], Stale | None] = lambda: None,
) -> Finding:
    """Explain what is wrong, and which operations are at fault.

    Args:
        refuted: what is to be explained.
        decide: the search.
        until_then: decides the history up to the return that no linearization passes.
        elsewhere: looks for a stale read if none of the accused is one.
    """
    accused, whole = refuted.accused, refuted.whole.operations
    finding = _explained(refuted, decide, until_then)
    message, details = finding.message, dict(finding.details)
    chosen = list(dict.fromkeys((*accused.ops, *finding.operations)))[:OPERATIONS_MAX]
    shown = [each["op"] for each in details["operations"]]
    shown = list(dict.fromkeys((*accused.ops, *shown)))[:OPERATIONS_MAX]
    details |= {"operations": whole.shown(shown), "accused": _accused_json(accused)}
    message += _stale_sentence(refuted, details, elsewhere) + _fault_sentence(accused)
    needed = [each["op"] for each in (*details["prefix"][::-1], *details["operations"][::-1])]
    message += citation_sentence(whole.cited, [*chosen[:1], *needed])
    return replace(finding, message=message, operations=tuple(chosen), details=details)


def _explained(
    refuted: Refuted,
    decide: Callable[[Problem], Found],
    until_then: Callable[[], Judged] | None,
) -> Finding:
    """Explain what is wrong with the accused operations.

    The refutation of the whole history may know more: which later write was read too early. If it
    is about other operations, the history up to the return is explained by itself.
    """
    ops, whole = refuted.accused.ops, refuted.whole
    finding, about = _explain(whole, decide)
    if not ops or until_then is None:
        return finding
    is_fit = ops == about[:1] or _is_of(about, refuted.accused, whole.problem)
    if is_fit and finding.details["stuck"] in ops:
        return finding
    judged = until_then()
    if not is_fit and _is_shown(judged.answer):
        finding, about = _explain(judged, decide)
        is_fit = not set(ops).isdisjoint(about)
        if is_fit and finding.details["stuck"] in ops:
            return finding
    instead = _explain_by_order(judged, refuted.accused, decide)
    return replace(instead, message=finding.message) if is_fit else instead


def _is_of(about: tuple[int, ...], accused: Accused, problem: Problem) -> bool:
    """Return whether an explanation is about the accused, and all of it was known by then."""
    ends = problem.return_ns[np.isin(problem.op, about)]
    assert accused.until_ns is not None, "who is accused is so by a return"
    return accused.ops[0] in about and bool((ends[ends != NEVER] <= accused.until_ns).all())


def _is_shown(answer: Answer) -> bool:
    """Return whether an answer shows what is wrong; it may have run out of time instead."""
    is_something = answer.part is not None or answer.accusation is not None
    return answer.outcome is Outcome.INVALID and is_something


def _explain(judged: Judged, decide: Callable[[Problem], Found]) -> tuple[Finding, tuple[int, ...]]:
    """Explain what is wrong with a history; return also the operations, the main one first."""
    accusation, part = judged.answer.accusation, judged.answer.part
    if accusation is not None:
        return _explain_accusation(judged, accusation, decide), accusation.ops
    assert part is not None, "what is not linearizable is shown by a part of it"
    finding = _explain_part(part, judged.problem, judged.operations, judged.answer.method)
    return finding, (finding.details["stuck"],)


def _explain_by_order(
    judged: Judged, accused: Accused, decide: Callable[[Problem], Found]
) -> Finding:
    """Explain why the accused cannot follow a linearization of all others.

    The others have one by the proof of the accusation; only its end is shown.
    """
    problem, operations = judged.problem, judged.operations
    assert accused.until_ns is not None, "who is accused is so by a return"
    others = only(problem, np.setdiff1d(problem.op, accused.ops).tolist())
    found = decide(others)
    order = () if found.witness is None else needed_steps(others, found.witness, PREFIX_MAX + 1)
    placed = len(order) if found.witness is None else len(found.witness)
    steps = order[-PREFIX_MAX:]
    start = order[0][1] if len(order) > len(steps) else problem.start
    is_known = (problem.return_ns != NEVER) & (problem.op != accused.ops[0])
    known = np.flatnonzero(is_known)
    known = known[np.argsort(problem.call_ns[known], kind="stable")][-OPERATIONS_MAX:]
    part = Part(
        method=judged.answer.method,
        first_ns=int(problem.call_ns.min()),
        last_ns=accused.until_ns,
        operations=problem.op[known],
        unknown=problem.op[problem.return_ns == NEVER],
        prefix=Witness(problem.op[:0], problem.kind[:0], ()),
        prefix_start=start,
        stuck=accused.ops[0],
        before=placed - len(steps) if len(order) > len(steps) else 0,
        states=(start,),
    )
    state = steps[-1][1] if steps else start
    prefix = Prefix(steps, state, accused.ops[0], tuple(part.operations.tolist()))
    return _finding_of(part, prefix, operations, part.method)


def _explain_part(part: Part, problem: Problem, operations: Operations, method: str) -> Finding:
    """Explain which part of the history cannot be linearized, and what could not come next."""
    return _finding_of(part, longest_prefix(part, problem), operations, method)


def _finding_of(part: Part, prefix: Prefix, operations: Operations, method: str) -> Finding:
    details = _details(part, prefix, operations) | {"method": method}
    op = prefix.stuck
    reasons = {each["op"]: each["why"] for each in details["could_not"]}
    stuck = reasons.get(op, "no order of what was called by then allows it")
    message = (
        f"{operations.name(op)} cannot take effect {_deadline_phrase(op, operations)}: {stuck}."
    )
    return Finding(NOT_LINEARIZABLE, message, None, None, _ids(details), details)


def explain_open_part(
    part: Part, why: str, operations: Operations, *, is_timed: bool = True
) -> Finding:
    """Describe the part of the history that could not be decided within the budget."""
    details = _details(part, as_found(part), operations) | {"why": why}
    known = part.operations.tolist()
    first, last = (known[0], part.stuck) if known else (part.stuck, part.stuck)
    begin, end = (
        f" ({ns / NS_PER_S:.3f} s)" if is_timed else "" for ns in (part.first_ns, part.last_ns)
    )
    message = (
        f"undecided when the budget of {why} was used up; open from operation {first}{begin}"
        f" to operation {last}{end}, {part.before} operations before it."
    )
    details |= {"first": first, "last": last, "first_ns": part.first_ns, "last_ns": part.last_ns}
    return Finding(UNDECIDED, message, None, None, _ids(details), details)


def _explain_accusation(
    judged: Judged, accusation: Accusation, decide: Callable[[Problem], Found]
) -> Finding:
    """Explain what a special case found.

    If the accused operations are impossible by themselves, the search decides them too: it finds
    the longest prefix, and it double-checks the special case.
    """
    method, problem, operations = judged.answer.method, judged.problem, judged.operations
    why = accusation.why.format(*(operations.name(op) for op in accusation.ops))
    ops = accusation.ops[:OPERATIONS_MAX]
    if accusation.closed:
        alone = only(problem, accusation.ops)
        found = decide(alone)
        assert found.outcome is not Outcome.VALID, f"{method} accuses what is valid: {why}"
        if found.part is not None and found.outcome is Outcome.INVALID:
            shown = _explain_part(found.part, alone, operations, method)
            details = shown.details | {"operations": operations.shown(ops)}
            return replace(shown, message=f"{why}.", operations=ops, details=details)
    details = {
        "model": operations.model.name,
        "method": method,
        "operations": operations.shown(ops),
        "prefix": [],
        "stuck": ops[0],
        "could_not": [{"op": ops[0], "why": why}],
        "before": int((problem.return_ns < _call_of(problem, ops[0])).sum()),
        "states": [],
    }
    return Finding(NOT_LINEARIZABLE, f"{why}.", None, None, ops, details)


def _accused_json(accused: Accused) -> Json:
    return {"operations": list(accused.ops), "until_ns": accused.until_ns, "why": accused.why}


def _fault_sentence(accused: Accused) -> str:
    """Return the sentence on what was proven of the accused, or why no operation is accused."""
    if accused.why == OF_MODEL:
        return " Which operation is at fault was not proven: the model cannot tell."
    if accused.why:
        return f" Which operation is at fault was not proven within the budget of {accused.why}."
    first, *others = accused.ops
    until = "what was called until it returned"
    if not others:
        return f" Without op {first}, {until} has an order."
    named = f"{', '.join(f'op {op}' for op in accused.ops[:-1])} and op {accused.ops[-1]}"
    return (
        f" None of them is at fault alone: without {named} together, what was called until the"
        " last of them returned has an order; without one of them alone it has none, or had one"
        " until that one returned."
    )


def _stale_sentence(refuted: Refuted, details: Json, elsewhere: Callable[[], Stale | None]) -> str:
    """Return the sentence on a stale read: one of the accused, or one that is left without them."""
    accused, known, operations = refuted.accused, refuted.known, refuted.whole.operations
    if (pair := read_of_failed(known.register, accused.ops)) is not None:
        return (
            f" Op {pair[0]} returned what op {pair[1]} was writing, before it was known that op"
            f" {pair[1]} failed: that it certainly did not happen, or what was read, is wrong."
        )
    found = stale_read(known.register, accused.ops, known.cited.keys())
    start, more = "The read", dict[str, Any]()
    if found is None:
        found = elsewhere()
        start = "By real time alone the read"
        if accused.ops:
            start = "Seen more plainly in what follows: without it, the read"
            more = {"without": list(accused.ops)}
    if found is None:
        return ""
    details["stale"] = asdict(found) | more
    if not refuted.is_timed:
        del details["stale"]["since_ns"]
    shown = {each["op"] for each in details["operations"]}
    named = (found.read, found.written, found.over, found.written_seen, found.over_seen)
    new_ones = [op for op in dict.fromkeys(named) if op is not None and op not in shown]
    if len(shown) + len(new_ones) <= OPERATIONS_MAX:
        both = [*details["operations"], *operations.shown(new_ones)]
        details["operations"] = sorted(both, key=lambda each: (each["call_ns"], each["op"]))
    new = operations.model.describe_call(call_of(operations.rows([found.over])[found.over]))
    old = None if found.written is None else operations.name(found.written)
    since = f"{format_duration(found.since_ns)} " if refuted.is_timed else ""
    return f" {start} of op {found.read} is stale: {_overwrite_phrase(found, old, new, since)}."


def _overwrite_phrase(found: Stale, old: str | None, new: str, since: str) -> str:
    """Describe how it is known that `new` overwrote `old`, `since` before that read was called."""
    text = f"{new} (op {found.over})"
    if found.is_seen_after:
        then = f"{old} was over"
        if found.written_seen is not None:
            then = f"op {found.written_seen} had read what {old} wrote"
        text += f" had been read by op {found.over_seen}, called after {then},"
        return f"{text} {since}before it began"
    if old is not None and found.written_seen is None:
        text += f", called after {old} was over,"
    elif old is not None:
        text += f", called after op {found.written_seen} had read what {old} wrote,"
    if found.over_seen is None:
        return f"{text} had been acknowledged {since}before it began"
    return f"{text} had been read by op {found.over_seen} {since}before it began"


def only(problem: Problem, ops: Sequence[int]) -> Problem:
    """Return the problem restricted to these operations."""
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
    """Return the operations of known outcome that a finding names, `stuck` first."""
    known = [
        each["op"] for each in details["operations"] if each["outcome"] == "ok" or RESOLVED in each
    ]
    return (details["stuck"], *(op for op in known if op != details["stuck"]))


def _details(part: Part, prefix: Prefix, operations: Operations) -> Json:
    """Return the details that both kinds of findings have of a part."""
    steps = prefix.steps[-PREFIX_MAX:]
    unknown = set(part.unknown.tolist())
    used = [op for op, _ in steps if op in unknown]
    known = [op for op in prefix.operations if op != prefix.stuck]
    could_not = _could_not(prefix, operations)
    # The most useful ones first: the stuck one, those that could not come next, indeterminate ones
    # that the prefix uses, resolved ones with their evidence, then the last ones.
    resolved = _resolved_in(prefix, operations)[:RESOLVED_MAX]
    witnesses = [operations.cited[op]["evidence_op"] for op in resolved]
    evidence = [
        op for pair in zip(resolved, witnesses, strict=True) for op in pair if op is not None
    ]
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
    """Explain why the stuck operation, and others open at its return, cannot follow the prefix."""
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


def _deadline_phrase(op: int, operations: Operations) -> str:
    """Return the phrase on when the stuck operation must have taken effect."""
    citation = operations.cited.get(op)
    if citation is None:
        return "before it returns"
    witness = citation["evidence_op"]
    return "by the end" if witness is None else f"before op {witness} returns"


def _resolved_in(prefix: Prefix, operations: Operations) -> list[int]:
    """Return the resolved operations that the refutation relies on, the stuck one first."""
    start = [prefix.stuck, *(op for op, _ in reversed(prefix.steps)), *reversed(prefix.operations)]
    return [op for op in start if op in operations.cited]


def _end(row: Json) -> int:
    return int(row["return_ns"]) if row["outcome"] == "ok" else NEVER


# The longest linearizable prefix.

TRIED_MAX = 200
"""Operations of the part that are tried, the last ones, and as many of those called after it."""
CONFIGURATIONS_MAX = 1_000
"""Configurations that are visited from one start before the best so far is taken."""
STARTS_MAX = 8
"""States at the part's start that are tried, besides the prefix that the search found."""

TRIMMED_MAX = 2_000
"""Length of an order from which superfluous indeterminate operations are still removed."""
REMOVALS_MAX = 50
"""Indeterminate operations whose removal is tried."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A linearization of operations of the part, and the operation that cannot come next.

    `steps` are (op id, state after it), `state` the last of these; `stuck` is the operation that
    returns next and cannot be linearized. `operations` are the part's, and those that were called
    after it and before `stuck` returned; without indeterminate ones.
    """

    steps: tuple[tuple[int, State], ...]
    state: State
    stuck: int
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An operation that may be linearized; `must`: it has to be, in the part, before it returns."""

    op: int
    kind: int
    call_ns: int
    return_ns: int
    must: bool


@dataclass(frozen=True, slots=True)
class _Path:
    """Steps, and the index of the first candidate that must be linearized and was not."""

    steps: tuple[tuple[int, State], ...]
    state: State
    stuck: int


def as_found(part: Part) -> Prefix:
    """Return the part's prefix as the search found it."""
    steps = tuple(part.prefix.steps())
    state = steps[-1][1] if steps else part.prefix_start
    return Prefix(steps, state, part.stuck, tuple(part.operations.tolist()))


def longest_prefix(part: Part, problem: Problem) -> Prefix:
    """Return the longest prefix: the search's, extended, or one from another start.

    Operations that were called before a window may have taken effect before it. If no prefix
    reaches as far as the window was proven to be passable, the search's is returned.
    """
    given = as_found(part)
    candidates = _candidates(part, problem)
    places = {each.op: place for place, each in enumerate(candidates)}
    if part.stuck not in places:
        return given
    path = _follow(candidates, given.steps, given.state, problem)
    for state in part.states[:STARTS_MAX]:
        other = _follow(candidates, (), state, problem)
        path = other if other.stuck > path.stuck else path
    if path.stuck == len(candidates):
        return given  # the contradiction lies outside of what is tried here
    stuck = candidates[path.stuck]
    if part.method == "window" and stuck.return_ns < part.last_ns:
        return given
    later = [
        each.op
        for each in sorted(candidates, key=lambda each: (each.call_ns, each.op))
        if part.last_ns < each.call_ns <= stuck.return_ns and each.return_ns < NEVER
    ]
    return Prefix(path.steps, path.state, stuck.op, (*given.operations, *later))


def needed_steps(problem: Problem, witness: Witness, last: int) -> tuple[tuple[int, State], ...]:
    """Return the last steps of an order, without indeterminate operations that it does not need.

    Those would only puzzle the reader. A long order is not changed.
    """
    if len(witness) > TRIMMED_MAX:
        return tuple(witness.steps(last))
    row = {op: n for n, op in enumerate(problem.op.tolist())}
    order = [row[op] for op in witness.op.tolist()]
    steps = _steps(problem, order) or ()
    optional = [n for n in order if problem.return_ns[n] == NEVER]
    for unknown in optional[::-1][:REMOVALS_MAX]:
        fewer = [n for n in order if n != unknown]
        tried = _steps(problem, fewer)
        if tried is not None:
            order, steps = fewer, tried
    return steps[-last:]


def _steps(problem: Problem, order: list[int]) -> tuple[tuple[int, State], ...] | None:
    """Apply operations in an order; return None if one of them cannot happen."""
    state, steps = problem.start, []
    for n in order:
        reached = problem.step(state, int(problem.kind[n]))
        if reached is None:
            return None
        state = reached
        steps.append((int(problem.op[n]), state))
    return tuple(steps)


def _candidates(part: Part, problem: Problem) -> list[_Candidate]:
    """Return the operations that the prefix may contain, in the order of their returns."""
    ops = np.concatenate((part.operations, part.unknown, [part.stuck]))
    inside = np.flatnonzero(np.isin(problem.op, ops) & (problem.call_ns <= part.last_ns))
    later = np.flatnonzero(problem.call_ns > part.last_ns)
    inside = inside[np.argsort(problem.call_ns[inside], kind="stable")][-TRIED_MAX:]
    later = later[np.argsort(problem.call_ns[later], kind="stable")][:TRIED_MAX]
    rows = np.concatenate((inside, later))
    rows = rows[np.argsort(problem.return_ns[rows], kind="stable")]
    # A window starts at a return; calls at that time come before it. What was open then may have
    # taken effect before the window, so it need not happen in it, and observers among it are
    # useless.
    must = problem.return_ns[rows] != NEVER
    if part.method == "window":
        is_inside = problem.call_ns[rows] > part.first_ns
        keep = is_inside | ~problem.kinds.observes[problem.kind[rows]]
        rows, must = rows[keep], (must & is_inside)[keep]
    return [
        _Candidate(
            int(problem.op[row]), int(problem.kind[row]),
            int(problem.call_ns[row]), int(problem.return_ns[row]), is_needed,
        )
        for row, is_needed in zip(rows.tolist(), must.tolist(), strict=True)
    ]  # fmt: skip


def _follow(
    candidates: list[_Candidate], given: tuple[tuple[int, State], ...], state: State,
    problem: Problem,
) -> _Path:  # fmt: skip
    """Extend `given` depth-first: pass the most returns, then linearize the most operations.

    A candidate may come next if no required operation had returned before its call. Operations
    that need not happen and that nothing needs are left out: they would only puzzle the reader.
    """
    done = {op for op, _ in given}
    everything = frozenset(n for n, each in enumerate(candidates) if each.op not in done)
    optional = frozenset(n for n in everything if not candidates[n].must)
    best: tuple[tuple[int, int, int], _Path] = ((-1, 0, 0), _Path(given, state, 0))
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[frozenset[int], State, tuple[tuple[int, State], ...]]] = [
        (everything, state, ())
    ]
    while stack and len(seen) < CONFIGURATIONS_MAX:
        left, state, order = stack.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first = min(left - optional, default=len(candidates))
        end = candidates[first].return_ns if first < len(candidates) else NEVER
        used = sum(not candidates[n].must for n in everything - left)
        merit = (first, len(order) - used, -used)
        if merit > best[0]:
            best = (merit, _Path((*given, *order), state, first))
        for n in sorted(left, reverse=True):
            if candidates[n].call_ns <= end:
                after = problem.step(state, candidates[n].kind)
                if after is not None:
                    step = (candidates[n].op, after)
                    stack.append((_without(left, n, candidates), after, (*order, step)))
    return best[1]


def _without(left: frozenset[int], n: int, candidates: list[_Candidate]) -> frozenset[int]:
    """Remove n, and the optional operations that returned before n was called: precedence."""
    call = candidates[n].call_ns
    gone = {m for m in left if not candidates[m].must and candidates[m].return_ns < call}
    return left - gone - {n}
