"""Resolves indeterminate operations by evidence, so that the search need not try both outcomes.

Pure. Each resolution cites one of three kinds of evidence:

- **read**: a later answer carried a value that only this operation can have put. In every
  linearization the operation precedes that answer, whose linearization point lies before its
  return: so it happened, and its return may be set to the earliest such return (in a log, at the
  offset where it was read; an answer with another offset contradicts both histories alike). The
  two histories are equivalent: a linearization of one is a linearization of the other.
- **entry**: the nodes' logs hold the value, committed, all alike. This checks more: whether what
  clients saw *and* those logs are one history, as if a final read of that offset had been called
  after all other operations. So the return is the last moment of the history.
- **absence**: every node answered while draining, and no node's log, read after the nodes had
  stopped, holds the value, though each holds the whole queue from offset 0 and all hold the same.
  As if a final read of the whole log had not found it: it did not happen by the end of the run,
  and nothing can make it happen later. A log that lost the entry is no exception: then the
  answers that relied on it contradict that final read, rightly.

Never resolved: values that more than one operation may have put, or that are initial; values that
are no whole numbers; operations whose evidence returned before they were called (a violation,
which stays one); queues on which the nodes' logs differ, or that have a damaged entry, a gap or an
expired beginning; a history known to lack events. An entry so damaged that its queue is not known
cannot hide: if it belonged to this queue, the offsets would have a gap, or the nodes' logs would
differ, unless all nodes lost the same last entry, which checkers.logs.durability reports.

Source: porcupine and knossos leave these operations indeterminate, which makes their searches
explode; CHECKERS.md section 5 for the outcomes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Gathered
from shaketable.checkers.models.model import LOG, QUEUE, REGISTER, SET, Values
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Verdict

__all__ = ["CITATIONS", "LOG", "QUEUE", "REGISTER", "SET", "Values", "resolve"]

NEVER: Final = int(np.iinfo(np.int64).max)
SUCCEEDED: Final = 1
"""The output of a cas that swapped."""

READ, ENTRY, ABSENCE = "read", "entry", "absence"

CITATIONS: Final = pa.schema(
    [
        ("op", pa.int64()),  # the operation that was resolved
        ("key", pa.string()),
        ("value", pa.int64()),  # what it put, or would have put
        ("outcome", pa.string()),  # ok | fail
        ("offset", pa.int64()),  # of a log: where it is stored
        ("return_ns", pa.int64()),  # when it had happened at the latest
        ("evidence", pa.string()),  # read | entry | absence
        ("evidence_op", pa.int64()),  # read: the operation that showed it
        ("node", pa.string()),  # entry: a node whose log holds it
        ("index", pa.int64()),  # entry: where in that log
        ("message", pa.string()),  # one sentence for a person
    ]
)


def resolve(
    operations: pa.Table,
    entries: pa.Table | LogValues | None,
    context: CheckContext,
    values: Values,
) -> tuple[pa.Table, pa.Table]:
    """Resolve indeterminate operations of one or several objects, one for each key.

    Args:
        operations: rows of OPERATIONS or OPERATIONS_CODED.
        entries: the nodes' ENTRIES of the same keys, or what they hold of the open values; None
            if there are none.
        context: the nodes, what they had committed, whether the history is incomplete.
        values: which operations put and show values.

    Returns:
        The operations in the same order, of which some indeterminate ones are now "ok" or "fail",
        and a row of CITATIONS for each of these.
    """
    none = CITATIONS.empty_table()
    if context.incomplete is not None or operations.num_rows == 0:
        return operations, none
    if not may_be_open(operations, values).any():
        return operations, none
    rows = _Rows(operations, values)
    if not rows.is_open.any():
        return operations, none
    rows.resolve_by_reads()
    if isinstance(entries, pa.Table):
        entries = find_in_logs(entries, context, rows.open_values()) if entries.num_rows else None
    if values.is_log and entries is not None:
        rows.resolve_by_logs(entries)
    if not rows.cited:
        return operations, none
    cited = sorted(rows.cited, key=lambda row: int(row["op"]))
    return rows.table(), pa.Table.from_pylist(cited, CITATIONS)


def may_be_open(operations: pa.Table, values: Values) -> Bools:
    """Mark the indeterminate operations that may have put a value."""
    f = operations["f"]
    is_open = ~(is_any_of(operations["outcome"], ("ok", "fail")))
    return is_open & is_any_of(f, values.puts) if is_open.any() else is_open


class _Rows:
    """The columns that resolutions change, and the citations of these."""

    def __init__(self, operations: pa.Table, values: Values) -> None:
        self._operations, self._values = operations, values
        self.cited: list[dict[str, Any]] = []
        self.answers = given = Answers(operations, values)
        self.op, self.call, self.end = given.op, given.call, given.end.copy()
        self.key, self.value, self.is_cas = given.key, given.value, given.is_cas
        self.is_open = given.is_put & ~given.is_ok
        # Only these values can be resolved: of a large history few operations are about them.
        self.is_put = given.is_put & given.is_one_of(self.value, self.open_values())
        self.last_ns = int(max(self.call.max(), self.end[self.end < NEVER].max(initial=0)))
        self.outcome: dict[int, tuple[str, int, int | None]] = {}  # row -> outcome, return, offset

    def open_values(self) -> Ints:
        """Return the values of the operations that are still open."""
        return np.unique(self.value[self.is_open])

    def resolve_by_reads(self) -> None:
        """Resolve what answers show; a resolved cas shows in turn what it had expected."""
        shown = self.answers.shown(self.open_values())
        while True:
            resolved = self._resolve_shown(shown)
            cas = resolved[self.is_cas[resolved]]
            if not len(cas):
                return
            shown = self.answers.expected_by(cas, self.end[cas])

    def resolve_by_logs(self, held: LogValues) -> None:
        """Resolve what the nodes' logs hold, or certainly do not hold."""
        names = self.answers.names
        for row in np.flatnonzero(self.is_open & self._is_unique()).tolist():
            key, value = names[self.key[row]], int(self.value[row])
            entry = held.entry(key, value)
            if entry is not None:
                offset, node, index = entry
                message = (
                    f"{self._op_text(row)} happened at offset {offset}: {node}'s"
                    f" committed log holds it (entry {index})."
                )
                # As if a final read had seen it: the operation may return after all others.
                found = {"node": node, "index": index, "message": message}
                self._resolve(
                    row, "ok", max(self.last_ns, int(self.call[row])), offset, ENTRY, found
                )
            elif held.is_absent(key, value):
                message = (
                    f"{self._op_text(row)} did not happen by the end of the run: no"
                    " node's log holds it, and all hold the whole queue."
                )
                self._resolve(row, "fail", self.last_ns, None, ABSENCE, {"message": message})

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

    def _is_unique(self) -> Bools:
        """Return which operations put a value that no other put, and that is not initial."""
        puts = np.flatnonzero(self.is_put)
        group, _ = _groups(self.key[puts], self.value[puts], self.key[:0], self.value[:0])
        alone = np.bincount(group)[group] == 1 if len(puts) else np.empty(0, np.bool_)
        unique = np.zeros(len(self.op), dtype=np.bool_)
        unique[puts] = alone & ~np.isin(self.value[puts], sorted(self._values.initial))
        return unique

    def _resolve_shown(self, shown: dict[str, Ints]) -> Ints:
        """Resolve the open operations whose unique value was shown; return their rows."""
        puts = np.flatnonzero(self.is_open & self._is_unique())
        rows, end = shown["row"], shown["end"]
        group, of_shown = _groups(self.key[puts], self.value[puts], self.key[rows], shown["value"])
        order = np.lexsort((self.op[rows], end, of_shown))
        if not len(order) or not len(puts):
            return np.empty(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(of_shown[order], group), len(order) - 1)
        first = order[at]
        # An answer that returned before the call is a violation: unresolved, it stays one.
        is_shown = (of_shown[first] == group) & (end[first] >= self.call[puts])
        is_shown &= rows[first] != puts  # a cas is no evidence for itself
        if self._values.is_log:
            is_shown &= shown["offset"][first] >= 0  # no log has a negative one: stays a violation
        for put, n in zip(puts[is_shown].tolist(), first[is_shown].tolist(), strict=True):
            witness, by_ns = int(self.op[rows[n]]), int(end[n])
            offset = int(shown["offset"][n]) if self._values.is_log else None
            where = "" if offset is None else f" at offset {offset}"
            message = (
                f"{self._op_text(put)} happened{where} before"
                f" op {witness}, which showed its value, returned."
            )
            found = {"evidence_op": witness, "message": message}
            self._resolve(put, "ok", by_ns, offset, READ, found)
        resolved: Ints = puts[is_shown]
        return resolved

    def _resolve(
        self, row: int, outcome: str, by_ns: int, offset: int | None, by: str, found: dict[str, Any]
    ) -> None:
        self.outcome[row] = (outcome, by_ns, offset)
        self.is_open[row] = False
        self.end[row] = by_ns
        citation: dict[str, Any] = dict.fromkeys(CITATIONS.names)
        citation.update(op=int(self.op[row]), key=self._name(row), value=int(self.value[row]))
        citation.update(outcome=outcome, offset=offset, return_ns=by_ns, evidence=by)
        self.cited.append(citation | found)

    def _op_text(self, row: int) -> str:
        name = self._name(row)
        return f"{'' if name is None else f'{name}: '}op {self.op[row]} ({self.value[row]})"

    def _name(self, row: int) -> str | None:
        return self.answers.names[int(self.key[row])]


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
    is_coded = pa.types.is_dictionary(field.type)
    plain = field.type.value_type if is_coded else field.type
    column = table[name].cast(plain).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    new = pc.replace_with_mask(column, pa.array(mask), pa.array(values, plain))
    return table.set_column(at, field, new.dictionary_encode() if is_coded else new)


# What operations put and what answers show, as columns: the input of resolutions.

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Shown = dict[str, Ints]
"""Columns row, value, offset and end: the answer to the operation in that row showed a value."""


LOWEST: Final = int(np.iinfo(np.int64).min)
REFUSED: Final = 0
"""The output of a cas that found another value."""
COLUMNS: Final = ("input", "expected", "output")


class Answers:
    """The operations of one or several objects as columns.

    `key` is an index of `names`; `value` is what a put put, where `is_put`; `end` is NEVER where
    the outcome is unknown.
    """

    def __init__(self, operations: pa.Table, values: Values) -> None:
        """Take rows of OPERATIONS or OPERATIONS_CODED; at least one."""
        self._operations, self._values = operations, values
        self.op, self.call = _ints(operations["op"]), _ints(operations["call_ns"])
        keys = _coded(operations["key"])
        self.names: list[str | None] = keys.dictionary.to_pylist()
        self.key: Ints = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.is_ok = is_any_of(operations["outcome"], ("ok",))
        self.is_cas = is_any_of(operations["f"], ("cas",))
        self._lists: list[tuple[int, list[Any]]] = []  # row, and the list that it returned
        is_put = is_any_of(operations["f"], values.puts)
        self._is_show = self.is_ok & is_any_of(operations["f"], values.shows)
        self._columns = {
            name: (_ints(operations[name]), _valid(operations[name])) for name in COLUMNS
        }
        self._read_extra(is_put | self._is_show)
        output, has_output = self._columns["output"]
        # A cas that answered "no" put nothing.
        self._is_no = self.is_cas & self.is_ok & has_output & (output == REFUSED)
        self.value, has_value = self._columns["input"]
        self.is_put = (
            is_put & has_value & ~self._is_no & ~is_any_of(operations["outcome"], ("fail",))
        )
        # One that swaps a value for itself puts nothing; only its answer shows the value.
        expected, has_expected = self._columns["expected"]
        self.is_put &= ~(self.is_cas & has_expected & (expected == self.value))
        has_end = _valid(operations["return_ns"]) & self.is_ok
        self.end: Ints = np.where(has_end, _ints(operations["return_ns"]), NEVER)

    def shown(self, wanted: Ints) -> Shown:
        """Return every answer that showed one of these values, which are in ascending order."""
        output, has_output = self._columns["output"]
        is_shown = self._is_show & ~self.is_cas & has_output & self.is_one_of(output, wanted)
        plain = np.flatnonzero(is_shown)
        parts = [(plain, output[plain], _ints(self._operations["offset"])[plain])]
        for row, pairs in self._pairs():
            some = pairs[self.is_one_of(pairs[:, 1], wanted)]
            parts.append((np.full(len(some), row), some[:, 1], some[:, 0]))
        rows = np.concatenate([part[0] for part in parts])
        shown = {
            "row": rows,
            "value": np.concatenate([part[1] for part in parts]),
            "offset": np.concatenate([part[2] for part in parts]),
            "end": self.end[rows],
        }
        cas = np.flatnonzero(self._is_show & self.is_cas & ~self._is_no)
        expected = self.expected_by(cas, self.end[cas])
        return {name: np.concatenate((shown[name], expected[name])) for name in shown}

    def expected_by(self, rows: Ints, end: Ints) -> Shown:
        """Return the expected values of these cas: one that swapped shows what it expected."""
        value, has = self._columns["expected"]
        rows, end = rows[has[rows]], end[has[rows]]
        return {"row": rows, "value": value[rows], "offset": np.zeros_like(rows), "end": end}

    @staticmethod
    def is_one_of(values: Ints, wanted: Ints) -> Bools:
        """Mark the values that are among `wanted`, which are few and in ascending order."""
        if not len(wanted):
            return np.zeros(len(values), dtype=np.bool_)
        at = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
        return np.asarray(wanted[at] == values)

    def _read_extra(self, is_needed: Bools) -> None:
        """Override columns by the whole numbers in `extra`, and keep its lists of outputs."""
        extra = self._operations["extra"]
        if extra.null_count == len(extra):
            return
        texts = _coded(extra)
        code = texts.indices.to_numpy(zero_copy_only=False)
        decoded = {}
        rows = np.flatnonzero(is_needed & _valid(extra))
        for row, number in zip(rows.tolist(), code[rows].tolist(), strict=True):
            if number not in decoded:
                decoded[number] = _decoded(texts.dictionary[number].as_py())
            for name in COLUMNS:
                if name in decoded[number]:
                    self._override(row, name, decoded[number][name])

    def _override(self, row: int, name: str, value: Any) -> None:
        column, is_present = self._columns[name]
        whole = _whole(value)
        if not is_present.flags.writeable or not column.flags.writeable:
            column, is_present = self._columns[name] = column.copy(), is_present.copy()
        column[row], is_present[row] = whole or 0, whole is not None
        if name == "output" and isinstance(value, list) and self._is_show[row]:
            self._lists.append((row, value))

    def _pairs(self) -> Iterator[tuple[int, Ints]]:
        """Yield the lists of answers as rows of (offset, value); offset 0 if there is none."""
        for row, answered in self._lists:
            if self._values.is_log:
                pairs = [each for each in answered if isinstance(each, list) and len(each) == 2]
            else:
                pairs = [[0, each] for each in answered]
            whole = [(_whole(offset), _whole(value)) for offset, value in pairs]
            kept = [pair for pair in whole if None not in pair]
            if kept:
                yield row, np.array(kept, dtype=np.int64)


def is_any_of(column: pa.ChunkedArray, texts: Collection[str]) -> Bools:
    """Mark where a column of texts, plain or dictionary-encoded, has one of these texts."""
    wanted = pa.array(sorted(texts), pa.string())
    if not pa.types.is_dictionary(column.type):
        return np.asarray(pc.is_in(column, wanted).to_numpy(), dtype=np.bool_)
    coded = _coded(column)
    is_wanted = np.asarray(
        pc.is_in(coded.dictionary, wanted).to_numpy(zero_copy_only=False), dtype=np.bool_
    )
    return np.asarray(np.append(is_wanted, False)[_codes(coded)], dtype=np.bool_)


def _codes(coded: pa.DictionaryArray) -> Ints:
    indices = coded.indices.fill_null(-1) if coded.indices.null_count else coded.indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of texts dictionary-encoded, with null as a text of its own."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
        if column.null_count == 0 and column.num_chunks == 1:
            return column.chunk(0)
        column = column.cast(pa.string())
    whole = pa.concat_arrays(column.chunks or [pa.array([], pa.string())])
    return whole.dictionary_encode(null_encoding="encode")


def _decoded(text: str) -> dict[str, Any]:
    """Return a JSON object, {} for anything else: the model's encoding refuses that."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int | None:
    """Return the whole number that a value equals in Python; None if it equals none."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole and LOWEST <= value <= NEVER else None


def _ints(column: pa.ChunkedArray) -> Ints:
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def _valid(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_)


# What a checker reports of it: counts, summary, citations.

BY_READS: Final = "closed_by_reads"
BY_LOGS: Final = "closed_by_logs"
CITED: Final = "cited"
"""Key in a row "checked": the citations with the lowest ids, as [id, sentence]."""
CITED_MAX: Final = 5
"""Citations that a verdict shows besides those of operations in findings."""
RESOLVED: Final = "closed"
"""Key in `Verdict.data`, and of an operation in a finding's details: why it was resolved."""

Citation = Mapping[str, Any]
"""A row of CITATIONS."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Operations, of which some indeterminate ones were resolved; `cited` has why, by their ids."""

    operations: pa.Table
    cited: Mapping[int, Citation] = field(default_factory=dict)


def resolve_outcomes(
    operations: pa.Table, held: LogValues | None, context: CheckContext, values: Values | None
) -> Resolved:
    """Resolve indeterminate operations by evidence; none if `values` is not known."""
    if values is None or operations.num_rows == 0:
        return Resolved(operations)
    resolved, citations = resolve(operations, held, context, values)
    return Resolved(resolved, {row["op"]: row for row in citations.to_pylist()})


def resolved_counts(cited: Iterable[Citation]) -> dict[str, int]:
    """Count citations by the kind of their evidence; kinds without any are left out."""
    kinds = [BY_READS if row["evidence"] == READ else BY_LOGS for row in cited]
    return {name: kinds.count(name) for name in (BY_READS, BY_LOGS) if name in kinds}


def first_citations(cited: Iterable[Citation]) -> dict[str, Any]:
    """Return the citations that a row "checked" carries: the lowest ids, however keys are split."""
    lowest = sorted((row["op"], row["message"]) for row in cited)[:CITED_MAX]
    return {CITED: [list(each) for each in lowest]} if lowest else {}


def with_resolved(verdict: Verdict, gathered: Gathered) -> Verdict:
    """Add to a verdict how many indeterminate operations were resolved, and some citations."""
    sums = gathered.sums()
    by_reads, by_logs = int(sums.get(BY_READS, 0)), int(sums.get(BY_LOGS, 0))
    total = by_reads + by_logs
    if not total:
        return verdict
    named = [f"{n} by {what}" for n, what in ((by_reads, "reads"), (by_logs, "logs")) if n]
    outcomes = "unknown outcome" if total == 1 else "unknown outcomes"
    cited = sorted(tuple(each) for counts in gathered.checked for each in counts.get(CITED, ()))
    messages = [message for _, message in cited[:CITED_MAX]]
    return replace(
        verdict,
        summary=f"{verdict.summary}; {total} {outcomes} closed: {', '.join(named)}",
        data={**verdict.data, RESOLVED: messages},
    )


def citation_sentence(cited: Mapping[int, Citation], ops: Sequence[int]) -> str:
    """Return the sentence on why these indeterminate operations count; "" if none was resolved."""
    texts = [str(cited[op]["message"]) for op in dict.fromkeys(ops) if op in cited]
    return f" Indeterminate: {' '.join(texts[:CITED_MAX])}" if texts else ""


# What the nodes' logs prove of a value.

_Key = str | None
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogValues:
    """What the nodes' logs hold of the wanted values.

    `committed` maps (key, value) to (offset, node, index) where every node that had committed
    that far agrees; `values` are all (key, value) in any log, committed or not; `complete` are the
    keys that all nodes hold alike, from offset 0 on, without damage.
    """

    committed: dict[tuple[_Key, int], tuple[int, str, int]]
    values: frozenset[tuple[_Key, int]]
    complete: frozenset[_Key]

    def entry(self, key: _Key, value: int) -> tuple[int, str, int] | None:
        """Return where a value is certainly stored, as (offset, node, log index), or None."""
        return self.committed.get((key, value))

    def only(self, values: Iterable[int]) -> LogValues:
        """Return the same, restricted to these values."""
        wanted_values = frozenset(values)
        committed = {pair: at for pair, at in self.committed.items() if pair[1] in wanted_values}
        return LogValues(
            committed, frozenset(p for p in self.values if p[1] in wanted_values), self.complete
        )

    def is_absent(self, key: _Key, value: int) -> bool:
        """Return whether a value is certainly in no log."""
        return key in self.complete and (key, value) not in self.values


def find_in_logs(entries: pa.Table, context: CheckContext, wanted: _Ints) -> LogValues:
    """Look up the values `wanted` in the nodes' ENTRIES of some keys."""
    is_damaged = pc.is_valid(entries["problem"])
    has_offset, has_value = pc.is_valid(entries["offset"]), pc.is_valid(entries["value"])
    without_value = pc.and_(has_offset, pc.invert(has_value))
    damaged_keys = frozenset(entries.filter(pc.or_(is_damaged, without_value))["key"].to_pylist())
    sound = pc.and_(pc.and_(has_offset, has_value), pc.invert(is_damaged))
    rows = entries.filter(sound)
    is_found = pc.is_in(rows["value"], pa.array(wanted, pa.int64()))
    found = rows.filter(is_found)
    # Any other value at the same queue and offset contradicts them.
    at_same_place = rows.filter(pa.array(_share_places(rows, is_found)))
    pairs = zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    return LogValues(
        committed=_committed(at_same_place, context, damaged_keys),
        values=frozenset(pairs),
        complete=_complete(rows, context) - damaged_keys,
    )


def _share_places(rows: pa.Table, is_found: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Mark the rows at the same queue and offset as one of those found."""
    key, _ = _number_keys(rows["key"])
    offset = _filled_ints(rows["offset"])
    order = np.lexsort((offset, key))
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (key[order][1:] != key[order][:-1]) | (offset[order][1:] != offset[order][:-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(starts) - 1
    is_wanted = np.zeros(len(order), dtype=np.bool_)
    is_wanted[place[np.asarray(is_found.to_numpy(), dtype=np.bool_)]] = True
    return np.asarray(is_wanted[place])


def _committed(
    rows: pa.Table, context: CheckContext, damaged_keys: frozenset[_Key]
) -> dict[tuple[_Key, int], tuple[int, str, int]]:
    """Return the committed entries on which the nodes agree, of keys without damage."""
    holders: dict[tuple[_Key, int], dict[str, set[tuple[int, int]]]] = {}
    at: dict[tuple[_Key, int], set[int]] = defaultdict(set)
    columns = (rows[name].to_pylist() for name in ("node", "key", "value", "offset", "index"))
    for node, key, value, offset, index in zip(*columns, strict=True):
        if index <= context.committed.get(node, -1):
            places = holders.setdefault((key, value), {})
            places.setdefault(node, set()).add((offset, index))
            at[key, offset].add(value)
    agreed = {}
    for (key, value), places in holders.items():
        stored_at = set().union(*places.values())
        offset, index = min(stored_at)
        # Log Matching: every node that has committed up to this index must hold it, there only.
        must_hold = {node for node, up_to in context.committed.items() if up_to >= index}
        is_sound = key not in damaged_keys and set(places) == must_hold and len(stored_at) == 1
        if is_sound and at[key, offset] == {value}:
            agreed[key, value] = (offset, min(places), index)
    return agreed


def _complete(rows: pa.Table, context: CheckContext) -> frozenset[_Key]:
    """Return the keys that all nodes hold alike, from offset 0 to the end, committed or not."""
    if not set(context.nodes) <= set(context.committed) or not rows.num_rows:
        return frozenset()
    key, names = _number_keys(rows["key"])
    offset, value = _filled_ints(rows["offset"]), _filled_ints(rows["value"])
    counts, parts = [], []
    for node in context.nodes:
        mine = np.flatnonzero(np.asarray(pc.equal(rows["node"], node).to_numpy(), np.bool_))
        mine = mine[np.lexsort((offset[mine], key[mine]))]
        counts.append(np.bincount(key[mine], minlength=len(names)))
        parts.append(mine)
    # Compare entry by entry the keys of which all nodes hold equally many.
    fits = (np.array(counts) == counts[0]).all(axis=0) & (counts[0] > 0)
    parts = [mine[fits[key[mine]]] for mine in parts]
    first = parts[0]
    starts = np.cumsum(np.bincount(key[first], minlength=len(names))) - np.bincount(
        key[first], minlength=len(names)
    )
    # Sorted by offset, the n-th entry of a key without gaps has offset n.
    is_wrong = offset[first] != np.arange(len(first)) - starts[key[first]]
    for mine in parts[1:]:
        is_wrong |= (offset[mine] != offset[first]) | (value[mine] != value[first])
    fits[key[first[is_wrong]]] = False
    return frozenset(name for name, holds in zip(names, fits.tolist(), strict=True) if holds)


def _number_keys(column: pa.ChunkedArray) -> tuple[_Ints, list[_Key]]:
    """Number the keys; return each row's number, and the keys."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    number = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return number, codes.dictionary.to_pylist()


def _filled_ints(column: pa.ChunkedArray) -> _Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)
