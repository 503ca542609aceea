"""A poll that waits at a queue's end is answered soon after a message arrives, and not before it.

A waiting poll has in `expected` for how many milliseconds it waits at most, and in `offset` its
place. Promptness is a promise of a healthy group: lateness is not judged while a fault was in
force, or shortly after; nor if no other operation was answered meanwhile, since then it was the
machine. To wait as long as it was asked a leader needs nothing but its clock. If it does not,
consumers ask again at once.

Source: RocketMQ's PullRequestHoldService: long polling with a notice of arriving messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.log_rules import conclude, details, finding, send_name
from shaketable.checkers.anomalies.observations import (
    NEVER,
    Answers,
    Bools,
    Ints,
    Log,
    is_valid,
    load_log,
    running_greatest,
    whole_numbers,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import answered_between, is_one_term, quiet_since
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "held-polls"
LATE: Final = "late-delivery"
EARLY: Final = "early-answer"
EARLY_NS: Final = 100_000_000
"""So much less than the time it asked for an unanswered poll may have waited: clocks differ."""
BOUND_NS: Final = 2_000_000_000
"""A waiting poll must be answered so soon after a message is there."""
OTHERS_NS: Final = 500_000_000
"""Another operation on the queue must have ended so long before the poll did: the group worked."""


class HeldPolls:
    """A long poll is answered within two seconds of a message's arrival.

    Without one it is answered when the time that it waits is over, and not before. Judges each
    queue by itself. A message is there when its send was acknowledged. The time is
    counted from then, or from the poll's call if that is later, to its answer. No fault may have
    been in force, nor some seconds before, and other operations must have been answered meanwhile.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue's polls that waited."""
        operations = tables["operations"]
        log, polls = load_log(operations), Answers(operations, ("poll",))
        findings = Findings()
        has_place = is_valid(polls.table["expected"]) & is_valid(polls.table["offset"])
        held = np.flatnonzero(polls.is_ok & has_place)
        offset = whole_numbers(polls.table["offset"])[held]
        first = _first_acknowledged(log, offset)
        known = held[first >= 0]
        send = first[first >= 0]
        ready = np.maximum(polls.call[known], log.sends.end[send])
        waited = polls.end[known] - ready
        quiet = quiet_since(context, polls.end[known])
        is_judged = (quiet != NEVER) & (quiet <= ready)
        is_late = is_judged & (waited > BOUND_NS)
        nodes = polls.table["node"].take(pa.array(known))
        is_late &= _others_were_served(operations, nodes, ready, polls.end[known] - OTHERS_NS)

        def describe(n: int) -> Finding:
            poll = int(known[n])
            place = int(log.sends.offset[send[n]])
            message = (
                f"the poll by process {polls.process[poll]} (op {polls.op[poll]}) was held for"
                f" {waited[n] / 1e9:.1f} s while {send_name(log, int(send[n]))} was there"
            )
            more = details(context, int(ready[n]), value=log.sends.value[send[n]])
            ids = (int(log.sends.op[send[n]]), int(polls.op[poll]))
            return finding(LATE, log, place, ids, message, more)

        findings.add(LATE, np.flatnonzero(is_late).tolist(), describe)
        waits = _add_early(findings, log, polls, held, context)
        counts = {"queues": 1, "held": len(held), "judged": int(is_judged.sum()) + waits}
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        judged, held = counts.get("judged", 0), counts.get("held", 0)
        clean = f"all {judged} polls that waited and can be judged were answered in time"
        nothing = (
            f"none of the {held} polls that waited can be judged: a fault, an election or a stall"
            " of the machine was near; allow more time without faults (--steady,"
            " --nemesis-interval)"
        )
        return conclude(NAME, gathered, context, clean=clean, what=("judged",), nothing=nothing)


PLUGIN = HeldPolls()


def _add_early(
    findings: Findings, log: Log, polls: Answers, held: Ints, context: CheckContext
) -> int:
    """Add the polls that got nothing before their time was over; return how many were judged.

    The poll's place must have been the queue's end: the message before it had been acknowledged or
    delivered before, and none at or after it was acknowledged until the answer.
    """
    texts = polls.table["extra"].take(pa.array(held)).to_pylist()
    got = np.array([bool(json.loads(text or "{}").get("output")) for text in texts], bool)
    rows = held[~got & ~polls.has_output[held]]
    place = whole_numbers(polls.table["offset"])[rows]
    first = _first_acknowledged(log, place)
    arrived = np.append(log.sends.end, NEVER)[first]  # NEVER where there is no such send
    is_end = arrived > polls.end[rows]
    is_end &= place <= _known_ends(log, polls.call[rows])
    times = list(zip(polls.call[rows].tolist(), polls.end[rows].tolist(), strict=True))
    waited = polls.end[rows] - polls.call[rows]
    asked = whole_numbers(polls.table["expected"])[rows] * 1_000_000
    early = np.flatnonzero(is_end & (waited < asked - EARLY_NS)).tolist()
    early = [n for n in early if is_one_term(context, *times[n])]

    def describe(n: int) -> Finding:
        poll = int(rows[n])
        message = (
            f"the poll by process {polls.process[poll]} (op {polls.op[poll]}) was answered with"
            f" nothing after {waited[n] / 1e9:.1f} s: it had asked to wait {asked[n] / 1e9:.1f} s"
            " for a message"
        )
        more = details(context, int(polls.call[poll]))
        return finding(EARLY, log, int(place[n]), (int(polls.op[poll]),), message, more)

    findings.add(EARLY, early, describe)
    return int(is_end.sum())


def _first_acknowledged(log: Log, offsets: Ints) -> Ints:
    """Return for each place the send at or above it that was acknowledged first, or -1."""
    sends = log.sends
    rows = np.flatnonzero(sends.is_ok & (sends.offset >= 0))
    rows = rows[np.argsort(sends.offset[rows], kind="stable")]
    if not len(rows):
        return np.full(len(offsets), -1, dtype=np.int64)
    # From each place on, the least end: a running maximum of negated ends, from the last one.
    ends = -sends.end[rows][::-1]
    best = rows[len(rows) - 1 - running_greatest(ends)[::-1]]
    at = np.searchsorted(sends.offset[rows], offsets, side="left")
    return np.where(at < len(rows), best[np.minimum(at, len(rows) - 1)], -1)


def _known_ends(log: Log, times: Ints) -> Ints:
    """Return the queue's end as the messages acknowledged or delivered before each time show it."""
    sends, reads = log.sends, log.reads
    is_known = sends.is_ok & (sends.offset >= 0)
    ends = np.concatenate((sends.end[is_known], reads.end))
    order = np.argsort(ends, kind="stable")
    offsets = np.concatenate((sends.offset[is_known], reads.offset))[order]
    reached = np.concatenate(([0], offsets[running_greatest(offsets)] + 1))
    found: Ints = reached[np.searchsorted(ends[order], times, side="left")]
    return found


def _others_were_served(
    operations: pa.Table, nodes: pa.ChunkedArray, start: Ints, stop: Ints
) -> Bools:
    """Return whether the node answered, by `stop`, an operation called at `start` or later.

    If either node is unknown, any node counts.
    """
    found = np.zeros(len(start), dtype=np.bool_)
    for node in pc.unique(nodes):
        of_node = operations
        if node.is_valid:
            is_there = pc.or_(pc.equal(operations["node"], node), pc.is_null(operations["node"]))
            of_node = operations.filter(is_there.fill_null(True))
        mine = np.flatnonzero([each == node.as_py() for each in nodes.to_pylist()])
        found[mine] = answered_between(of_node, start[mine], stop[mine])
    return found
