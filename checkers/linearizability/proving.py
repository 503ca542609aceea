"""Refutes a history: proves who is at fault, and says what is wrong about them.

The proof costs as many decisions as it takes to find the first return that no order gets past,
and who is at fault there: each is one of the history up to about that return. It has a share of
the time that the partition's search has; where that ends first, the finding says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.linearizability.accusation import Accused, accuse, upto, without
from shaketable.checkers.linearizability.deciding import Answer, Decider
from shaketable.checkers.linearizability.refutation import (
    Judged,
    Operations,
    Refuted,
    explain_refutation,
)
from shaketable.checkers.linearizability.staleness import Stale, first_stale_read, stalest_read
from shaketable.checkers.search.problem import NEVER, Problem
from shaketable.harness.errors import UsageError
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.verdict import Finding, Outcome

PROOF_SHARE: Final = 0.25
"""Of the time that a partition's search has, what the proof may take."""
OF_TIME: Final = "time"


def refute(
    answer: Answer,
    problem: Problem,
    here: Operations,
    decider: Decider,
    recorded: pa.Table | None,
) -> Finding:
    """Say what is wrong with a history that is not linearizable, and who is at fault.

    Args:
        answer: what showed that it is not.
        problem: the history.
        here: its operations as they were judged.
        decider: what decided it.
        recorded: its operations as they were recorded; None to accuse nobody.

    Raises:
        ModelError: the model is not to be trusted.
    """
    proving = replace(decider, is_over=_share_of(decider))
    whole = Judged(answer, problem, here)
    if recorded is None:
        accused = Accused((), None, here.table, OF_TIME)
        return explain_refutation(Refuted(whole, accused, here), proving.search)
    recorded = _known_well(recorded.cast(OPERATIONS), decider)
    accused = accuse(recorded, proving.judge, _hint_ns(answer, problem))
    closed = proving.close(accused.history)
    known = Operations(closed.operations, proving.model, closed.cited, here.table, proving.initial)
    return explain_refutation(
        Refuted(whole, accused, known if accused.ops else here),
        proving.search,
        lambda: _until_then(known, proving),
        lambda: _stale_elsewhere(accused, proving, recorded, here),
    )


def _share_of(decider: Decider) -> Callable[[], bool]:
    """Return what says when the proof's share of the time is over."""
    clock, is_over = decider.context.clock_unix_s, decider.is_over
    if clock is None:
        return is_over
    end = clock() + PROOF_SHARE * decider.context.search.time_s
    return lambda: is_over() or clock() >= end


def _known_well(recorded: pa.Table, decider: Decider) -> pa.Table:
    """Leave out what failed, where that lacks what a model has to know of what is open."""
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
    """Return about when the first return is that no order gets past."""
    if answer.part is not None:
        return answer.part.last_ns
    assert answer.accusation is not None, "what is not linearizable is shown by something"
    ends = problem.return_ns[np.isin(problem.op, answer.accusation.ops)]
    ends = ends[ends != NEVER]
    return int(ends.max()) if len(ends) else None


def _until_then(known: Operations, proving: Decider) -> Judged:
    """Decide the history up to the return in question again, to explain it by that."""
    problem = proving.model.encode(known.table, proving.initial)
    return Judged(proving.decide(problem, known.table), problem, known)


def _stale_elsewhere(
    accused: Accused, proving: Decider, recorded: pa.Table, whole: Operations
) -> Stale | None:
    """Find a stale read in what follows.

    Without the accused it is the first that no order gets past, which is proven likewise. Where
    nobody is accused, real time alone proves that it is wrong, and no more is said.
    """
    unsure = whole.cited.keys()
    if not accused.ops:
        return stalest_read(whole.register, unsure)
    rest = replace(whole.register, operations=without(whole.table, accused.ops))
    found = first_stale_read(rest, unsure)
    if found is None:
        return None
    end_ns, stale = found
    until = upto(without(recorded, accused.ops), end_ns)
    with_it, _ = proving.judge(until)
    without_it, _ = proving.judge(without(until, [stale.read]))
    is_proven = with_it is Outcome.INVALID and without_it is Outcome.VALID
    return stale if is_proven else None
