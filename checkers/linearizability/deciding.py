"""Decides histories of one object: by a special case if one applies, else by the search.

The registers of a whole file of operations are decided at once, if they are simple enough. Most
keys of a large history are small, with few concurrent clients: those are decided exactly in
compiled code (checkers.kernels.open_sets), without a table of their own. All others, and those
that are not linearizable, are left to the checker, key by key: it has the search and explains
violations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shaketable.checkers import special
from shaketable.checkers.evidence import Resolved, resolve_outcomes
from shaketable.checkers.kernels.open_sets import (
    CAS,
    LINEARIZABLE,
    NEVER,
    NOT,
    READ,
    SKIPPED,
    UNFIT,
    WRITE,
    decide,
)
from shaketable.checkers.models.model import Model, values_of
from shaketable.checkers.search.budget import UNLIMITED, Limits, MemorySpentError, TimeSpentError
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import Bools, Found, Ints, ModelError, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.harness.compiled import interpreted
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Outcome

# The special cases.


def _fifo_queue(problem: Problem, limits: Limits) -> Decision | None:
    """Decide a FIFO queue by bad patterns where they suffice, else by an order of its pairs."""
    if special.queues.has_peeks(problem):
        return special.two_ends.refute_queue(problem, limits)
    found = special.queues.decide_fifo(problem, limits)
    return found or special.queues.decide_by_pairs(problem, limits)


def _stack(problem: Problem, limits: Limits) -> Decision | None:
    """Decide a stack by its bottoms if values are unique, else by words if clients are few."""
    found = special.stacks.decide_by_bottoms(problem, limits)
    return found or special.stacks.decide_by_words(problem, limits)


def _unordered_queue(problem: Problem, limits: Limits) -> Decision | None:
    """Decide an unordered queue by bad patterns, or by counting where values repeat."""
    found = special.queues.decide_bag(problem, limits)
    return found or special.counting.decide_bag(problem, limits)


def _largest_first(problem: Problem, limits: Limits) -> Decision | None:
    return special.value_spans.Order(largest_first=True).decide(problem, limits)


def _least_first(problem: Problem, limits: Limits) -> Decision | None:
    return special.value_spans.Order(largest_first=False).decide(problem, limits)


def _of(module: str, name: str) -> Callable[[Problem, Limits], Decision | None]:
    """Return a function of a module of checkers.special, which is imported at the first call."""

    def decide_it(problem: Problem, limits: Limits) -> Decision | None:
        found: Decision | None = getattr(getattr(special, module), name)(problem, limits)
        return found

    return decide_it


BY_PROBLEM: dict[str, Callable[[Problem, Limits], Decision | None]] = {
    "register": _of("registers", "decide"),
    "cas-register": _of("registers", "decide"),
    "fifo-queue": _fifo_queue,
    "unordered-queue": _unordered_queue,
    "multi-register": _of("registers", "decide_groups"),
    "set": _of("sets", "decide"),
    "stack": _stack,
    "deque": _of("two_ends", "refute_deque"),
    "priority-queue": _largest_first,
    "min-priority-queue": _least_first,
    "semaphore": _of("counting", "decide_semaphore"),
    "membership-set": _of("sets", "decide_set"),
    "multiset": _of("sets", "decide_multiset"),
    "kv": _of("texts", "decide"),
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
    decide_model = BY_PROBLEM.get(model)
    try:
        if model == "append-log":
            return special.log_order.decide(problem, operations, limits)
        return decide_model(problem, limits) if decide_model else None
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
        decide_at_once = decide_without_search if self.use_special_cases else no_special_case
        limits = Limits(self.is_over, self.context.search.memory_bytes)
        decision = decide_at_once(self.model.name, problem, operations, limits)
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


# The registers of a whole file.

NOTHING = int(np.iinfo(np.int64).min)
"""Null among whole numbers; a key that contains or starts with this number is not decided here."""
REFUSED = 0
"""The output of a cas that found another value."""
CODES = {"read": READ, "write": WRITE, "cas": CAS}


@dataclass(frozen=True, slots=True)
class Decided:
    """Which keys are proven linearizable, and the counts of all of them together."""

    is_decided: Bools
    counts: dict[str, int]

    def others(self, operations: pa.Table, bounds: Ints) -> tuple[pa.Table, Ints]:
        """Return the operations of all other keys, and the first row of each."""
        if not self.is_decided.any():
            return operations, bounds
        if self.is_decided.all():
            return operations.slice(0, 0), bounds[:1]
        sizes = np.diff(bounds)
        rows = np.flatnonzero(np.repeat(~self.is_decided, sizes))
        starts = np.concatenate([[0], np.cumsum(sizes[~self.is_decided])])
        return operations.take(pa.array(rows)), starts


def decide_registers(
    operations: pa.Table, bounds: Ints, fs: frozenset[str], initial: Any
) -> Decided:
    """Decide the keys that are small enough; a key without anything to judge is left out.

    Args:
        operations: rows of OPERATIONS_CODED, sorted by key and call_ns, in one chunk.
        bounds: key n has the rows bounds[n] to bounds[n + 1].
        fs: the operations that the model knows, of read, write and cas.
        initial: the first value; None for nothing.
    """
    if not (initial is None or _is_number(initial)):
        return Decided(np.zeros(len(bounds) - 1, np.bool_), {})
    columns = _Columns(operations)
    what, is_ok = _encode(columns, fs)
    times = np.empty((operations.num_rows, 2), np.int64)
    times[:, 0] = columns.numbers("call_ns", -1)
    times[:, 1] = np.where(is_ok, columns.numbers("return_ns", -1), NEVER)
    is_reversed = (times[:, 1] < times[:, 0]) & (what[:, 0] != SKIPPED)
    what[is_reversed, 0] = UNFIT  # the checker reports what is wrong with it
    verdicts = np.empty(len(bounds) - 1, np.int64)
    with interpreted(operations.num_rows):
        decide(bounds, what, times, NOTHING if initial is None else initial, verdicts)
    is_judged = what[:, 0] != SKIPPED
    judged = np.add.reduceat(is_judged.astype(np.int64), bounds[:-1])
    known = np.add.reduceat((is_judged & is_ok).astype(np.int64), bounds[:-1])
    is_decided = (verdicts == LINEARIZABLE) & (judged > 0)
    keys, total = int(is_decided.sum()), int(known[is_decided].sum())
    counts = {
        "partitions": keys,
        "operations": total,
        "unknown_outcomes": int(judged[is_decided].sum()) - total,
        "by_open_sets": keys,
    }
    return Decided(is_decided, counts if keys else {})


def _is_number(value: Any) -> bool:
    """Return whether the columns of numbers can hold it, and it is not the number for null."""
    return type(value) is int and NOTHING < value <= NEVER


class _Columns:
    """Columns of OPERATIONS_CODED as arrays."""

    def __init__(self, operations: pa.Table) -> None:
        self._operations = operations

    def numbers(self, name: str, null: int) -> Ints:
        """Return a column of numbers, with `null` where there is none."""
        column = _one(self._operations[name])
        return np.asarray(column.fill_null(null).to_numpy(zero_copy_only=False), dtype=np.int64)

    def is_null(self, name: str) -> Bools:
        """Return where a column holds nothing."""
        column = _one(self._operations[name])
        return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)

    def coded(self, name: str, codes: dict[str, int], other: int) -> npt.NDArray[np.int64]:
        """Return a column of texts as codes, `other` for texts that have none."""
        column = _one(self._operations[name])
        table = [codes.get(text, other) for text in column.dictionary.to_pylist()]
        numbers = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*table, other], np.int64)[numbers])


def _encode(columns: _Columns, fs: frozenset[str]) -> tuple[Ints, Bools]:
    """Return (code, value needed, value left) of each operation for the kernel, and the ok ones."""
    codes = {f: code for f, code in CODES.items() if f in fs}
    code = columns.coded("f", codes, UNFIT)
    outcome = columns.coded("outcome", {"ok": 0, "fail": 1}, 2)
    is_ok = outcome == 0
    given, expected, output = (columns.numbers(n, NOTHING) for n in ("input", "expected", "output"))
    lacks = given == NOTHING
    is_unknown = code == UNFIT  # refused by the model even where it certainly failed
    is_unfit = is_unknown | ~columns.is_null("extra") | ((code != READ) & lacks)
    for name, values in (("input", given), ("expected", expected), ("output", output)):
        is_unfit |= (values == NOTHING) & ~columns.is_null(name)
    is_cas = code == CAS
    is_refused = is_cas & is_ok & (output == REFUSED)
    a = np.where(is_cas, expected, output)
    b = np.where(is_cas & ~is_refused, given, a)
    code = np.where(is_refused, NOT, code)
    code = np.where((code == CAS) & (a == b), READ, code)  # it changes nothing
    is_write = code == WRITE
    a = np.where(is_write, given, a)
    b = np.where(is_write, given, b)
    observes = (code == READ) | (code == NOT)
    code = np.where(is_unfit, UNFIT, code)
    # A failed operation had no effect; an indeterminate observer need not be linearized.
    is_out = (outcome == 1) | (observes & ~is_ok & ~is_unfit)
    code = np.where(is_out & ~is_unknown, SKIPPED, code)
    return np.stack([code, a, b], axis=1), is_ok


def _one(column: pa.ChunkedArray) -> Any:
    """Return a column's one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
