"""Read JSON lines: events (ours, or any other program's), and operations.

An event: {"process", "type", "f", "key", "value", "time_ns" (or "time"), "index", "error", "node"};
type is required, the first three unless `harness.history.foreign.columns` can
do without. If the events have times, these decide, and at equal times an invoke
comes first; otherwise the order of the lines decides. "value" is as in Jepsen, or an object of
columns: {"input": 3, "output": 4, "offset": 7, "expected": 2}.

An operation: {"process", "f", "call_ns", "return_ns", "outcome", "key", "input", "expected",
"output", "offset", "error", "node", "op"}; the first three are required. Without "return_ns" its
outcome is unknown, with it ok, unless "outcome" is fail.

Source: DESIGN.md section 3 ("Event"); harness.history.schema.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shaketable.harness.history.foreign.columns import (
    NEMESIS,
    OUTCOMES,
    Columns,
    Event,
    PairedEvents,
    key_text,
    show,
)
from shaketable.harness.history.foreign.history import FaultSpan
from shaketable.harness.history.schema import NEMESIS_PROCESS


class EventLine(msgspec.Struct, gc=False):
    """One event of a JSON-lines history."""

    type: str
    process: int | str | None = None
    f: str | None = None
    key: str | int | None = None
    value: Any = None
    time_ns: int | None = None
    time: int | None = None
    index: int | None = None
    error: Any = None
    node: str | None = None


class OperationLine(msgspec.Struct, gc=False):
    """One operation of a JSON-lines history."""

    process: int | str
    f: str
    call_ns: int
    return_ns: int | None = None
    outcome: str | None = None
    key: str | int | None = None
    input: Any = None
    expected: Any = None
    output: Any = None
    offset: int | None = None
    error: Any = None
    node: str | None = None
    op: int | None = None
    extra: Any = None


class EventReader(PairedEvents):
    """Reads events in JSON: lines, or the members of an array."""

    def __init__(self, unit: str, *, splits_keys: bool) -> None:
        super().__init__(unit, splits_keys=splits_keys)
        self.is_timed = False
        self._latest_ns = 0
        self._decode = msgspec.json.Decoder(EventLine).decode

    def take(self, line: bytes, place: int) -> None:
        """Add one event.

        Raises:
            ValueError: it is not an event, or its value is invalid.
        """
        event = self._decode(line)
        index = self.events
        self.events += 1
        given = Event(
            kind=event.type,
            process=event.process,
            f=event.f,
            value=event.value,
            key=event.key,
            time_ns=self._time(event, index),
            op=index if event.index is None else event.index,
        )
        row = self.paired.add(given, place)
        if row is not None:
            _add_details(self.columns, row, event)

    def _time(self, event: EventLine, index: int) -> int:
        time_ns = event.time_ns if event.time_ns is not None else event.time
        if index == 0:
            self.is_timed = time_ns is not None
        if (time_ns is not None) != self.is_timed:
            raise ValueError("some events have a time and some have none")
        if time_ns is None:
            return index
        self.is_ordered &= time_ns >= self._latest_ns or index == 0
        self._latest_ns = time_ns
        return time_ns


class OperationReader:
    """Reads operations in JSON: lines, or the members of an array."""

    model: str | None = None
    initial: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    is_timed = True
    is_ordered = False
    """The operations that a truncated file lacks may have been called at any time."""

    def __init__(self) -> None:
        self.columns = Columns()
        self._faults: list[FaultSpan] = []
        self.events = 0
        self._decode = msgspec.json.Decoder(OperationLine).decode

    @property
    def faults(self) -> tuple[FaultSpan, ...]:
        """What the nemesis did, in time order."""
        return tuple(sorted(self._faults, key=lambda span: span.start_ns))

    def take(self, line: bytes, place: int) -> None:
        """Add one operation.

        Raises:
            ValueError: it is not an operation.
        """
        given = self._decode(line)
        self.events += 1
        outcome = given.outcome or ("info" if given.return_ns is None else "ok")
        if outcome not in OUTCOMES:
            raise ValueError(f"no outcome of an operation: {show(given.outcome)}")
        if outcome != "info":
            if given.return_ns is None:
                raise ValueError(f"an outcome {outcome} without return_ns")
            if given.return_ns < given.call_ns:
                raise ValueError("it returned before it was called")
        if given.process in (NEMESIS, NEMESIS_PROCESS):
            self._faults.append(FaultSpan(given.f, given.call_ns, given.return_ns))
            return
        columns = self.columns
        number = columns.number_of(given.process)
        key = None if given.key is None else key_text(given.key)
        op = place - 1 if given.op is None else given.op
        row = columns.call(op, number, given.f, key, given.call_ns)
        columns.finish(row, outcome, given.return_ns or 0)
        for name in ("input", "expected", "output", "offset"):
            columns.put(row, name, getattr(given, name))
        columns.add_extra(row, given.extra)
        _add_details(columns, row, given)


def _add_details(columns: Columns, row: int, line: EventLine | OperationLine) -> None:
    if line.error is not None:
        columns.error[row] = line.error if isinstance(line.error, str) else show(line.error)
    columns.node[row] = line.node
