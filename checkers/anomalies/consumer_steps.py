"""Each consumer's path through a log: from every message delivered to it to the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Bools, Ints, Log


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
