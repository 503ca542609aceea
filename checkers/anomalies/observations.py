"""Operations as columns: of one log, and of queues, sets, counters and group offsets.

Of a log: what was sent, what was read, where consumers moved, and each consumer's path: from every
message delivered to it to the next one.

Pure. `checkers.anomalies` defines the form of operations in the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.finding_kinds import BATCHES, DELAYS, READS, SENDS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER: Final = int(np.iinfo(np.int64).max)
"""The return of an operation whose outcome is unknown."""
NOWHERE: Final = -1
"""In a column of offsets or rows: there is none."""

PUTS: Final = SENDS | DELAYS | BATCHES
STARTS: Final = frozenset(("assign", "subscribe", "seek"))
SELECTS: Final = frozenset(("select", "view", "find", "find-unique", "peek"))
"""Reads of some messages of a log, by tags, by keys or by an id: what they return was seen, what
they do not return need not be missing."""
HANDLES: Final = frozenset(("handle", "handle-failed"))
"""Reads of messages that a consumer has handled, or sent back because its handler failed
(`checkers.queues.retried_messages`); where the consumer starts is not known."""
TRANSACTION: Final = "txn"


class _Extra(msgspec.Struct):
    output: list[tuple[int, int]] | None = None
    place: int = 0


@dataclass(frozen=True, slots=True)
class Sends:
    """Attempts to put a value, in the order of (process, op, place). `offset` may be NOWHERE.

    `is_delayed`: the message is delivered later, at an offset that no answer reports.
    """

    op: Ints
    place: Ints
    process: Ints
    value: Ints
    offset: Ints
    call: Ints
    end: Ints  # NEVER where the outcome is unknown
    is_ok: Bools
    is_failed: Bools
    is_delayed: Bools


@dataclass(frozen=True, slots=True)
class Reads:
    """Values in answers, a row for each message, in the order of (process, op, place)."""

    op: Ints
    place: Ints
    process: Ints
    value: Ints
    offset: Ints
    call: Ints
    end: Ints
    is_poll: Bools


@dataclass(frozen=True, slots=True)
class Blanks:
    """Answers without a message: the log ended at or before `offset`.

    `offset` is NOWHERE for a poll: it found nothing after that consumer's position.
    """

    op: Ints
    process: Ints
    offset: Ints
    call: Ints


@dataclass(frozen=True, slots=True)
class Starts:
    """A consumer continues elsewhere: at `offset`, NOWHERE if that is not known."""

    op: Ints
    process: Ints
    offset: Ints
    call: Ints


@dataclass(frozen=True, slots=True)
class Log:
    """One log as its clients saw it; `repeated` are values that several sends may have put.

    `verb` is what its history calls a send: send or append.
    """

    key: str
    verb: str
    sends: Sends
    reads: Reads
    blanks: Blanks
    starts: Starts
    repeated: Ints


def load_log(operations: pa.Table) -> Log:
    """Split one log's operations into columns; rows of other functions are left out.

    Raises:
        ValueError: an operation lacks what its outcome needs, or is a whole transaction.
    """
    functions = pa.array(sorted(PUTS | READS | SELECTS | HANDLES | STARTS | {TRANSACTION}))
    table = operations.filter(pc.is_in(operations["f"], functions))
    if pc.any(pc.equal(table["f"], TRANSACTION)).as_py():
        op = table.filter(pc.equal(table["f"], TRANSACTION))["op"][0]
        raise ValueError(f"operation {op} is a whole transaction: explode it first")
    columns = _Columns(table)
    sends = _sends(columns)
    return Log(
        key=(table["key"][0].as_py() or "") if table.num_rows else "",
        verb="append" if columns.is_({"append"}).any() else "send",
        sends=sends,
        reads=_reads(columns),
        blanks=_blanks(columns),
        starts=_starts(columns),
        repeated=_repeated(sends.value[~sends.is_failed]),
    )


class _Columns:
    """The columns that all parts of a `Log` are made from, in the order of (process, op, place)."""

    def __init__(self, table: pa.Table) -> None:
        extras = _extras(table["extra"])
        places = np.zeros(table.num_rows, dtype=np.int64)
        for row, extra in extras.items():
            places[row] = extra.place
        order = np.lexsort((places, whole_numbers(table["op"]), whole_numbers(table["process"])))
        self._table = table = table.drop_columns(["extra", "error", "node"]).take(pa.array(order))
        self.place = places[order]
        self.process, self.op = whole_numbers(table["process"]), whole_numbers(table["op"])
        self.is_ok = _equal(table["outcome"], "ok")
        self.is_failed = _equal(table["outcome"], "fail")
        self.call = whole_numbers(table["call_ns"])
        self.end = np.where(self.is_ok, whole_numbers(table["return_ns"]), NEVER)
        self.input, self.output = whole_numbers(table["input"]), whole_numbers(table["output"])
        self.has_output, self.has_offset = is_valid(table["output"]), is_valid(table["offset"])
        is_batch = self.is_(BATCHES)
        self.count = np.where(is_batch, whole_numbers(table["expected"]), 1)
        self.offset = np.where(self.has_offset, whole_numbers(table["offset"]), NOWHERE)
        self.messages: dict[int, list[tuple[int, int]]] = {}
        if extras:
            at = np.empty_like(order)
            at[order] = np.arange(len(order))
            for row, extra in extras.items():
                if extra.output is not None:
                    self.messages[int(at[row])] = extra.output
        lacks = self.is_ok & ~is_valid(table["return_ns"])
        lacks |= self.is_(PUTS) & ~is_valid(table["input"])
        lacks |= self.is_ok & self.is_({"read"}) & ~self.has_offset
        lacks |= self.is_ok & self.is_({"poll"}) & self.has_output & ~self.has_offset
        self.require(~lacks, "lacks its offset, value or return")

    def is_(self, functions: Iterable[str]) -> Bools:
        names = pa.array(sorted(functions), pa.string())
        return np.asarray(pc.is_in(self._table["f"], names).to_numpy(), dtype=np.bool_)

    def require(self, holds: Bools, problem: str) -> None:
        if not holds.all():
            row = int(np.flatnonzero(~holds)[0])
            raise ValueError(f"operation {self.op[row]} ({self._table['f'][row]}) {problem}")


def _sends(columns: _Columns) -> Sends:
    """Return a row for each message; those of a batch have consecutive values and offsets."""
    operations = np.flatnonzero(columns.is_(PUTS))
    counts = columns.count[operations]
    rows = np.repeat(operations, counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Sends(
        columns.op[rows],
        columns.place[rows] + within,
        columns.process[rows],
        columns.input[rows] + within,
        np.where(columns.has_offset[rows], columns.offset[rows] + within, NOWHERE),
        columns.call[rows],
        columns.end[rows],
        columns.is_ok[rows],
        columns.is_failed[rows],
        columns.is_(DELAYS)[rows],
    )


def _reads(columns: _Columns) -> Reads:
    """Join the rows that have one message with those that have a list of them."""
    is_read = columns.is_(READS | SELECTS | HANDLES) & columns.is_ok
    single = np.flatnonzero(is_read & columns.has_output)
    listed = [row for row in sorted(columns.messages) if is_read[row]]
    counts = [len(columns.messages[row]) for row in listed]
    pairs = list(chain.from_iterable(columns.messages[row] for row in listed))
    flat = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    many = np.repeat(np.array(listed, dtype=np.int64), counts)
    rows = np.concatenate((single, many))
    offset = np.concatenate((columns.offset[single], flat[:, 0]))
    value = np.concatenate((columns.output[single], flat[:, 1]))
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    return Reads(
        columns.op[rows],
        columns.place[rows],
        columns.process[rows],
        value[order],
        offset[order],
        columns.call[rows],
        columns.end[rows],
        columns.is_({"poll"})[rows],
    )


def _blanks(columns: _Columns) -> Blanks:
    is_blank = columns.is_(READS) & columns.is_ok & ~columns.has_output
    for row, messages in columns.messages.items():
        is_blank[row] &= not messages
    rows = np.flatnonzero(is_blank)
    offset = np.where(columns.is_({"poll"}), NOWHERE, columns.offset)[rows]
    return Blanks(columns.op[rows], columns.process[rows], offset, columns.call[rows])


def _starts(columns: _Columns) -> Starts:
    rows = np.flatnonzero(columns.is_(STARTS) & ~columns.is_failed)
    return Starts(columns.op[rows], columns.process[rows], columns.offset[rows], columns.call[rows])


def _repeated(values: Ints) -> Ints:
    distinct, counts = np.unique(values, return_counts=True)
    return np.asarray(distinct[counts > 1], dtype=np.int64)


def _extras(column: pa.ChunkedArray) -> dict[int, _Extra]:
    decoder = msgspec.json.Decoder(_Extra)
    rows = np.flatnonzero(is_valid(column))
    texts = column.drop_null().to_pylist()
    try:
        return {int(row): decoder.decode(text) for row, text in zip(rows, texts, strict=True)}
    except msgspec.MsgspecError as error:
        raise ValueError(f"extra of an operation: {error}") from error


def _equal(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.equal(column, value).to_numpy(), dtype=np.bool_)


def whole_numbers(column: pa.ChunkedArray) -> Ints:
    """Return a column of int64, 0 where it is null."""
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def is_valid(column: pa.ChunkedArray) -> Bools:
    """Return where a column is not null."""
    return np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_)


def find(sorted_values: Ints, rows: Ints, wanted: Ints) -> Ints:
    """Return for each of `wanted` the row that has it, NOWHERE if none has.

    `sorted_values` are the values of `rows`; of equal ones the first row is taken.
    """
    if not len(rows):
        return np.full(len(wanted), NOWHERE, dtype=np.int64)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(rows) - 1)
    return np.where(sorted_values[at] == wanted, rows[at], NOWHERE)


def senders(log: Log, rows: Ints, values: Ints) -> Ints:
    """Return for each value the send among `rows` that put it, or NOWHERE."""
    order = rows[np.argsort(log.sends.value[rows], kind="stable")]
    return find(log.sends.value[order], order, values)


# For the checkers of queues, sets, counters and group offsets.

UNANSWERED: Final = ("commit-oneway",)
"""One-way operations: ok means that it was sent, its outcome is unknown."""
COMMITTING: Final = ("commit", "reset", *UNANSWERED)
"""Operations that set a group's offset: a consumer's, and an operator's."""


@dataclass(frozen=True, slots=True)
class Elements:
    """The distinct elements that operations put and show, numbered.

    `values` are whole numbers, or texts of JSON where some element is none; sorted. `of_put` has
    the element of each row that puts one, `of_shown` those that the rows `shown_by` show.
    `lengths`: for every row the length of its list, -1 if its answer was no list.
    """

    values: list[int] | list[str]
    of_put: Ints
    shown_by: Ints
    of_shown: Ints
    lengths: Ints


def _numbered(elements: list[Any]) -> tuple[list[int] | list[str], Ints]:
    """Return the distinct elements, sorted, and the number of each: by value, texts of JSON else.

    Elements of other kinds than whole numbers are equal if their JSON is: 1 is not "1" or 1.0.
    """
    if all(type(each) is int and -NEVER <= each <= NEVER for each in elements):
        numbers, of = np.unique(np.array(elements, dtype=np.int64), return_inverse=True)
        return numbers.tolist(), of
    texts = [msgspec.json.encode(each, order="deterministic").decode() for each in elements]
    distinct = sorted(set(texts))
    place = {text: number for number, text in enumerate(distinct)}
    return distinct, np.array([place[text] for text in texts], dtype=np.int64)


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

    @property
    def about(self) -> str:
        """The start of a message about this object: its key, nothing if it has none."""
        return f"{self.key}: " if self.key else ""

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

    def elements(self, puts: Bools, shows: Bools) -> Elements:
        """Number the elements that rows put (their inputs) and show (their outputs, or lists).

        Raises:
            ValueError: a row puts none.
        """
        texts = self.table["extra"].to_pylist()
        put: list[Any] = []
        for row in np.flatnonzero(puts).tolist():
            given = json.loads(texts[row]) if texts[row] else {}
            if "input" not in given and not self.has_input[row]:
                raise ValueError(f"operation {self.op[row]} lacks its input")
            put.append(given["input"] if "input" in given else int(self.input[row]))
        rows: list[int] = []
        shown: list[Any] = []
        lengths = np.full(len(self.op), -1, dtype=np.int64)
        for row in np.flatnonzero(shows).tolist():
            given = json.loads(texts[row]) if texts[row] else {}
            output = given.get("output")
            if isinstance(output, list):
                lengths[row] = len(output)
            else:
                is_number = output is None and self.has_output[row]
                output = [int(self.output[row])] if is_number else [output]
                output = [] if output == [None] else output
            rows += [row] * len(output)
            shown += output
        values, number = _numbered([*put, *shown])
        return Elements(
            values, number[: len(put)], np.array(rows, np.int64), number[len(put) :], lengths
        )

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


# Each consumer's path through a log.


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of consumers, in the order in which they took them.

    `before` and `after` are rows of the reads; `before` is NOWHERE for a step from an offset that
    the consumer assigned (`start` is that row of the starts, else NOWHERE). `left` is the last
    offset before the step, `reached` the one after it. `is_inside`: within one answer.
    """

    before: Ints
    after: Ints
    start: Ints
    left: Ints
    reached: Ints
    is_inside: Bools


def steps_of(log: Log) -> Steps:
    """Follow each process's polls; a start elsewhere ends one path and begins another."""
    reads, starts = log.reads, log.starts
    polls = np.flatnonzero(reads.is_poll)
    size, more = len(polls), len(starts.op)
    # Both kinds of events in one order: those of a process by their operation.
    process = np.concatenate((reads.process[polls], starts.process))
    op = np.concatenate((reads.op[polls], starts.op))
    kind = np.concatenate((np.ones(size, np.int64), np.zeros(more, np.int64)))
    row = np.concatenate((polls, np.arange(more)))
    # A consumer that starts at an offset has consumed up to the one before it.
    unknown = starts.offset == NOWHERE
    at = np.concatenate((reads.offset[polls], starts.offset - 1))
    is_lost = np.concatenate((np.zeros(size, np.bool_), unknown))
    order = np.lexsort((np.arange(size + more), kind, op, process))
    process, op, kind = process[order], op[order], kind[order]
    row, at, is_lost = row[order], at[order], is_lost[order]
    is_step = (kind[1:] == 1) & (process[1:] == process[:-1]) & ~is_lost[:-1]
    ends = np.flatnonzero(is_step) + 1
    origins = ends - 1
    from_start = kind[origins] == 0
    return Steps(
        before=np.where(from_start, NOWHERE, row[origins]),
        after=row[ends],
        start=np.where(from_start, row[origins], NOWHERE),
        left=at[origins],
        reached=at[ends],
        is_inside=~from_start & (op[origins] == op[ends]),
    )


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges that consumers passed: after `left`, `reached` was delivered next.

    `read` is that row of the reads. A process that assigned no offset started before the log's
    first one.
    """

    left: Ints
    reached: Ints
    read: Ints

    def passing_reads(self, offsets: Ints) -> Ints:
        """Return for each offset a row of the reads whose consumer passed it, or NOWHERE."""
        if not len(self.left):
            return np.full(len(offsets), NOWHERE, dtype=np.int64)
        # Among the ranges that start before an offset, the one that reaches farthest covers it if
        # any does.
        order = np.argsort(self.left, kind="stable")
        farthest = running_greatest(self.reached[order])
        last = np.searchsorted(self.left[order], offsets, side="left") - 1
        widest = order[farthest[np.maximum(last, 0)]]
        is_over = (last >= 0) & (self.reached[widest] > offsets)
        return np.where(is_over, self.read[widest], NOWHERE)


def spans_of(log: Log) -> Spans:
    """Return the ranges that consumers passed, each from one delivered message to the next."""
    steps = steps_of(log)
    reads, starts = log.reads, log.starts
    polls = np.flatnonzero(reads.is_poll)  # in the order of (process, op, place)
    process, first = np.unique(reads.process[polls], return_index=True)
    first_polls = polls[first]
    order = np.lexsort((starts.op, starts.process))
    at = np.searchsorted(starts.process[order], process, side="left")
    first_start = np.append(starts.op[order], NEVER)[at]
    has_start = np.append(starts.process[order], NOWHERE)[at] == process
    first_polls = first_polls[~(has_start & (first_start < reads.op[first_polls]))]
    return Spans(
        np.concatenate((steps.left, np.full(len(first_polls), -1, dtype=np.int64))),
        np.concatenate((steps.reached, reads.offset[first_polls])),
        np.concatenate((steps.after, first_polls)),
    )


def blanks_from(log: Log) -> Ints:
    """Return for each blank the offset at which it found nothing; NEVER if that is not known.

    A poll reads after the last message of its consumer, or where the consumer started.
    """
    reads, starts, blanks = log.reads, log.starts, log.blanks
    polls = np.flatnonzero(reads.is_poll)
    positions = np.where(starts.offset == NOWHERE, NEVER, starts.offset)
    parts = ((starts.process, starts.op, positions),
             (reads.process[polls], reads.op[polls], reads.offset[polls] + 1),
             (blanks.process, blanks.op, blanks.offset))  # fmt: skip
    process, op, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    kind = np.repeat(np.arange(3), [len(part[0]) for part in parts])
    order = np.lexsort((np.arange(len(op)), kind, op, process))
    is_blank = kind[order] == 2
    # The last of a process's other events before each, where there is one.
    last = np.maximum.accumulate(np.where(is_blank, -1, np.arange(len(order))))
    is_own = (last >= 0) & (process[order][np.maximum(last, 0)] == process[order])
    after_last = np.where(is_own, place[order][np.maximum(last, 0)], 0)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(is_blank & (place[order] == NOWHERE), after_last, place[order])
    return found[len(op) - len(blanks.op) :]


def running_greatest(numbers: Ints) -> Ints:
    """Return, for each position, the position of the greatest number up to there."""
    greatest = np.maximum.accumulate(numbers)
    is_new = np.ones(len(numbers), dtype=np.bool_)
    is_new[1:] = numbers[1:] > greatest[:-1]
    return np.maximum.accumulate(np.where(is_new, np.arange(len(numbers)), 0))


def known_offsets(log: Log) -> Ints:
    """Return the offsets that certainly hold a message, sorted."""
    acked = log.sends.offset[log.sends.is_ok & (log.sends.offset >= 0)]
    return np.unique(np.concatenate((acked, log.reads.offset)))


def step_origin(log: Log, steps: Steps, n: int) -> str:
    """Describe where a step started: "after offset 3 (op 12)"."""
    if steps.before[n] != NOWHERE:
        return f"after offset {steps.left[n]} (op {log.reads.op[steps.before[n]]})"
    start = steps.start[n]
    return f"after it had started at offset {log.starts.offset[start]} (op {log.starts.op[start]})"


def operations_of(log: Log, steps: Steps, n: int) -> list[int]:
    """Return the ids of the operations between which a step was taken."""
    before, start = steps.before[n], steps.start[n]
    first = log.reads.op[before] if before != NOWHERE else log.starts.op[start]
    return [int(first), int(log.reads.op[steps.after[n]])]
