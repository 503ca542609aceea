"""Is a history linearizable with respect to a model? Each key is decided by itself.

Operations of unknown outcome are closed where later answers prove what became of them
(checkers.evidence); then a partition is encoded by its model, decided by a special case where
one applies, and by the search under the context's budget elsewhere. What the budget did not
suffice for is UNKNOWN, with the open part named. `refutation` writes down what was found wrong.

Source: Herlihy & Wing 1990 (linearizability is local, so keys can be judged one by one).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.evidence.closing import (
    Citation,
    Closed,
    close,
    closed_counts,
    some_cited,
    with_closed,
)
from checkers.findings import Findings, Gathered, gather, settle
from checkers.linearizability.many_keys import problems
from checkers.linearizability.many_registers import decide_registers
from checkers.linearizability.refutation import (
    NOT_LINEARIZABLE,
    UNDECIDED,
    Operations,
    explain_decision,
    explain_open_part,
    explain_part,
)
from checkers.models.model import Model
from checkers.models.register import Register
from checkers.models.values import values_of
from checkers.search.budget import Limits
from checkers.search.driver import search
from checkers.search.found import Found
from checkers.search.problem import NEVER, Ints, ModelError, Problem, State
from checkers.special.choice import decide, no_special_case
from harness.errors import UsageError
from harness.history.schema import OPERATIONS
from harness.plugins import CheckContext
from harness.verdict import Finding, Outcome, Verdict

NAME = "linearizable"
UNFIT = "unfit"
"""Kind of the finding that says that a partition's operations are none of the model's."""
OPEN = frozenset((UNFIT, UNDECIDED))
"""Kinds of findings that leave a verdict open."""
DOUBTS_SHOWN_MAX = 3
"""Partitions that a summary names for each kind of doubt."""

IsOver = Callable[[], bool]


def _is_judged(_: str, __: CheckContext) -> str | None:
    """Nobody promised anything: what is not linearizable is wrong."""
    return None


class Linearizable:
    """Checker "linearizable": each key's operations against a sequential model.

    A history without operations of known outcome is no proof of anything: UNKNOWN.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def __init__(
        self,
        model: Model,
        initial: str | None = None,
        *,
        use_special_cases: bool = True,
        observed: Callable[[str, CheckContext], str | None] = _is_judged,
    ) -> None:
        """Take the model and the text of the first state, as `--initial` gives it.

        `observed` says why a kind of finding breaks no promise of a run's target.

        Raises:
            UsageError: the text names no state of the model.
        """
        self.model = model
        self._observed = observed
        self.initial: State = model.initial(initial)
        self.use_special_cases = use_special_cases

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Decide one partition; return a row "checked", and one that says what is wrong."""
        is_over = context.begin_search()
        operations = tables["operations"]
        key = operations["key"][0].as_py() if operations.num_rows else None
        closed = self._close(operations, context)
        try:
            problem = self.model.encode(closed.operations, self.initial)
        except UsageError as error:
            return _rows([_keyed(Finding(UNFIT, str(error)), key)], {"partitions": 1})
        here = Operations(closed.operations, self.model, closed.cited)
        method, found = self._decide(problem, here, context, is_over)
        counts = _counts(problem, method, here) | some_cited(here.cited.values())
        return _rows([] if found is None else [_keyed(found, key)], counts)

    def check_keys(self, operations: pa.Table, bounds: Ints, context: CheckContext) -> pa.Table:
        """Decide many keys whose operations are encoded together (harness.checker.KeysChecker).

        Raises:
            UsageError: an operation is none that the model knows; ask key by key which.
        """
        tables = []
        total: Counter[str] = Counter()
        if isinstance(self.model, Register) and self.use_special_cases:
            assert isinstance(self.initial, tuple), "a register's state is a tuple of its value"
            decided = decide_registers(operations, bounds, self.model.fs, self.initial[0])
            total.update(decided.counts)
            operations, bounds = decided.others(operations, bounds)
        closed = self._close(operations, context)
        by_key = _cited_by_key(closed, operations, bounds)
        cited: list[Citation] = []
        several = len(bounds) > 1
        keys = problems(self.model, closed.operations, bounds, self.initial) if several else ()
        for n, (begin, end, problem) in enumerate(
            zip(bounds[:-1].tolist(), bounds[1:].tolist(), keys, strict=True)
        ):
            is_over = context.begin_search()
            table = closed.operations.slice(begin, end - begin)
            here = Operations(table, self.model, by_key.get(n))
            method, found = self._decide(problem, here, context, is_over)
            counts = _counts(problem, method, here)
            if found is None:
                total.update(counts)
                cited += here.cited.values()
            else:
                key = table["key"][0].as_py()
                ours = _rows([_keyed(found, key)], counts | some_cited(here.cited.values()))
                recorded = operations.slice(begin, end - begin)
                tables.append(self._told_alone(recorded, ours, context))
        return pa.concat_tables([*tables, _rows([], dict(total) | some_cited(cited))])

    def _close(self, operations: pa.Table, context: CheckContext) -> Closed:
        """Close what later answers close, where the model says what its operations put."""
        return close(operations, None, context, values_of(self.model, self.initial))

    def _told_alone(self, coded: pa.Table, ours: pa.Table, context: CheckContext) -> pa.Table:
        """Tell a refuted key as `check` does, so that the keys it came with leave no trace.

        The numbering that keys share decides in which order the search tries things: never the
        answer, but which of several proofs it finds.
        """
        if ours["kind"][0].as_py() != NOT_LINEARIZABLE:
            return ours
        alone = self.check({"operations": coded.cast(OPERATIONS)}, context)
        return alone if alone["kind"][0].as_py() == NOT_LINEARIZABLE else ours

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the partitions: INVALID if one is not linearizable, UNKNOWN if one is open."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = [*_told(gathered, UNFIT, "unfit"), *_told(gathered, UNDECIDED, "undecided")]
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
        return with_closed(verdict, gathered)

    def _decide(
        self, problem: Problem, operations: Operations, context: CheckContext, is_over: IsOver
    ) -> tuple[str, Finding | None]:
        """Return which method decided, and what is wrong if anything is."""
        try:
            return self._decide_by(problem, operations, context, is_over)
        except ModelError as error:
            return "nothing", Finding(UNDECIDED, f"undecided: {error}.", details={"why": "model"})

    def _decide_by(
        self, problem: Problem, operations: Operations, context: CheckContext, is_over: IsOver
    ) -> tuple[str, Finding | None]:
        """Decide; raises ModelError where the model is not to be trusted."""

        def search_one(one: Problem) -> Found:
            return search(one, is_over=is_over, memory_bytes_max=context.search.memory_bytes)

        if not problem.kind.size:
            return "nothing", None
        special = decide if self.use_special_cases else no_special_case
        limits = Limits(is_over, context.search.memory_bytes)
        decision = special(self.model.name, problem, operations.table, limits)
        if decision is not None and decision.why and decision.part is not None:
            return decision.method, explain_open_part(decision.part, decision.why, operations)
        if decision is not None and not decision.why:
            return decision.method, explain_decision(decision, problem, operations, search_one)
        found = search_one(problem)
        if found.outcome is Outcome.VALID:
            return "search", None
        if found.part is None:  # the budget did not suffice to begin
            message = f"undecided: the budget of {found.why} does not suffice to begin a search."
            return "search", Finding(UNDECIDED, message, details={"why": found.why})
        if found.outcome is Outcome.INVALID:
            return "search", explain_part(found.part, problem, operations)
        return "search", explain_open_part(found.part, found.why, operations)


def _cited_by_key(
    closed: Closed, operations: pa.Table, bounds: Ints
) -> dict[int, dict[int, Citation]]:
    """Deal what was closed to the keys by their numbers."""
    if not closed.cited:
        return {}
    ops = np.asarray(operations["op"].to_numpy(), dtype=np.int64)
    rows = np.flatnonzero(np.isin(ops, np.fromiter(closed.cited, dtype=np.int64)))
    numbers = np.searchsorted(bounds, rows, side="right") - 1
    dealt: dict[int, dict[int, Citation]] = {}
    for number, op in zip(numbers.tolist(), ops[rows].tolist(), strict=True):
        dealt.setdefault(number, {})[op] = closed.cited[op]
    return dealt


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
    """Count a partition's operations by their outcomes as recorded, and what was closed."""
    known = int((problem.return_ns != NEVER).sum()) - len(here.cited)
    return {
        "partitions": 1,
        "operations": known,
        "unknown_outcomes": len(problem.return_ns) - known,
        f"by_{method}": 1,
        **closed_counts(here.cited.values()),
    }


def _count(number: float, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _told(gathered: Gathered, kind: str, what: str) -> list[str]:
    """Return the doubts that findings of a kind stand for: a few in full, the rest counted."""
    told = [finding.message for finding in gathered.kept if finding.kind == kind]
    doubts = sorted(told)[:DOUBTS_SHOWN_MAX]
    more = gathered.totals.get(kind, 0) - len(doubts)
    return [*doubts, f"and {_count(more, f'more {what} partition')}"] if more > 0 else doubts


def _without_doubts(gathered: Gathered) -> Gathered:
    """Return what was found, without what only leaves the verdict open."""
    kept = tuple(finding for finding in gathered.kept if finding.kind not in OPEN)
    totals = {kind: total for kind, total in gathered.totals.items() if kind not in OPEN}
    return Gathered(kept, totals, gathered.checked)
