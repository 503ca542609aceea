"""Checks whether a history is linearizable with respect to a model, key by key.

Linearizability is local (P-compositional): a history is linearizable if and only if each object's
part is, so keys are decided one at a time. Indeterminate operations are resolved where later
answers prove their outcome (checkers.evidence). Then a partition is encoded by its model and
decided by a special case if one applies, else by the search within the context's budget. A
partition that exceeds it is UNKNOWN, with the undecided part named. `refutation` explains what was
found wrong.

Source: Herlihy & Wing 1990 (locality); Horn & Kroening 2015 (P-compositionality).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.evidence import (
    Citation,
    Resolved,
    first_citations,
    resolved_counts,
    with_resolved,
)
from shaketable.checkers.findings import Findings, Gathered, gather, settle
from shaketable.checkers.linearizability.accusation import (
    Accused,
    Stale,
    accuse,
    first_stale_read,
    prefix_until,
    stalest_read,
    without,
)
from shaketable.checkers.linearizability.deciding import OF_MODEL, Answer, Decider, decide_registers
from shaketable.checkers.linearizability.refutation import (
    NOT_LINEARIZABLE,
    UNDECIDED,
    Judged,
    Operations,
    Refuted,
    explain_open_part,
    explain_refutation,
)
from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.models.model import Model
from shaketable.checkers.models.register import Register
from shaketable.checkers.search.problem import (
    NEVER,
    Family,
    Ints,
    Kinds,
    ModelError,
    Problem,
    State,
    Step,
)
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.schema import OPERATIONS

NAME = "linearizable"
UNFIT = "unfit"
"""Kind of the finding for a partition whose operations the model does not know."""
OPEN = frozenset((UNFIT, UNDECIDED))
"""Kinds of findings that leave a verdict UNKNOWN."""
DOUBTS_SHOWN_MAX = 3
"""Partitions that a summary names for each kind of doubt."""


def _is_judged(_: str, __: CheckContext) -> str | None:
    """Return None: without a target's promises every violation counts."""
    return None


class Linearizable:
    """Checker "linearizable": each key's operations against a sequential model.

    A history without operations of known outcome proves nothing: UNKNOWN.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def __init__(
        self,
        model: Model,
        initial: object = None,
        *,
        use_special_cases: bool = True,
        observed: Callable[[str, CheckContext], str | None] = _is_judged,
    ) -> None:
        """Take the model and the first state: a text as `--initial` takes it, or a JSON value.

        `observed` returns why a kind of finding breaks no promise of a run's target.

        Raises:
            UsageError: it names no state of the model.
        """
        self.model = model
        self._observed = observed
        self.initial: State = model.initial(_initial_text(initial))
        self.use_special_cases = use_special_cases

    def why_observed(self, context: CheckContext) -> str | None:
        """Return why a history that is not linearizable breaks no promise of this run, or None."""
        return self._observed(NOT_LINEARIZABLE, context)

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Decide one partition; return a row "checked", and a finding unless it is VALID."""
        decider = self._decider(context)
        operations = tables["operations"]
        key = operations["key"][0].as_py() if operations.num_rows else None
        resolved = decider.resolve(operations)
        try:
            problem = self.model.encode(resolved.operations, self.initial)
        except UsageError as error:
            return _rows([_keyed(Finding(UNFIT, str(error)), key)], {"partitions": 1})
        here = Operations(resolved.operations, self.model, resolved.cited, initial=self.initial)
        method, found = self._decide(problem, here, decider, operations)
        counts = _counts(problem, method, here) | first_citations(here.cited.values())
        return _rows([] if found is None else [_keyed(found, key)], counts)

    def check_keys(self, operations: pa.Table, bounds: Ints, context: CheckContext) -> pa.Table:
        """Decide many keys whose operations are encoded together (contracts.plugins.KeysChecker).

        Raises:
            UsageError: the model does not know an operation; check key by key to learn which.
        """
        tables = []
        total: Counter[str] = Counter()
        if isinstance(self.model, Register) and self.use_special_cases:
            assert isinstance(self.initial, tuple), "a register's state is a tuple of its value"
            decided = decide_registers(operations, bounds, self.model.fs, self.initial[0])
            total.update(decided.counts)
            operations, bounds = decided.others(operations, bounds)
        resolved = self._decider(context).resolve(operations)
        by_key = _cited_by_key(resolved, operations, bounds)
        cited: list[Citation] = []
        several = len(bounds) > 1
        keys = problems(self.model, resolved.operations, bounds, self.initial) if several else ()
        for n, (start, end, problem) in enumerate(
            zip(bounds[:-1].tolist(), bounds[1:].tolist(), keys, strict=True)
        ):
            table = resolved.operations.slice(start, end - start)
            here = Operations(table, self.model, by_key.get(n), initial=self.initial)
            method, found = self._decide(problem, here, self._decider(context))
            counts = _counts(problem, method, here)
            if found is None:
                total.update(counts)
                cited += here.cited.values()
            else:
                key = table["key"][0].as_py()
                batched = _rows([_keyed(found, key)], counts | first_citations(here.cited.values()))
                recorded = operations.slice(start, end - start)
                tables.append(self._checked_alone(recorded, batched, context))
        return pa.concat_tables([*tables, _rows([], dict(total) | first_citations(cited))])

    def _decider(self, context: CheckContext) -> Decider:
        """Return the decider of one partition; its time starts now."""
        is_over = context.begin_search()
        return Decider(self.model, self.initial, self.use_special_cases, context, is_over)

    def _checked_alone(self, coded: pa.Table, batched: pa.Table, context: CheckContext) -> pa.Table:
        """Check a refuted key by itself, so that its finding does not depend on the other keys.

        The numbering that keys share decides the order in which the search tries operations: never
        the answer, but which of several proofs is found.
        """
        if batched["kind"][0].as_py() != NOT_LINEARIZABLE:
            return batched
        alone = self.check({"operations": coded.cast(OPERATIONS)}, context)
        return alone if alone["kind"][0].as_py() == NOT_LINEARIZABLE else batched

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the partitions: INVALID if one is not linearizable, UNKNOWN if one is undecided."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = [
            *_doubts_of(gathered, UNFIT, "unfit"),
            *_doubts_of(gathered, UNDECIDED, "undecided"),
        ]
        if not doubts and not counts.get("operations"):
            doubts.append("no operation of known outcome in the history")
        counts |= {kind: total for kind, total in gathered.totals.items() if kind in OPEN}
        partitions = counts.get("partitions", 0)
        verdict = settle(
            self.name,
            _without_doubts(gathered),
            context,
            clean=f"{_count(partitions, 'partition')} linearizable as {self.model.name}:"
            f" {_count(counts.get('operations', 0), 'operation')}",
            doubts=doubts,
            doubtful=(NOT_LINEARIZABLE,),  # a missing operation may be what explains the others
            observed=lambda kind: self._observed(kind, context),
            counts=counts,
        )
        open_parts = [
            {"key": finding.key, "message": finding.message, **finding.details}
            for finding in gathered.kept
            if finding.kind == UNDECIDED
        ]
        if open_parts:
            verdict = replace(verdict, data={**verdict.data, "undecided": open_parts})
        return with_resolved(verdict, gathered)

    def _decide(
        self,
        problem: Problem,
        here: Operations,
        decider: Decider,
        recorded: pa.Table | None = None,
    ) -> tuple[str, Finding | None]:
        """Return the method that decided, and a finding unless the history is linearizable.

        No operation is accused without `recorded`, the operations as they were recorded.
        """
        try:
            answer = decider.decide(problem, here.table)
            if answer.outcome is Outcome.VALID:
                return answer.method, None
            if answer.outcome is Outcome.INVALID:
                return answer.method, refute(answer, problem, here, decider, recorded)
        except ModelError as error:
            return "nothing", Finding(UNDECIDED, f"undecided: {error}.", details={"why": OF_MODEL})
        if answer.part is not None:
            is_timed = decider.context.is_timed
            return answer.method, explain_open_part(
                answer.part, answer.why, here, is_timed=is_timed
            )
        # The budget was exhausted before the search started.
        message = f"undecided: the budget of {answer.why} is not enough to start a search."
        return answer.method, Finding(UNDECIDED, message, details={"why": answer.why})


def _initial_text(initial: object) -> str | None:
    """Return a first state as `--initial` takes it: 0 is "0", [1, 2] is "[1, 2]".

    Raises:
        UsageError: it is neither a text nor a JSON value.
    """
    if initial is None or isinstance(initial, str):
        return initial
    try:
        return json.dumps(initial)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{initial!r} is no first state: give a JSON value or a text") from error


def _cited_by_key(
    resolved: Resolved, operations: pa.Table, bounds: Ints
) -> dict[int, dict[int, Citation]]:
    """Return the citations of each key, by the key's number."""
    if not resolved.cited:
        return {}
    ops = np.asarray(operations["op"].to_numpy(), dtype=np.int64)
    rows = np.flatnonzero(np.isin(ops, np.fromiter(resolved.cited, dtype=np.int64)))
    numbers = np.searchsorted(bounds, rows, side="right") - 1
    by_key: dict[int, dict[int, Citation]] = {}
    for number, op in zip(numbers.tolist(), ops[rows].tolist(), strict=True):
        by_key.setdefault(number, {})[op] = resolved.cited[op]
    return by_key


def _rows(found: Sequence[Finding], counts: Mapping[str, Any]) -> pa.Table:
    findings = Findings()
    for finding in found:
        findings.add(finding.kind, [0], {0: finding}.__getitem__)
    return findings.table(counts)


def _keyed(finding: Finding, key: str | None) -> Finding:
    if key is None:
        return finding
    return replace(finding, key=key, message=f"{key}: {finding.message}")


def _counts(problem: Problem, method: str, here: Operations) -> dict[str, int]:
    """Count a partition's operations by their recorded outcomes, and those that were resolved."""
    known = int((problem.return_ns != NEVER).sum()) - len(here.cited)
    return {
        "partitions": 1,
        "operations": known,
        "unknown_outcomes": len(problem.return_ns) - known,
        f"by_{method}": 1,
        **resolved_counts(here.cited.values()),
    }


def _count(number: float, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _doubts_of(gathered: Gathered, kind: str, what: str) -> list[str]:
    """Return the doubts that findings of a kind raise: a few in full, the rest counted."""
    messages = [finding.message for finding in gathered.kept if finding.kind == kind]
    doubts = sorted(messages)[:DOUBTS_SHOWN_MAX]
    more = gathered.totals.get(kind, 0) - len(doubts)
    return [*doubts, f"and {_count(more, f'more {what} partition')}"] if more > 0 else doubts


def _without_doubts(gathered: Gathered) -> Gathered:
    """Return the findings without those that only leave the verdict UNKNOWN."""
    kept = tuple(finding for finding in gathered.kept if finding.kind not in OPEN)
    totals = {kind: total for kind, total in gathered.totals.items() if kind not in OPEN}
    return Gathered(kept, totals, gathered.checked)


# Splits the problem of many keys, encoded together, into one problem for each key.
#
# A call of encode costs some hundred microseconds before it looks at the first operation: more
# than a thousand operations of one key cost. So all keys of a file are encoded together, and the
# arrays are sliced.

KIND_ARRAYS = ("code", "a", "b", "observes", "overwrites")
VALUES_SHARED_MAX = 256
"""Up to so many values or kinds all keys share one numbering; more are renumbered by key."""


def problems(model: Model, operations: pa.Table, bounds: Ints, first: State) -> Iterator[Problem]:
    """Encode all keys together; yield the problem of each in their order.

    Args:
        model: the model.
        operations: rows of OPERATIONS or OPERATIONS_CODED; key n has the rows from bounds[n].
        bounds: one element more than there are keys.
        first: the first state of every key.

    Raises:
        UsageError: the model does not know an operation. The message names a row instead of an
            id: encode the keys one by one to learn which it is.
    """
    ops = np.asarray(operations["op"].to_numpy(), dtype=np.int64)
    rows = pa.array(np.arange(operations.num_rows))
    place = operations.schema.get_field_index("op")
    together = model.encode(operations.set_column(place, "op", rows), first)
    cuts = np.searchsorted(together.op, bounds)
    for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        here = slice(start, end)
        one = replace(
            together,
            kind=together.kind[here],
            call_ns=together.call_ns[here],
            return_ns=together.return_ns[here],
            op=ops[together.op[here]],
        )
        yield _renumbered(one)


def _renumbered(problem: Problem) -> Problem:
    """Leave out kinds and values that only other keys have, and renumber the rest."""
    shared = max(len(problem.kinds.code), problem.values)
    if shared <= VALUES_SHARED_MAX or not problem.kind.size:
        return problem
    used, kind = np.unique(problem.kind, return_inverse=True)
    kinds = Kinds(*(getattr(problem.kinds, name)[used] for name in KIND_ARRAYS))
    problem = replace(
        problem, kind=kind.astype(np.int32), kinds=kinds, step=_only(problem, used.astype(np.int64))
    )
    if problem.family is not Family.VALUE:
        return problem
    values = np.unique(np.concatenate((kinds.a, kinds.b, [problem.initial])))
    kinds = replace(kinds, a=np.searchsorted(values, kinds.a), b=np.searchsorted(values, kinds.b))
    initial = int(np.searchsorted(values, problem.initial))
    return replace(problem, kinds=kinds, initial=initial, values=len(values))


def _only(problem: Problem, used: Ints) -> Step:
    step = problem.step
    if isinstance(step, StepByKind):
        return step.only(used)
    return lambda state, kind: step(state, int(used[kind]))


# Refutes a history: proves which operations are at fault, and explains why.
#
# The proof decides prefixes of the history to find the first return that no linearization passes,
# and variants of that prefix to find who is at fault there. It gets a share of the time of the
# partition's search; if that ends first, the finding names no operation.

PROOF_SHARE: Final = 0.25
"""The share of a partition's search time that the proof may take."""
OF_TIME: Final = "time"


def refute(
    answer: Answer,
    problem: Problem,
    here: Operations,
    decider: Decider,
    recorded: pa.Table | None,
) -> Finding:
    """Explain why a history is not linearizable, and which operations are at fault.

    Args:
        answer: what showed that it is not.
        problem: the history.
        here: its operations as they were judged.
        decider: what decided it.
        recorded: its operations as they were recorded; None: accuse no operation.

    Raises:
        ModelError: the model is not to be trusted.
    """
    proving = replace(decider, is_over=_share_of(decider))
    whole = Judged(answer, problem, here)
    is_timed = decider.context.is_timed
    if recorded is None:
        accused = Accused((), None, here.table, OF_TIME)
        return explain_refutation(Refuted(whole, accused, here, is_timed), proving.search)
    recorded = _encodable_when_open(recorded.cast(OPERATIONS), decider)
    accused = accuse(recorded, proving.judge, _hint_ns(answer, problem))
    resolved = proving.resolve(accused.history)
    known = Operations(
        resolved.operations, proving.model, resolved.cited, here.table, proving.initial
    )
    return explain_refutation(
        Refuted(whole, accused, known if accused.ops else here, is_timed),
        proving.search,
        lambda: _judge_until_then(known, proving),
        lambda: _stale_elsewhere(accused, proving, recorded, here),
    )


def _share_of(decider: Decider) -> Callable[[], bool]:
    """Return a function that returns whether the proof's share of the time is over."""
    clock, is_over = decider.context.clock_unix_s, decider.is_over
    if clock is None:
        return is_over
    end = clock() + PROOF_SHARE * decider.context.search.time_s
    return lambda: is_over() or clock() >= end


def _encodable_when_open(recorded: pa.Table, decider: Decider) -> pa.Table:
    """Drop failed operations if the model cannot encode them as open ones, for lack of a value."""
    failed = pc.fill_null(pc.equal(recorded["outcome"], "fail"), False)
    if not pc.any(failed).as_py():
        return recorded
    place = recorded.schema.get_field_index("outcome")
    opened = pc.if_else(failed, "info", recorded["outcome"])
    try:
        decider.model.encode(recorded.set_column(place, "outcome", opened), decider.initial)
    except UsageError:
        return recorded.filter(pc.invert(failed))
    return recorded


def _hint_ns(answer: Answer, problem: Problem) -> int | None:
    """Return about when the first return is that no linearization passes."""
    if answer.part is not None:
        return answer.part.last_ns
    assert answer.accusation is not None, "what is not linearizable is shown by something"
    ends = problem.return_ns[np.isin(problem.op, answer.accusation.ops)]
    ends = ends[ends != NEVER]
    return int(ends.max()) if len(ends) else None


def _judge_until_then(known: Operations, proving: Decider) -> Judged:
    """Decide the prefix up to that return again: it explains the violation by itself."""
    problem = proving.model.encode(known.table, proving.initial)
    return Judged(proving.decide(problem, known.table), problem, known)


def _stale_elsewhere(
    accused: Accused, proving: Decider, recorded: pa.Table, whole: Operations
) -> Stale | None:
    """Find a stale read in the rest of the history.

    Without the accused it is the first return that no linearization passes, which is proven as for
    the accused. If no operation is accused, real time alone proves that the read is stale.
    """
    inferred = whole.cited.keys()
    if not accused.ops:
        return stalest_read(whole.register, inferred)
    rest = replace(whole.register, operations=without(whole.table, accused.ops))
    found = first_stale_read(rest, inferred)
    if found is None:
        return None
    end_ns, stale = found
    until = prefix_until(without(recorded, accused.ops), end_ns)
    with_it, _ = proving.judge(until)
    without_it, _ = proving.judge(without(until, [stale.read]))
    is_proven = with_it is Outcome.INVALID and without_it is Outcome.VALID
    return stale if is_proven else None
