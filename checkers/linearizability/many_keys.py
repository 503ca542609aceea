"""Splits the problem of many keys, encoded in one go, into a problem for each key.

Encoding costs some hundred microseconds a call before the first operation is looked at: more
than a thousand operations of one key cost. So the operations of all keys of a file are encoded
together, and cut apart as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.models.model import Model
from shaketable.checkers.search.problem import Family, Ints, Kinds, Problem, State, Step

KIND_ARRAYS = ("code", "a", "b", "observes", "overwrites")
VALUES_SHARED_MAX = 256
"""Up to so many values or kinds all keys share one numbering; more are numbered anew by key."""


def problems(model: Model, operations: pa.Table, bounds: Ints, first: State) -> Iterator[Problem]:
    """Encode all keys together; yield the problem of each in their order.

    Args:
        model: the model.
        operations: rows of OPERATIONS or OPERATIONS_CODED; key n has the rows from bounds[n].
        bounds: one element more than there are keys.
        first: the first state of every key.

    Raises:
        UsageError: an operation is none that the model knows. The ids that it names are those
            of rows: ask for the keys one by one to learn which.
    """
    ops = np.asarray(operations["op"].to_numpy(), dtype=np.int64)
    rows = pa.array(np.arange(operations.num_rows))
    place = operations.schema.get_field_index("op")
    together = model.encode(operations.set_column(place, "op", rows), first)
    cuts = np.searchsorted(together.op, bounds)
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        here = slice(begin, end)
        one = replace(
            together,
            kind=together.kind[here],
            call_ns=together.call_ns[here],
            return_ns=together.return_ns[here],
            op=ops[together.op[here]],
        )
        yield _numbered_anew(one)


def _numbered_anew(problem: Problem) -> Problem:
    """Leave out kinds and values that only other keys have."""
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
