"""Operations as columns, for the checkers of queues, sets, counters and group offsets. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.observations import NEVER, Bools, Ints, is_valid, whole_numbers

UNANSWERED: Final = ("commit-oneway",)
"""One-way operations: ok means that it was sent, its outcome is unknown."""
COMMITTING: Final = ("commit", "reset", *UNANSWERED)
"""Operations that set a group's offset: a consumer's, and an operator's."""


class Answers:
    """The operations of some functions as columns, in the order of their ids.

    `end` is NEVER where the outcome is unknown.
    """

    def __init__(self, operations: pa.Table, functions: Iterable[str]) -> None:
        names = pa.array(sorted(functions), pa.string())
        table = operations.filter(pc.is_in(operations["f"], names)).sort_by("op")
        self.table = table
        self.key: str = (table["key"][0].as_py() or "") if table.num_rows else ""
        self.op, self.process = whole_numbers(table["op"]), whole_numbers(table["process"])
        self.input, self.has_input = whole_numbers(table["input"]), is_valid(table["input"])
        self.output, self.has_output = whole_numbers(table["output"]), is_valid(table["output"])
        self.is_ok, self.is_failed = self._outcome("ok"), self._outcome("fail")
        self.is_ok &= ~self.is_(*UNANSWERED)
        self.call = whole_numbers(table["call_ns"])
        self.end = np.where(self.is_ok, whole_numbers(table["return_ns"]), NEVER)
        lacks = self.is_ok & ~is_valid(table["return_ns"])
        if lacks.any():
            raise ValueError(f"operation {self.op[np.argmax(lacks)]} is ok but lacks its return")

    def is_(self, *functions: str) -> Bools:
        """Return where the function is one of these."""
        names = pa.array(functions, pa.string())
        return np.asarray(pc.is_in(self.table["f"], names).to_numpy(), dtype=np.bool_)

    def require_inputs(self, mask: Bools) -> None:
        """Check that these operations have an input.

        Raises:
            ValueError: one lacks it.
        """
        lacks = mask & ~self.has_input
        if lacks.any():
            raise ValueError(f"operation {self.op[np.argmax(lacks)]} lacks its input")

    def list_values(self, mask: Bools) -> tuple[Ints, Ints, Ints]:
        """Return all values in the answers of `mask`, and the length of each list.

        The first two: rows and values, in order. The third: for every row the length of its
        list, -1 if its answer was no list.

        Raises:
            ValueError: a list is not made of whole numbers.
        """
        rows, values = [], []
        lengths = np.full(len(self.op), -1, dtype=np.int64)
        texts = self.table["extra"].to_pylist()
        for row in np.flatnonzero(mask).tolist():
            output: Any = json.loads(texts[row]).get("output") if texts[row] else None
            if isinstance(output, list):
                if not all(type(each) is int for each in output):
                    raise ValueError(
                        f"the answer of operation {self.op[row]} is no list of numbers"
                    )
                lengths[row] = len(output)
                rows += [row] * len(output)
                values += output
            elif self.has_output[row]:
                rows.append(row)
                values.append(int(self.output[row]))
        return np.array(rows, dtype=np.int64), np.array(values, dtype=np.int64), lengths

    def pairs(self, mask: Bools) -> tuple[Ints, Ints, Ints]:
        """Return all messages in the answers of `mask`: rows, offsets and values, in order.

        Raises:
            ValueError: a list is not made of pairs of whole numbers.
        """
        rows, pairs = [], []
        texts = self.table["extra"].to_pylist()
        for row in np.flatnonzero(mask).tolist():
            output: Any = json.loads(texts[row]).get("output") if texts[row] else None
            for pair in output or ():
                if not (isinstance(pair, list) and [type(each) for each in pair] == [int, int]):
                    raise ValueError(f"the answer of operation {self.op[row]} is no list of pairs")
                rows.append(row)
                pairs.append(pair)
        flat = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
        return np.array(rows, dtype=np.int64), flat[:, 0], flat[:, 1]

    def _outcome(self, outcome: str) -> Bools:
        return np.asarray(pc.equal(self.table["outcome"], outcome).to_numpy(), dtype=np.bool_)
