"""Counters: shown to be linearizable by sets of open operations (checkers.kernels.sums).

What is refuted, or has too many open operations, is searched: the search names what is at fault.

Source: Lee & Mathur, PLDI 2026 (arXiv 2509.05586).
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels import sums
from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Problem
from shaketable.checkers.special.decision import Decision

METHOD = "sums"
ADD, READ = 0, 1
"""Codes of the kinds: the places of the names in sorted order."""
OPERATION_BYTES = 150
"""What the passes hold at a time for each operation, at the most."""
AMOUNT_MAX = 2**40
"""Sums of a million such amounts are still 64-bit numbers."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Show that a counter is linearizable; None if it is not, or a limit was reached.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.step, StepByKind), "a counter's problem is made by its model"
    assert isinstance(problem.start, int), "a counter's state is its sum"
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    is_read = problem.kinds.code == READ
    numbers = np.where(is_read, problem.kinds.b, problem.kinds.a)
    values = problem.step.values(numbers.tolist())
    if not all(type(each) is int and abs(each) < AMOUNT_MAX for each in (*values, problem.start)):
        return None
    amounts = np.array(values, np.int64)[problem.kind]
    rows = np.arange(len(problem.kind))
    ended = np.flatnonzero(problem.return_ns != NEVER)
    operation = np.concatenate((rows, ended))
    is_return = np.arange(len(operation)) >= len(rows)
    time = np.concatenate((problem.call_ns, problem.return_ns[ended]))
    order = np.lexsort((is_return, time))
    limits.check_time()
    found = sums.decide(
        operation[order], is_return[order], is_read[problem.kind], amounts, problem.start
    )
    return Decision(METHOD) if found == sums.LINEARIZABLE else None
