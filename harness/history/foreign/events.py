"""Pair the events of a history into operations, whatever text they were written in. Pure.

Events may lack what Jepsen's have:

- f: a list of micro-operations is a transaction ("txn").
- process: then no event may have one. A completion is paired with the open operation of the same f
  that it can be the answer of; it is refused if several could be meant. Each operation is then a
  client of its own: who did it is not known.

Source: jepsen.history (pair-index); elle-cli, for histories without :process or :f; CHECKERS.md
section 5.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from shaketable.harness.history.foreign.columns import (
    ANSWERED_ALONE,
    OUTCOMES,
    READS,
    TRANSACTION,
    Columns,
    Pairing,
    is_transaction,
    key_text,
    show,
    split_key,
    with_all_reads,
)
from shaketable.harness.history.foreign.edn import Keyword
from shaketable.harness.history.foreign.history import Faults, FaultSpan
from shaketable.harness.history.schema import NEMESIS_PROCESS

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
