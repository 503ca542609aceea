"""Closes operations of unknown outcome by evidence, before a search has to try both ways.

Pure. Three kinds of evidence, of which each resolution cites one:

- **read**: a later answer carried the value that only this operation can have put. In every
  linearization the operation stands before that answer, whose point lies before its return: so it
  happened, and its return may be set to the earliest such return (in a log, at the offset where
  it was read; another answer that names another offset contradicts it before and after alike).
  The question is the same: what linearizes one history linearizes the other.
- **entry**: the logs that the nodes left behind hold the value, committed, all alike. This asks
  more: whether what clients saw *and* those logs are one history, as if a last read of that
  offset had been called when all else was over. So the return is the last moment of the history.
- **absence**: every node answered while draining, and no node's log, which was read after the
  nodes had stopped, holds the value, though each holds the whole queue from its offset 0 and all
  hold the same. As if a last read of the whole log had not found it: it did not happen by the end
  of the run, and nothing is left that could make it happen. A log that lost the entry is no
  exception: then the answers that relied on it contradict that last read, rightly.

Never resolved: values that more than one operation may have put, or that stand there initially;
operations whose evidence returned before they were called (a violation, which stays one); queues
about which the nodes' logs differ, or have a damaged entry, a gap or an expired beginning; a
history known to lack events. An entry that is damaged beyond its queue's name is none that is
missing unnoticed: were it one of this queue, the offsets would have a gap, or the nodes' logs
would differ, unless all nodes lost the same last entry, which checkers.logs.durability reports.

Source: porcupine and knossos leave these open, which is what makes their searches explode;
CHECKERS.md section 5 for the outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence.node_logs import Held, held_in_logs
from harness.plugins import CheckContext

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NOBODY: Final = -1
"""In a column of row numbers: there is no such row."""
NEVER: Final = int(np.iinfo(np.int64).max)
SUCCEEDED: Final = 1
"""The output of a cas that is known to have swapped."""

READ, ENTRY, ABSENCE = "read", "entry", "absence"

CITATIONS: Final = pa.schema(
    [
        ("op", pa.int64()),  # the operation that was resolved
        ("key", pa.string()),
        ("value", pa.int64()),  # what it put, or would have put
        ("outcome", pa.string()),  # ok | fail
        ("offset", pa.int64()),  # of a log: where it stands
        ("return_ns", pa.int64()),  # by when it had happened
        ("evidence", pa.string()),  # read | entry | absence
        ("evidence_op", pa.int64()),  # read: the operation that showed it
        ("node", pa.string()),  # entry: a node whose log holds it
        ("index", pa.int64()),  # entry: where in that log
        ("message", pa.string()),  # one sentence for a person
    ]
)


@dataclass(frozen=True, slots=True)
class Values:
    """Which operations of an object put their input, and which show what was put.

    `initial` are values that stand there before anybody puts one. `is_log` says that values have
    offsets, and that the nodes' logs hold them.
    """

    puts: frozenset[str]
    shows: frozenset[str]
    initial: frozenset[int] = frozenset()
    is_log: bool = False


LOG: Final = Values(frozenset(("append", "send")), frozenset(("read", "poll")), is_log=True)
QUEUE: Final = Values(frozenset(("enqueue",)), frozenset(("dequeue", "drain")))
SET: Final = Values(frozenset(("add",)), frozenset(("read",)))
REGISTER: Final = Values(frozenset(("write", "cas")), frozenset(("read", "cas")))


def resolve(
    operations: pa.Table, entries: pa.Table | None, context: CheckContext, values: Values
) -> tuple[pa.Table, pa.Table]:
    """Resolve what can be resolved of one or several objects, each key one of them.

    Args:
        operations: rows of OPERATIONS.
        entries: the nodes' ENTRIES of the same keys, or None where there are none.
        context: the nodes, what they had committed, whether the history is incomplete.
        values: which operations put and show values.

    Returns:
        The operations in the same order, of which some of unknown outcome are now "ok" or "fail",
        and a row of CITATIONS for each of these.

    Raises:
        ValueError: an answer's list is not made of whole numbers.
    """
    none = CITATIONS.empty_table()
    if context.incomplete is not None or operations.num_rows == 0:
        return operations, none
    rows = _Rows(operations, values)
    if not rows.is_open.any():
        return operations, none
    rows.close_by_reads()
    if values.is_log and entries is not None and entries.num_rows:
        rows.close_by_logs(held_in_logs(entries, context, rows.open_values()))
    if not rows.cited:
        return operations, none
    cited = sorted(rows.cited, key=lambda row: int(row["op"]))
    return rows.table(), pa.Table.from_pylist(cited, CITATIONS)


class _Rows:
    """The columns that resolutions change, and what they were resolved by."""

    def __init__(self, operations: pa.Table, values: Values) -> None:
        self._operations, self._values = operations, values
        self.cited: list[dict[str, Any]] = []
        self.f = operations["f"]
        self.op, self.call = _ints(operations["op"]), _ints(operations["call_ns"])
        self.keys = operations["key"].combine_chunks().dictionary_encode(null_encoding="encode")
        self.key: Ints = self.keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.value = _ints(operations["input"])
        self.is_ok = _equal(operations["outcome"], "ok")
        is_failed = _equal(operations["outcome"], "fail")
        has_value = _valid(operations["input"])
        self.is_put = self._is(values.puts) & ~is_failed & has_value
        # A cas that answered "no" put nothing.
        self.is_cas = _equal(self.f, "cas")
        self.is_no = self.is_cas & self.is_ok & (_ints(operations["output"]) != SUCCEEDED)
        self.is_put &= ~self.is_no
        self.end = np.where(_valid(operations["return_ns"]), _ints(operations["return_ns"]), NEVER)
        self.end = np.where(self.is_ok, self.end, NEVER)
        self.last_ns = int(max(self.call.max(), self.end[self.end < NEVER].max(initial=0)))
        self.is_open = self.is_put & ~self.is_ok
        self.outcome: dict[int, tuple[str, int, int | None]] = {}  # row -> outcome, return, offset

    def open_values(self) -> Ints:
        """Return the values of what is still open."""
        return np.unique(self.value[self.is_open])

    def close_by_reads(self) -> None:
        """Close what answers show; a cas closed so shows in turn what it had expected."""
        shown = self._shown()
        while True:
            closed = self._close_shown(shown)
            cas = closed[self.is_cas[closed]]
            if not len(cas):
                return
            shown = self._expected(cas, self.end[cas])

    def close_by_logs(self, held: Held) -> None:
        """Close what the nodes' logs hold, or certainly do not hold."""
        names = self.keys.dictionary.to_pylist()
        for row in np.flatnonzero(self.is_open & self._is_unique()).tolist():
            key, value = names[self.key[row]], int(self.value[row])
            entry = held.entry(key, value)
            if entry is not None:
                offset, node, index = entry
                message = (
                    f"{key}: op {self.op[row]} ({value}) happened at offset {offset}: {node}'s"
                    f" committed log holds it (entry {index})."
                )
                found = {"node": node, "index": index, "message": message}
                self._close(row, "ok", max(self.last_ns, int(self.call[row])), offset, ENTRY, found)
            elif held.is_absent(key, value):
                message = (
                    f"{key}: op {self.op[row]} ({value}) did not happen by the end of the run: no"
                    " node's log holds it, and all hold the whole queue."
                )
                self._close(row, "fail", self.last_ns, None, ABSENCE, {"message": message})

    def table(self) -> pa.Table:
        """Return the operations with what was resolved."""
        rows = sorted(self.outcome)
        outcomes = [self.outcome[row] for row in rows]
        placed = [row for row in rows if self.outcome[row][2] is not None]
        swapped = [row for row in rows if self.is_cas[row] and self.outcome[row][0] == "ok"]
        table = _replaced(self._operations, "outcome", rows, [each[0] for each in outcomes])
        table = _replaced(table, "return_ns", rows, [each[1] for each in outcomes])
        table = _replaced(table, "offset", placed, [self.outcome[row][2] for row in placed])
        return _replaced(table, "output", swapped, [SUCCEEDED] * len(swapped))

    def _is(self, functions: frozenset[str]) -> Bools:
        names = pa.array(sorted(functions), pa.string())
        return np.asarray(pc.is_in(self.f, names).to_numpy(), dtype=np.bool_)

    def _is_unique(self) -> Bools:
        """Return which operations put a value that no other can have put, nor was there before."""
        puts = np.flatnonzero(self.is_put)
        group, _ = _groups(self.key[puts], self.value[puts], self.key[:0], self.value[:0])
        alone = np.bincount(group)[group] == 1 if len(puts) else np.empty(0, np.bool_)
        unique = np.zeros(len(self.op), dtype=np.bool_)
        unique[puts] = alone & ~np.isin(self.value[puts], sorted(self._values.initial))
        return unique

    def _shown(self) -> dict[str, Ints]:
        """Return every value that an answer showed: (row, value, offset, end)."""
        table, is_show = self._operations, self._is(self._values.shows) & self.is_ok
        output, offset = _ints(table["output"]), _ints(table["offset"])
        plain = np.flatnonzero(is_show & ~self.is_cas & _valid(table["output"]))
        parts = [(plain, output[plain], offset[plain])]
        parts += [
            (np.full(len(pairs), row), pairs[:, 1], pairs[:, 0])
            for row, pairs in _lists(table["extra"], np.flatnonzero(is_show), self.op)
        ]
        rows = np.concatenate([part[0] for part in parts])
        shown = {
            "row": rows,
            "value": np.concatenate([part[1] for part in parts]),
            "offset": np.concatenate([part[2] for part in parts]),
            "end": self.end[rows],
        }
        cas = np.flatnonzero(is_show & self.is_cas & ~self.is_no)
        expected = self._expected(cas, self.end[cas])
        return {name: np.concatenate((shown[name], expected[name])) for name in shown}

    def _expected(self, rows: Ints, end: Ints) -> dict[str, Ints]:
        """A cas that swapped shows the value that it expected."""
        has = _valid(self._operations["expected"])[rows]
        value = _ints(self._operations["expected"])[rows[has]]
        return {"row": rows[has], "value": value, "offset": np.zeros_like(value), "end": end[has]}

    def _close_shown(self, shown: dict[str, Ints]) -> Ints:
        """Close the open operations whose unique value was shown; return their rows."""
        puts = np.flatnonzero(self.is_open & self._is_unique())
        rows, end = shown["row"], shown["end"]
        group, of_shown = _groups(self.key[puts], self.value[puts], self.key[rows], shown["value"])
        order = np.lexsort((self.op[rows], end, of_shown))
        if not len(order) or not len(puts):
            return np.empty(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(of_shown[order], group), len(order) - 1)
        first = order[at]
        # An answer that returned before the call is a violation: left as it is, it stays one.
        is_shown = (of_shown[first] == group) & (end[first] >= self.call[puts])
        is_shown &= rows[first] != puts  # a cas is no witness of itself
        for put, n in zip(puts[is_shown].tolist(), first[is_shown].tolist(), strict=True):
            witness, by_ns = int(self.op[rows[n]]), int(end[n])
            offset = int(shown["offset"][n]) if self._values.is_log else None
            where = "" if offset is None else f" at offset {offset}"
            message = (
                f"{self._name(put)}: op {self.op[put]} ({self.value[put]}) happened{where} before"
                f" op {witness}, which showed its value, returned."
            )
            found = {"evidence_op": witness, "message": message}
            self._close(put, "ok", by_ns, offset, READ, found)
        closed: Ints = puts[is_shown]
        return closed

    def _close(
        self, row: int, outcome: str, by_ns: int, offset: int | None, by: str, found: dict[str, Any]
    ) -> None:
        self.outcome[row] = (outcome, by_ns, offset)
        self.is_open[row] = False
        self.end[row] = by_ns
        citation: dict[str, Any] = dict.fromkeys(CITATIONS.names)
        citation.update(op=int(self.op[row]), key=self._name(row), value=int(self.value[row]))
        citation.update(outcome=outcome, offset=offset, return_ns=by_ns, evidence=by)
        self.cited.append(citation | found)

    def _name(self, row: int) -> str | None:
        name: str | None = self.keys.dictionary[int(self.key[row])].as_py()
        return name


def _groups(key: Ints, value: Ints, other_key: Ints, other_value: Ints) -> tuple[Ints, Ints]:
    """Number the pairs (key, value) of two lists: equal pairs bear the same number."""
    keys, all_values = np.concatenate((key, other_key)), np.concatenate((value, other_value))
    order = np.lexsort((all_values, keys))
    is_new = np.zeros(len(order), dtype=np.int64)
    is_new[1:] = (keys[order][1:] != keys[order][:-1]) | (
        all_values[order][1:] != all_values[order][:-1]
    )
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers[: len(key)], numbers[len(key) :]


def _replaced(table: pa.Table, name: str, rows: Sequence[int], values: Sequence[Any]) -> pa.Table:
    """Return the table with `values` in those rows (ascending) of one column."""
    if not rows:
        return table
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    mask = np.zeros(table.num_rows, dtype=np.bool_)
    mask[list(rows)] = True
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    new = pc.replace_with_mask(column, pa.array(mask), pa.array(values, field.type))
    return table.set_column(at, field, new)


def _lists(column: pa.ChunkedArray, rows: Ints, op: Ints) -> list[tuple[int, Ints]]:
    """Return the lists of answers as (offset, value); offset 0 where a list has values alone."""
    texts = column.take(pa.array(rows))
    found = []
    for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
        output = None if text is None else json.loads(text).get("output")
        if isinstance(output, list) and output:
            pairs = [each if isinstance(each, list) else [0, each] for each in output]
            if not all(len(p) == 2 and all(type(n) is int for n in p) for p in pairs):
                raise ValueError(f"the answer of op {op[row]} is no list of whole numbers")
            found.append((row, np.array(pairs, dtype=np.int64)))
    return found


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def _valid(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_)


def _equal(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.equal(column, value).fill_null(False).to_numpy(), dtype=np.bool_)
