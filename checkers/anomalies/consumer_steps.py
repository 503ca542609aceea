"""Each consumer's way through a log: from every message it was given to the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.anomalies.observations import NOWHERE, Bools, Ints, Log


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of consumers, in the order in which they took them.

    `before` and `after` are rows of the reads; `before` is NOWHERE for a step that begins where
    the consumer said that it starts (`start` is that row of the starts, else NOWHERE). `left` is
    the offset that it stood behind, `reached` the next one. `is_inside`: within one answer.
    """

    before: Ints
    after: Ints
    start: Ints
    left: Ints
    reached: Ints
    is_inside: Bools


def steps_of(log: Log) -> Steps:
    """Follow each process's polls; a start elsewhere ends one way and begins another."""
    reads, starts = log.reads, log.starts
    polls = np.flatnonzero(reads.is_poll)
    size, more = len(polls), len(starts.op)
    # Both kinds of events in one order: those of a process by their operation.
    process = np.concatenate((reads.process[polls], starts.process))
    op = np.concatenate((reads.op[polls], starts.op))
    kind = np.concatenate((np.ones(size, np.int64), np.zeros(more, np.int64)))
    row = np.concatenate((polls, np.arange(more)))
    # A consumer that starts at an offset stands right behind the one before it.
    unknown = starts.offset == NOWHERE
    at = np.concatenate((reads.offset[polls], starts.offset - 1))
    is_lost = np.concatenate((np.zeros(size, np.bool_), unknown))
    order = np.lexsort((np.arange(size + more), kind, op, process))
    process, op, kind = process[order], op[order], kind[order]
    row, at, is_lost = row[order], at[order], is_lost[order]
    is_step = (kind[1:] == 1) & (process[1:] == process[:-1]) & ~is_lost[:-1]
    ends = np.flatnonzero(is_step) + 1
    begins = ends - 1
    from_start = kind[begins] == 0
    return Steps(
        before=np.where(from_start, NOWHERE, row[begins]),
        after=row[ends],
        start=np.where(from_start, row[begins], NOWHERE),
        left=at[begins],
        reached=at[ends],
        is_inside=~from_start & (op[begins] == op[ends]),
    )


def known_offsets(log: Log) -> Ints:
    """Return the offsets at which something certainly stands, sorted."""
    acked = log.sends.offset[log.sends.is_ok & (log.sends.offset >= 0)]
    return np.unique(np.concatenate((acked, log.reads.offset)))


def told_step(log: Log, steps: Steps, n: int) -> str:
    """Say where a consumer came from: "after offset 3 (op 12)"."""
    if steps.before[n] != NOWHERE:
        return f"after offset {steps.left[n]} (op {log.reads.op[steps.before[n]]})"
    start = steps.start[n]
    return f"after it had started at offset {log.starts.offset[start]} (op {log.starts.op[start]})"


def operations_of(log: Log, steps: Steps, n: int) -> list[int]:
    """Return the ids of the operations between which a step was taken."""
    before, start = steps.before[n], steps.start[n]
    first = log.reads.op[before] if before != NOWHERE else log.starts.op[start]
    return [int(first), int(log.reads.op[steps.after[n]])]
