"""Merges and pairs the events of segments one by one: what the export must agree with.

Source: jepsen.history (pair-index); CHECKERS.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shaketable.harness.history.schema import EVENTS, NEMESIS_PROCESS, OPERATIONS
from shaketable.harness.history.segments import NEMESIS, Event

_INVOKE = "invoke"


@dataclass(frozen=True, slots=True)
class Paired:
    """An operation: the index of its invoke in the merged order, and both its events."""

    op: int
    invoke: Event
    completion: Event | None


@dataclass(frozen=True, slots=True)
class Merged:
    """All events by time, the operations in order of their invoke.

    `problems`: one line for each kind of event that fits no pair; recorders write no
    such events, so a history that has them lacks others.
    """

    events: tuple[Event, ...]
    operations: tuple[Paired, ...]
    problems: tuple[str, ...]


def merge(recordings: Sequence[Sequence[Event]]) -> Merged:
    """Merge recordings, each in the order it was written.

    Events sort by time; at equal times invokes come first, since intervals are closed.
    Pairs are found within a recording (a process lives in one), in its own order, so
    that equal times can never join the wrong events. An invoke without an end stays
    open; so does one whose process invokes again.
    """
    rows = sorted(
        (event.time_ns, event.type != _INVOKE, number, place)
        for number, recording in enumerate(recordings)
        for place, event in enumerate(recording)
    )
    index_of = [[0] * len(recording) for recording in recordings]
    for index, (_, _, number, place) in enumerate(rows):
        index_of[number][place] = index
    operations: list[Paired] = []
    orphans = reinvoked = 0
    for recording, indexes in zip(recordings, index_of, strict=True):
        lone, again = _pair(recording, indexes, operations)
        orphans += lone
        reinvoked += again
    problems = [f"{orphans} completions have no invoke"] if orphans else []
    if reinvoked:
        problems.append(f"{reinvoked} operations have no end, though their process went on")
    return Merged(
        events=tuple(recordings[number][place] for _, _, number, place in rows),
        operations=tuple(sorted(operations, key=lambda operation: operation.op)),
        problems=tuple(problems),
    )


def _pair(
    recording: Sequence[Event], indexes: Sequence[int], operations: list[Paired]
) -> tuple[int, int]:
    """Append the recording's operations; count lone completions and repeated invokes."""
    pending: dict[int, int] = {}  # process -> place of its open invoke
    orphans = reinvoked = 0
    for place, event in enumerate(recording):
        if event.process == NEMESIS:
            continue
        began = pending.pop(event.process, None)
        if event.type == _INVOKE:
            pending[event.process] = place
            if began is not None:
                reinvoked += 1
                operations.append(Paired(indexes[began], recording[began], None))
        elif began is None:
            orphans += 1
        else:
            operations.append(Paired(indexes[began], recording[began], event))
    operations += [Paired(indexes[place], recording[place], None) for place in pending.values()]
    return orphans, reinvoked


def events_table(events: Sequence[Event], values: Sequence[str | None]) -> pa.Table:
    columns: dict[str, Sequence[Any]] = {
        "index": list(range(len(events))),
        "time_ns": [event.time_ns for event in events],
        "process": [event.process for event in events],
        "type": [event.type for event in events],
        "f": [event.f for event in events],
        "key": [event.key for event in events],
        "value": values,
        "error": [event.error for event in events],
        "node": [event.node for event in events],
    }
    return pa.table(columns, schema=EVENTS)


def value_json(event: Event) -> str | None:
    """Return the event's value as JSON: the nemesis' own, else the columns that are set."""
    if event.process == NEMESIS_PROCESS:
        return event.extra
    parts = [
        f'"{name}":{value}'
        for name, value in (
            ("input", event.input),
            ("output", event.output),
            ("offset", event.offset),
            ("expected", event.expected),
            ("extra", event.extra),
        )
        if value is not None
    ]
    return "{" + ",".join(parts) + "}"


def operations_table(operations: Sequence[Paired]) -> pa.Table:
    ordered = sorted(operations, key=lambda o: (o.invoke.key or "", o.invoke.time_ns, o.op))
    ends = [operation.completion for operation in ordered]
    outcomes = [end.type if end else "info" for end in ends]
    columns: dict[str, list[Any]] = {
        "op": [operation.op for operation in ordered],
        "process": [operation.invoke.process for operation in ordered],
        "f": [operation.invoke.f for operation in ordered],
        "key": [operation.invoke.key for operation in ordered],
        "input": [operation.invoke.input for operation in ordered],
        "expected": [operation.invoke.expected for operation in ordered],
        "output": [end.output if end else None for end in ends],
        "offset": [_offset(operation) for operation in ordered],
        "call_ns": [operation.invoke.time_ns for operation in ordered],
        "return_ns": [
            end.time_ns if end and outcome != "info" else None
            for end, outcome in zip(ends, outcomes, strict=True)
        ],
        "outcome": outcomes,
        "error": [end.error if end else None for end in ends],
        "node": [end.node if end else None for end in ends],
        "extra": [
            (end.extra if end else None) or o.invoke.extra
            for o, end in zip(ordered, ends, strict=True)
        ],
    }
    return pa.table(columns, schema=OPERATIONS)


def _offset(operation: Paired) -> int | None:
    end = operation.completion
    if end is not None and end.offset is not None:
        return end.offset
    return operation.invoke.offset
