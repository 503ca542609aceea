"""Merges the events of all segments into one order, and pairs each invoke with its end. Pure.

Source: jepsen.history (pair-index); CHECKERS.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.history.segments import NEMESIS, Event

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
