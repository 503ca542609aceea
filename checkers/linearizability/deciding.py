"""Decides histories of one object: by a special case if one applies, else by the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from shaketable.checkers.evidence.resolve import Resolved, resolve_outcomes
from shaketable.checkers.models.model import Model, values_of
from shaketable.checkers.search.budget import UNLIMITED, Limits, MemorySpentError, TimeSpentError
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import Found, ModelError, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special import (
    counting,
    log_order,
    priority_order,
    queues,
    registers,
    sets,
    stacks,
    texts,
    two_ends,
)
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Outcome

# The special cases.


def _fifo_queue(problem: Problem, limits: Limits) -> Decision | None:
    """Decide a FIFO queue by bad patterns where they suffice, else by an order of its pairs."""
    if queues.has_peeks(problem):
        return two_ends.refute_queue(problem, limits)
    return queues.decide_fifo(problem, limits) or queues.decide_by_pairs(problem, limits)


def _stack(problem: Problem, limits: Limits) -> Decision | None:
    """Decide a stack by its bottoms if values are unique, else by words if clients are few."""
    return stacks.decide_by_bottoms(problem, limits) or stacks.decide_by_words(problem, limits)


def _unordered_queue(problem: Problem, limits: Limits) -> Decision | None:
    """Decide an unordered queue by bad patterns, or by counting where values repeat."""
    return queues.decide_bag(problem, limits) or counting.decide_bag(problem, limits)


BY_PROBLEM: dict[str, Callable[[Problem, Limits], Decision | None]] = {
    "register": registers.decide,
    "cas-register": registers.decide,
    "fifo-queue": _fifo_queue,
    "unordered-queue": _unordered_queue,
    "multi-register": registers.decide_groups,
    "set": sets.decide,
    "stack": _stack,
    "deque": two_ends.refute_deque,
    "priority-queue": priority_order.Order(largest_first=True).decide,
    "min-priority-queue": priority_order.Order(largest_first=False).decide,
    "semaphore": counting.decide_semaphore,
    "membership-set": sets.decide_set,
    "multiset": sets.decide_multiset,
    "kv": texts.decide,
}
"""The special case for each model that has one, by the model's name."""


def decide_without_search(
    model: str, problem: Problem, operations: pa.Table, limits: Limits = UNLIMITED
) -> Decision | None:
    """Decide a problem, or the operations that it was made from; None if it takes a search.

    None as well if the limits do not suffice: the search has the same limits, and reports which
    was reached and which part is undecided.

    Args:
        model: the model's name.
        problem: the problem that the search would get.
        operations: the same partition as rows of OPERATIONS.
        limits: the budget.
    """
    special = BY_PROBLEM.get(model)
    try:
        if model == "append-log":
            return log_order.decide(problem, operations, limits)
        return special(problem, limits) if special else None
    except (MemorySpentError, TimeSpentError):
        return None


def no_special_case(
    _model: str, _problem: Problem, _operations: pa.Table, _limits: Limits = UNLIMITED
) -> Decision | None:
    """Leave everything to the search."""
    return None


OF_MODEL = "model"
"""The reason, in place of a budget, if the model cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a history is linearizable, and what shows that it is not.

    `method` names the algorithm that decided. INVALID comes with a part that has no linearization
    or an accusation, UNKNOWN with `why`, the exhausted budget, and the undecided part if any.
    """

    method: str
    outcome: Outcome
    part: Part | None = None
    accusation: Accusation | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides histories of one object within the budget of one partition's search."""

    model: Model
    initial: State
    use_special_cases: bool
    context: CheckContext
    is_over: Callable[[], bool]

    def resolve(self, operations: pa.Table) -> Resolved:
        """Resolve indeterminate operations by later answers, if the model defines its values."""
        return resolve_outcomes(operations, None, self.context, values_of(self.model, self.initial))

    def decide(self, problem: Problem, operations: pa.Table) -> Answer:
        """Decide a problem that encodes these operations.

        Raises:
            ModelError: the model is not to be trusted.
        """
        if not problem.kind.size:
            return Answer("nothing", Outcome.VALID)
        special = decide_without_search if self.use_special_cases else no_special_case
        limits = Limits(self.is_over, self.context.search.memory_bytes)
        decision = special(self.model.name, problem, operations, limits)
        if decision is not None and (decision.part is not None or not decision.why):
            return Answer(
                decision.method, decision.outcome, decision.part, decision.accusation, decision.why
            )
        found = self.search(problem)
        return Answer("search", found.outcome, found.part, None, found.why)

    def search(self, problem: Problem) -> Found:
        """Decide a problem by the search, without special cases.

        Raises:
            ModelError: the model is not to be trusted.
        """
        memory_bytes = self.context.search.memory_bytes
        return search(problem, is_over=self.is_over, memory_bytes_max=memory_bytes)

    def judge(self, operations: pa.Table) -> tuple[Outcome, str]:
        """Decide operations; also return the exhausted budget if they stay UNKNOWN."""
        try:
            resolved = self.resolve(operations).operations
            answer = self.decide(self.model.encode(resolved, self.initial), resolved)
        except (ModelError, UsageError, WitnessError):  # it contradicts its own encoding
            return Outcome.UNKNOWN, OF_MODEL
        return answer.outcome, answer.why
