"""Collect operations column by column, and pair the events of a foreign history. Pure.

A pair is an invoke and the next completion of its process. An invoke without one stays open: its
outcome is unknown. So does one whose process invokes again (old recordings continue under the same
number after a timeout that they do not write). A process that ended in `info` may continue under a
new number or its old one.

Events may lack what Jepsen's have:

- f: a list of micro-operations is a transaction ("txn").
- process: then no event may have one. A completion is paired with the open operation of the same f
  that it can be the answer of; it is refused if several could be meant. Each operation is then a
  client of its own: who did it is not known.

Source: jepsen.history (pair-index); elle-cli, for histories without :process or :f; CHECKERS.md
section 5.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.history.foreign.edn import Keyword
from shaketable.harness.history.foreign.history import Faults, FaultSpan
from shaketable.harness.history.schema import NEMESIS_PROCESS, OPERATIONS, TRANSACTION
from shaketable.harness.untrusted_text import printable

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
TIME_NS_MAX: Final = 2**62
"""Bound of times, so that the difference of any two fits in 64 bits. It is 146 years."""
NO_RETURN: Final = INT64_MIN
"""The value in `return_ns` of an operation without a return."""

NAMED_FROM: Final = 1_000_000
"""Processes with names instead of numbers are numbered from here."""

NAMES_SHOWN_MAX: Final = 6
"""Names of processes that a note lists with their numbers."""

OUTCOMES: Final = ("ok", "fail", "info")


def require_bits(what: str, number: Any) -> int:
    """Return an integer that fits in a column.

    Raises:
        ValueError: it has more than 64 bits.
    """
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{what} of more than 64 bits: {show(number)}")
    return int(number)


def require_time(time_ns: int) -> int:
    """Return a time that fits in a column, as does the difference of two of them.

    Raises:
        ValueError: it exceeds TIME_NS_MAX.
    """
    if not -TIME_NS_MAX <= time_ns <= TIME_NS_MAX:
        raise ValueError(f"a time in ns of 64 bits or more: {show(time_ns)}")
    return time_ns


class Columns:
    """Operations being collected, column by column."""

    def __init__(self) -> None:
        self.op = array("q")
        self.process = array("q")
        self.f: list[str] = []
        self.key: list[str | None] = []
        self.input: list[int | None] = []
        self.expected: list[int | None] = []
        self.output: list[int | None] = []
        self.offset: list[int | None] = []
        self.call_ns = array("q")
        self.return_ns = array("q")
        self.outcome: list[str] = []
        self.error: list[str | None] = []
        self.node: list[str | None] = []
        self._extra: dict[int, dict[str, Any]] = {}
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.op)

    def call(self, op: int, process: int, f: str, key: str | None, call_ns: int) -> int:
        """Add an operation that was called and has not returned; return its row.

        Raises:
            ValueError: a number has more than 64 bits; no row is added.
        """
        require_bits("an id", op)
        require_time(call_ns)
        self.op.append(op)
        self.process.append(process)
        self.f.append(f)
        self.key.append(key)
        self.call_ns.append(call_ns)
        self.return_ns.append(NO_RETURN)
        self.outcome.append("info")
        for column in (self.input, self.expected, self.output, self.offset):
            column.append(None)
        self.error.append(None)
        self.node.append(None)
        return len(self.op) - 1

    def put(self, row: int, name: str, value: Any) -> None:
        """Set input, expected, output or offset: an integer in its column, anything else in extra.

        Raises:
            ValueError: an offset is not an integer.
        """
        if value is None:
            return
        if value.__class__ is int and INT64_MIN <= value <= INT64_MAX:
            getattr(self, name)[row] = value
        elif name == "offset":
            raise ValueError(f"an offset is a whole number, not {show(value)}")
        else:
            self._extra.setdefault(row, {})[name] = plain(value)

    def add_extra(self, row: int, extra: Any) -> None:
        """Add a recording's own extra: an object, or its JSON text."""
        if isinstance(extra, str):
            extra = msgspec.json.decode(extra)
        if isinstance(extra, dict):
            self._extra.setdefault(row, {}).update(extra)

    def finish(self, row: int, outcome: str, return_ns: int) -> None:
        """Set an operation's outcome.

        Raises:
            ValueError: the time has more than 64 bits.
        """
        if outcome != "info":
            require_time(return_ns)
            self.return_ns[row] = return_ns
        self.outcome[row] = outcome

    def number_of(self, process: Any) -> int:
        """Return a process as a number: its own, or one for its name.

        Raises:
            ValueError: it is neither a number of 64 bits nor a name.
        """
        if process.__class__ is int:
            return require_bits("a process", process)
        if isinstance(process, str) and process:
            return self._names.setdefault(process, NAMED_FROM + len(self._names))
        raise ValueError(f"a process is a number or a name, not {show(process)}")

    def renumber(self) -> tuple[str, ...]:
        """Assign new ids if operations share one; return notes about it."""
        ordered = np.sort(np.asarray(self.op, dtype=np.int64))  # np.unique imports numpy.ma
        twice = int((ordered[1:] == ordered[:-1]).sum())
        if not twice:
            return ()
        self.op = array("q", range(len(self.op)))
        return (
            f"{twice} operations bear the id of another one: all are numbered anew, in the order"
            " of their lines",
        )

    def name_notes(self) -> tuple[str, ...]:
        """Return a note on the numbers of processes that have names."""
        if not self._names:
            return ()
        shown = [f"{show(name)} is {n}" for name, n in list(self._names.items())[:NAMES_SHOWN_MAX]]
        more = len(self._names) - len(shown)
        rest = f", and {more} more" if more else ""
        return (f"clients that bear names are numbered: {', '.join(shown)}{rest}",)

    def table(self) -> pa.Table:
        """Return OPERATIONS, by (key, call_ns)."""
        extra: list[str | None] = [None] * len(self.op)
        for row, what in self._extra.items():
            extra[row] = msgspec.json.encode(what).decode()
        returns = pa.array(self.return_ns, pa.int64())
        columns: dict[str, Any] = {name: getattr(self, name) for name in OPERATIONS.names[:-1]}
        columns["return_ns"] = pc.if_else(pc.equal(returns, NO_RETURN), None, returns)
        columns["extra"] = extra
        table = pa.table(
            [pa.array(columns[field.name], field.type) for field in OPERATIONS], schema=OPERATIONS
        )
        order = [("key", "ascending"), ("call_ns", "ascending"), ("op", "ascending")]
        return table.sort_by(order)


class Pairing:
    """Converts events, one after another, to operations.

    `unit` is what messages count positions in: "line" or "event".
    """

    def __init__(self, unit: str) -> None:
        self.columns = Columns()
        self.unit = unit
        self._open: dict[int, tuple[int, Any]] = {}  # process -> row and value of its open invoke
        self._lone = 0
        self._first_lone = ""
        self._again = 0

    def invoke(
        self, op: int, process: int, f: str, key: str | None, value: Any, time_ns: int
    ) -> None:
        """Add an invoke.

        Raises:
            ValueError: its value does not fit its f.
        """
        by_column = is_columns(value)
        # before the row is added: a refused event must leave none
        called = InvokeValue() if by_column else parse_invoke(f, value)
        self._again += process in self._open
        row = self.columns.call(op, process, f, key, time_ns)
        self._open[process] = (row, value)
        if by_column:
            self._put_columns(row, value)
            return
        self.columns.put(row, "input", called.input)
        self.columns.put(row, "expected", called.expected)

    def complete(
        self, kind: str, process: int, f: str, value: Any, time_ns: int, place: int
    ) -> int | None:
        """Add an ok, fail or info; return the row of its operation, None if it has none.

        Raises:
            ValueError: it returned before it was called, or its value does not fit its f.
        """
        opened = self._open.get(process)
        if opened is None or self.columns.f[opened[0]] != f:
            self._lone += 1
            where = f"{self.unit} {place}: the {kind} of {f} by process {process}"
            self._first_lone = self._first_lone or where
            return None
        row, call = opened
        if time_ns < self.columns.call_ns[row]:
            raise ValueError(f"{f} by process {process} returned before it was called")
        if kind == "ok" and is_columns(value):
            self._put_columns(row, value)
        elif kind == "ok":
            self.columns.put(row, "output", ok_output(f, call, value))
        elif isinstance(value, Keyword):
            self.columns.error[row] = str(value)
        del self._open[process]
        self.columns.finish(row, kind, time_ns)
        return row

    def f_of(self, process: int) -> str | None:
        """Return the f of the open operation of a process."""
        opened = self._open.get(process)
        return None if opened is None else self.columns.f[opened[0]]

    def key_of(self, process: int) -> str | None:
        """Return the key of the open operation of a process."""
        opened = self._open.get(process)
        return None if opened is None else self.columns.key[opened[0]]

    @property
    def problem(self) -> str | None:
        """What shows that events are missing; None if nothing does."""
        if not self._lone:
            return None
        more = f" ({self._lone - 1} more like it)" if self._lone > 1 else ""
        return f"{self._first_lone} has no invoke before it{more}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader about the pairs."""
        if not self._again:
            return ()
        return (
            f"{self._again} operations have no end though their process went on: their outcome"
            " is taken as unknown",
        )

    def _put_columns(self, row: int, value: dict[str, Any]) -> None:
        for name in sorted(value.keys() & COLUMNS):
            if name == "extra":
                self.columns.add_extra(row, value[name])
            else:
                self.columns.put(row, name, value[name])


# The meaning of an event's value: Jepsen has one value where OPERATIONS has four columns. Pure.
#
# By the operation's name f:
#
# - cas: `[old new]` is `expected` and `input`; an ok completion has `output` 1 ("yes"), unless its
#   value is false or 0: "no".
# - read, get, dequeue, poll, pop, peek and those of a deque's ends: the completion's value is
#   `output`; the invoke's is ignored (older recordings repeat the answer there).
# - contains, count: the invoke's value is `input`, the completion's `output`, equal or not.
# - a transaction, a list of micro-operations [f key value]: the invoke's value is `input`, the
#   completion's is `output`, equal or not: one that only writes answers what it was asked.
# - any other: the invoke's value is `input`; the completion's is `output` if it differs.
#
# `fail` means that the operation did not happen, for cas too. The published histories of knossos
# settle that: if a failed cas meant "the value was another", two of them that are known to be
# valid would be invalid. A client that knows that the answer was "no" records ok with output 0.
#
# Source: jepsen.history; knossos.history/complete; the verdicts that come with knossos' data.

CAS: Final = frozenset(("cas", "compare-and-set", "compare_and_set"))
ANSWERED_ALONE: Final = frozenset(
    ("read", "get", "dequeue", "poll", "peek", "pop", "pop-front", "pop-back", "peek-front",
     "peek-back")
)  # fmt: skip
ANSWERED_ALWAYS: Final = frozenset(("contains", "count"))
COLUMNS: Final = frozenset(("input", "output", "offset", "expected", "extra"))
"""A JSON object with only these names is read column by column."""

READS: Final = frozenset(("r", "read"))
"""Micro-operations that read."""

YES: Final = 1
NO: Final = 0


class InvokeValue(NamedTuple):
    """The value of an invoke, by column."""

    input: Any = None
    expected: Any = None
    offset: Any = None


def parse_invoke(f: str, value: Any) -> InvokeValue:
    """Split the value of an invoke into columns.

    Raises:
        ValueError: the value of a cas is not a pair.
    """
    if f in ANSWERED_ALONE:
        return InvokeValue()
    if f in CAS:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"the value of a {f} is [old new], not {show(value)}")
        return InvokeValue(value[1], value[0])
    return InvokeValue(value)


def ok_output(f: str, call: Any, value: Any) -> Any:
    """Return the output of an ok completion whose invoke had the value `call`."""
    if f in ANSWERED_ALONE or f in ANSWERED_ALWAYS:
        return value
    if f in CAS:
        return NO if value == 0 else YES  # False equals 0, and no pair does
    if f == TRANSACTION or is_transaction(value):
        return value
    # True equals 1 in Python: it is the answer to the call of 1, not its repetition.
    is_same = value == call and isinstance(value, bool) == isinstance(call, bool)
    return None if is_same else value


def is_columns(value: Any) -> bool:
    """Return whether a JSON value is an object of column names."""
    return isinstance(value, dict) and value.keys() <= COLUMNS


def is_transaction(value: Any) -> bool:
    """Return whether a value is a list of micro-operations, each [f key value], f a name."""
    return (
        isinstance(value, (tuple, list)) and len(value) > 0 and all(map(_is_micro_operation, value))
    )


def _is_micro_operation(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or not value or not isinstance(value[0], str):
        return False
    return len(value) == 3 or (len(value) == 2 and value[0] in READS)


def with_all_reads(value: Any) -> Any:
    """Return a transaction in which reads without a value, [r key], have the value nil."""
    if not is_transaction(value) or all(len(each) == 3 for each in value):
        return value
    return [each if len(each) == 3 else [*each, None] for each in value]


def split_key(value: Any) -> tuple[str, Any] | None:
    """Split the tuple [key value] of Jepsen's independent keys; None if it is not one."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return None
    key = value[0]
    if key is None or isinstance(key, (dict, list, tuple, frozenset)):
        return None
    return key_text(key), value[1]


def key_text(key: Any) -> str:
    """Return a key as stored in the OPERATIONS column."""
    return str(key) if isinstance(key, (str, int)) else show(key)


def plain(value: Any) -> Any:
    """Return a value as JSON: sets become sorted lists, keys become text."""
    if isinstance(value, Keyword):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((plain(item) for item in value), key=_sort_key)
    if isinstance(value, Mapping):
        return {key_text(key): plain(item) for key, item in value.items()}
    if value.__class__ is float and not math.isfinite(value):
        return str(value)  # JSON has no literal for it
    return value


def _sort_key(item: Any) -> tuple[str, Any]:
    """Return a sort key for members of a set of mixed types."""
    if isinstance(item, (list, dict)):
        return (str(type(item)), msgspec.json.encode(item, order="deterministic"))
    return (str(type(item)), 0 if item is None else item)


def show(value: Any) -> str:
    """Format a value for a message, truncated if long."""
    text = "nil" if value is None else printable(str(plain(value)))
    return text if len(text) <= 60 else text[:59] + "…"


# Events of a history, whatever text they were written in.

NEMESIS: Final = "nemesis"
INVOKE: Final = "invoke"
NO_EVENT: Final = "no event (it needs :process, :type and :f)"
OPEN_COMPARED_MAX: Final = 10_000
"""Open operations that the answer of an event without a process is compared with."""
PAIRS_HINT: Final = (
    "every value is a pair [key value]: if these are independent keys, say --partition-by key"
)
WITHOUT_PROCESS: Final = (
    "the events name no process: each operation is taken as a client's of its own, so orders inside"
    " sessions are not judged"
)


class Event(NamedTuple):
    """One event; `f` and `process` are None where it lacks them."""

    kind: Any
    process: Any
    f: Any
    value: Any
    key: str | int | None
    time_ns: int
    op: int


class EventPairs:
    """Takes events in the order of their text; `unit` is what messages count places in."""

    def __init__(self, unit: str, *, splits_keys: bool) -> None:
        self.pairing = Pairing(unit)
        self.faults = Faults()
        self.splits_keys = splits_keys
        self.invokes = 0
        self.pairs = 0
        self.plain_answers = 0
        self._has_process: bool | None = None
        self._unnamed: dict[int, tuple[str, Any]] = {}  # client -> f and value of its open call
        self._clients = 0
        self._split: set[int] = set()  # processes whose open call had its key in its value

    @property
    def columns(self) -> Columns:
        """The operations so far."""
        return self.pairing.columns

    @property
    def all_are_pairs(self) -> bool:
        """Whether all calls and answers so far have values [key value]."""
        return 0 < self.invokes == self.pairs and not self.plain_answers

    def add(self, event: Event, place: int) -> int | None:
        """Add an event; return the row of the operation that it completes, if any.

        Raises:
            ValueError: it is none, or its value does not fit its f.
        """
        if self._is_nemesis(event):
            if event.f is None:
                raise ValueError(NO_EVENT)
            self.faults.take(str(event.f), event.time_ns)
            return None
        if event.kind != INVOKE and event.kind not in OUTCOMES:
            raise ValueError(
                NO_EVENT if event.kind is None else f"no type of an event: {show(event.kind)}"
            )
        if isinstance(event.value, (tuple, list)):
            event = event._replace(value=with_all_reads(event.value))
        process = self._process_of(event)
        if event.f.__class__ is not str:
            event = event._replace(f=self._f_of(event, process))
        if event.kind == INVOKE:
            self._invoke(event, process)
            return None
        return self._complete(event, process, place)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what the events lack."""
        found = [*self.pairing.notes]
        if self._has_process is False and len(self.columns):
            found.append(WITHOUT_PROCESS)
        if self.all_are_pairs and not self.splits_keys:
            found.append(PAIRS_HINT)
        return tuple(found)

    def _is_nemesis(self, event: Event) -> bool:
        if event.process is None:
            # an info without a process completes a client's operation only where none has one
            return event.kind == "info" and not self._unnamed
        return event.process in (NEMESIS, NEMESIS_PROCESS)

    def _process_of(self, event: Event) -> int:
        has_process = event.process is not None
        if self._has_process is None:
            self._has_process = has_process
        if self._has_process != has_process:
            raise ValueError("some events have a process and some have none")
        if has_process:
            return self.columns.number_of(event.process)
        if event.kind == INVOKE:
            self._clients += 1
            return self._clients - 1
        return self._answered_client(event)

    def _answered_client(self, event: Event) -> int:
        """Return the client whose open operation an event without a process completes."""
        fits = [
            client
            for client, (f, value) in self._unnamed.items()
            if event.f in (None, f) and _may_answer(f, value, event)
        ]
        equal = [client for client in fits if self._unnamed[client][1] == event.value]
        if len(equal) == 1 or len(fits) == 1 or len(self._unnamed) == 1:
            return (equal or fits or list(self._unnamed))[0]
        what = "several open operations" if fits else "no open operation"
        raise ValueError(
            f"{what} may be what it completes, and it names no process: {show(event.value)}"
        )

    def _f_of(self, event: Event, process: int) -> str:
        if event.f is not None:
            return str(event.f)
        if is_transaction(event.value) or (event.value is not None and _len(event.value) == 0):
            return TRANSACTION
        if event.kind != INVOKE and self.pairing.f_of(process) == TRANSACTION:
            return TRANSACTION
        raise ValueError(NO_EVENT)

    def _invoke(self, event: Event, process: int) -> None:
        self.invokes += 1
        pair = split_key(event.value) if event.key is None else None
        self.pairs += pair is not None
        key, value = None if event.key is None else key_text(event.key), event.value
        is_split = self.splits_keys and event.key is None
        if is_split:
            if pair is None:
                raise ValueError(f"no [key value] to split by: {show(value)}")
            key, value = pair
        self.pairing.invoke(event.op, process, event.f, key, value, event.time_ns)
        (self._split.add if is_split else self._split.discard)(process)
        if self._has_process is False:
            if len(self._unnamed) >= OPEN_COMPARED_MAX:
                raise ValueError("too many open operations of no process")
            self._unnamed[process] = (event.f, event.value)

    def _complete(self, event: Event, process: int, place: int) -> int | None:
        value = event.value
        if event.key is None and event.kind == "ok":
            value = self._answer_of(event, process)
        elif process in self._split and (pair := split_key(value)) is not None:
            value = pair[1]
        row = self.pairing.complete(event.kind, process, event.f, value, event.time_ns, place)
        if row is not None:
            self._unnamed.pop(process, None)
        return row

    def _answer_of(self, event: Event, process: int) -> Any:
        """Return the value of an ok, without its key if its call was split.

        Raises:
            ValueError: the call had a key in its value, and the answer has not that key.
        """
        if event.value is None:
            return None
        pair, is_split = split_key(event.value), process in self._split
        if pair is not None and (not is_split or pair[0] == self.pairing.key_of(process)):
            return pair[1] if is_split else event.value
        self.plain_answers += 1
        if is_split:
            key = self.pairing.key_of(process)
            raise ValueError(
                f"the call was of the key {show(key)}, and its answer is no [key value] of it:"
                f" {show(event.value)}; where pairs are plain values, leave out --partition-by key"
            )
        return event.value


def _len(value: Any) -> int | None:
    return len(value) if isinstance(value, (tuple, list)) else None


def _may_answer(f: str, called: Any, event: Event) -> bool:
    """Return whether an event may be the completion of a call of f with that value."""
    value = event.value
    if is_transaction(called) and is_transaction(value):
        return _shape(called) == _shape(value)
    if event.kind != "ok" or value is None or isinstance(value, Keyword) or f in ANSWERED_ALONE:
        return True
    return not is_transaction(called)


def _shape(txn: Any) -> list[Any]:
    """Return a transaction without what it read."""
    return [(f, key) if f in READS else (f, key, _listed(value)) for f, key, value in txn]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, list)) else value


class PairedEvents:
    """Events that come in order, paired: what readers of every notation of them share.

    Attributes:
        paired: the pairs.
        events: how many events were taken.
        is_ordered: whether they came in the order of their times.
    """

    model: str | None = None
    initial: str | None = None

    def __init__(self, unit: str, *, splits_keys: bool) -> None:
        self.paired = EventPairs(unit, splits_keys=splits_keys)
        self.is_ordered = True
        self.events = 0

    @property
    def columns(self) -> Columns:
        """The operations so far."""
        return self.paired.columns

    @property
    def problem(self) -> str | None:
        """What shows that events are missing; None if nothing does."""
        return self.paired.pairing.problem

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader."""
        return self.paired.notes

    @property
    def faults(self) -> tuple[FaultSpan, ...]:
        """What the nemesis did, in time order."""
        return self.paired.faults.spans()
