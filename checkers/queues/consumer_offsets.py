"""A consumer group's offset is what was committed last, and never what was not committed.

Source: RocketMQ's ConsumerOffsetManager for what is stored. The rules are those of a register with
repeated values (Gibbons & Korach 1997), limited to what is certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import (
    COMMITTING,
    NEVER,
    NOWHERE,
    UNANSWERED,
    Answers,
    Bools,
    Ints,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import quiet_since
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "consumer-offsets"
BACK, AHEAD = "offset-went-back", "offset-ran-ahead"
LOST, NEVER_COMMITTED = "offset-lost", "never-committed"


class ConsumerOffsets:
    """A fetched consumer offset is the last one that the group committed.

    Judges each group and queue (the key) by itself. A group may commit an older offset on
    purpose; that is no anomaly. It is one if a fetch returns an offset that a later acknowledged
    commit had certainly replaced: if it is lower, messages are delivered again; if it is higher,
    messages are skipped. One-way commits may be lost, but not all that nothing interfered with.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one group's commits and fetches of one queue."""
        rows = Answers(tables["operations"], (*COMMITTING, "fetch"))
        is_commit = rows.is_(*COMMITTING)
        rows.require_inputs(is_commit)
        commits = np.flatnonzero(is_commit & ~rows.is_failed)
        fetches = np.flatnonzero(rows.is_("fetch") & rows.is_ok)
        closed = _closed(rows, commits, fetches)
        witness = _certain_before(rows, commits, closed, fetches)
        writer, over_ns = _last_writer(rows, commits, closed, fetches)
        has_value = rows.has_output[fetches]
        is_never = has_value & (writer == NOWHERE)
        later = np.append(rows.call, -NEVER)[witness]
        is_stale = has_value & ~is_never & (later > over_ns)
        # An offset that another fetch returned counts too, if no commit is known to be in effect.
        seen = _seen_before(rows, fetches)
        by_fetch = ~is_stale & ~is_never & (np.append(rows.call, -NEVER)[seen] > over_ns)
        by_fetch |= ~has_value & (witness == NOWHERE)
        witness = np.where(by_fetch & (seen != NOWHERE), seen, witness)
        is_known = witness != NOWHERE
        is_stale |= has_value & by_fetch
        held = np.where(rows.is_("fetch"), rows.output, rows.input)
        is_lower = np.append(held, 0)[witness] > rows.output[fetches]
        findings = Findings()

        def describe(n: int) -> Finding:
            row, other = int(fetches[n]), int(witness[n])
            kind = (
                NEVER_COMMITTED if is_never[n] else LOST if not has_value[n]
                else BACK if is_lower[n] else AHEAD
            )  # fmt: skip
            what = rows.output[row] if has_value[n] else "nothing"
            who = f"process {rows.process[row]} (op {rows.op[row]})"
            message = f"{rows.key}: the fetch by {who} returned {what}"
            ops = [int(rows.op[row])]
            if kind == NEVER_COMMITTED:
                message += ", which no client had committed"
            else:
                ops.append(int(rows.op[other]))
                who = f"by process {rows.process[other]} (op {rows.op[other]})"
                message += (
                    f", although the fetch {who} had returned {held[other]} before"
                    if by_fetch[n]
                    else f", although the commit of {held[other]} {who} had taken effect before"
                )
            more = details(context, int(rows.call[row]))
            return Finding(kind, f"{message}.", rows.key, None, tuple(ops), more)

        for kind, mask in (
            (BACK, is_stale & is_lower),
            (AHEAD, is_stale & ~is_lower),
            (LOST, ~has_value & is_known),
            (NEVER_COMMITTED, is_never),
        ):
            findings.add(kind, np.flatnonzero(mask).tolist(), describe)
        fates = oneway_outcomes(rows, commits, fetches, context)
        if fates.are_all_lost:
            findings.add(LOST, [0], lambda _: _never_arrive(rows, fates, context))
        counts = {"groups": 1, "commits": len(commits), "fetches": len(fetches)}
        counts["oneway"] = len(fates.arrived)
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the groups' findings."""
        gathered = gather(findings)
        clean = f"all {gathered.sums().get('fetches', 0)} fetches returned what was committed last"
        return conclude(NAME, gathered, context, clean=clean, what=("fetches",))


PLUGIN = ConsumerOffsets()


def _never_arrive(rows: Answers, fates: OnewayOutcomes, context: CheckContext) -> Finding:
    """Return the finding for one-way commits of which none took effect."""
    commit, fetch = int(fates.lost[0]), int(fates.missed_by[0])
    what = rows.output[fetch] if rows.has_output[fetch] else "nothing"
    message = (
        f"{rows.key}: the fetch by process {rows.process[fetch]} (op {rows.op[fetch]}) returned"
        f" {what}, although the one-way commit of {rows.input[commit]} by process"
        f" {rows.process[commit]} (op {rows.op[commit]}) had been sent before, and no fault was"
        f" near; so it was with all {len(fates.lost)} of these."
    )
    ops = (int(rows.op[fetch]), int(rows.op[commit]))
    return Finding(LOST, message, rows.key, None, ops, details(context, int(rows.call[fetch])))


def _closed(rows: Answers, commits: Ints, fetches: Ints) -> Ints:
    """Return by when each commit had certainly taken effect: when it returned, or was fetched.

    A commit of an offset that no other commit has was in effect when a fetch of it returned.
    """
    values, number, counts = np.unique(rows.input[commits], return_inverse=True, return_counts=True)
    seen = np.full(len(values), NEVER, dtype=np.int64)
    done = fetches[rows.has_output[fetches] & np.isin(rows.output[fetches], values)]
    np.minimum.at(seen, np.searchsorted(values, rows.output[done]), rows.end[done])
    is_seen = (counts[number] == 1) & (seen[number] >= rows.call[commits])
    end = rows.end[commits]
    closed: Ints = np.where(is_seen, np.minimum(end, seen[number]), end)
    return closed


def _certain_before(rows: Answers, commits: Ints, closed: Ints, fetches: Ints) -> Ints:
    """Return for each fetch, of the commits in effect before its call, the one called last.

    NOWHERE if there is none.
    """
    order = np.argsort(closed, kind="stable")
    ordered = commits[order]
    if not len(ordered):
        return np.full(len(fetches), NOWHERE, dtype=np.int64)
    calls = rows.call[ordered]
    greatest = np.maximum.accumulate(calls)
    is_new = np.ones(len(calls), dtype=np.bool_)
    is_new[1:] = calls[1:] > greatest[:-1]
    best = ordered[np.maximum.accumulate(np.where(is_new, np.arange(len(calls)), 0))]
    last = np.searchsorted(closed[order], rows.call[fetches], side="left") - 1
    return np.where(last >= 0, best[np.maximum(last, 0)], NOWHERE)


def _seen_before(rows: Answers, fetches: Ints) -> Ints:
    """Return for each fetch, of the earlier ones that saw another offset, the one called last.

    NOWHERE if there is none. What a fetch returned was in effect at some time after its call.
    """
    seen = np.full(len(fetches), NOWHERE, dtype=np.int64)
    saw = fetches[rows.has_output[fetches]]
    saw = saw[np.argsort(rows.end[saw], kind="stable")]
    best = other = NOWHERE  # the one called last, and the last one with another offset
    at = 0
    for n in np.argsort(rows.call[fetches], kind="stable").tolist():
        row = fetches[n]
        while at < len(saw) and rows.end[saw[at]] < rows.call[row]:
            one = saw[at]
            at += 1
            if best == NOWHERE or rows.call[one] > rows.call[best]:
                if best != NOWHERE and rows.output[one] != rows.output[best]:
                    other = best
                best = one
            elif rows.output[one] != rows.output[best] and (
                other == NOWHERE or rows.call[one] > rows.call[other]
            ):
                other = one
        is_same = best != NOWHERE and rows.has_output[row] and rows.output[best] == rows.output[row]
        seen[n] = other if is_same else best
    return seen


def _last_writer(rows: Answers, commits: Ints, closed: Ints, fetches: Ints) -> tuple[Ints, Ints]:
    """Return for each fetch a commit of its value called before it returned, or NOWHERE.

    Also return by when the last of these had certainly taken effect.
    """
    order = np.lexsort((rows.call[commits], rows.input[commits]))
    value, call, end = rows.input[commits][order], rows.call[commits][order], closed[order]
    first = np.searchsorted(value, rows.output[fetches], side="left")
    after = np.searchsorted(value, rows.output[fetches], side="right")
    writer = np.full(len(fetches), NOWHERE, dtype=np.int64)
    over = np.full(len(fetches), NEVER, dtype=np.int64)
    only = np.minimum(first, max(0, len(order) - 1))
    is_one = after - first == 1
    if is_one.any():
        fits = is_one & (call[only] <= rows.end[fetches])
        writer[fits], over[fits] = commits[order[only[fits]]], end[only[fits]]
    for n in np.flatnonzero(after - first > 1).tolist():
        may = np.flatnonzero(call[first[n] : after[n]] <= rows.end[fetches[n]]) + first[n]
        if len(may):
            writer[n] = commits[order[may[-1]]]
            over[n] = end[may].max()
    return writer, over


# Which one-way commits took effect, where nothing interfered. Pure.
#
# A one-way commit may be lost: its sender gets no answer, and a broken connection is noticed only
# by the next request. So a commit is judged only in quiet times, and never by itself: its client
# had been answered since the last disturbance, it was the last commit before a fetch, and all
# others had settled.
#
# Source: RocketMQ's RemoteBrokerOffsetStore, which commits one-way by default.

GAP_NS: Final = 250_000_000
"""After so long a one-way commit has taken effect, if nothing interferes."""
UNKNOWN_NS: Final = 10_000_000_000
"""For so long an indeterminate commit may still take effect."""
RECOVERY_NS: Final = 1_000_000_000
"""For so long after a disturbance one-way commits are not judged."""
LOST_MIN: Final = 3
"""So many must be lost, and none arrive, for a finding."""


class OnewayOutcomes(NamedTuple):
    """The judged one-way commits: rows of those that a fetch found in effect, and of the others.

    `missed_by` has for each lost one the fetch that did not find it.
    """

    arrived: Ints
    lost: Ints
    missed_by: Ints

    @property
    def are_all_lost(self) -> bool:
        """Return whether LOST_MIN or more are lost and none arrived."""
        return len(self.arrived) == 0 and len(self.lost) >= LOST_MIN


def oneway_outcomes(
    rows: Answers, commits: Ints, fetches: Ints, context: CheckContext
) -> OnewayOutcomes:
    """Return which one-way commits among `commits` took effect, as seen by `fetches`."""
    none = np.empty(0, dtype=np.int64)
    if not len(commits) or not len(fetches):
        return OnewayOutcomes(none, none, none)
    order = np.argsort(rows.call[commits], kind="stable")
    ordered = commits[order]
    call, is_oneway = rows.call[ordered], rows.is_(*UNANSWERED)[ordered]
    last = np.searchsorted(call, rows.end[fetches], side="left") - 1
    before = np.concatenate(([-NEVER], np.maximum.accumulate(_settled(rows, ordered, is_oneway))))
    commit = ordered[np.maximum(last, 0)]
    sent = rows.call[commit]
    quiet = quiet_since(context, rows.end[fetches], recovery_ns=RECOVERY_NS)
    is_clear = (last >= 0) & is_oneway[last] & (before[np.maximum(last, 0)] < sent)
    is_clear &= (sent + GAP_NS < rows.call[fetches]) & (quiet != NEVER) & (quiet <= sent)
    is_clear &= _was_answered(rows, commit, quiet, is_clear)
    found = rows.has_output[fetches] & (rows.output[fetches] == rows.input[commit])
    lost, at = np.unique(commit[is_clear & ~found], return_index=True)
    return OnewayOutcomes(np.unique(commit[is_clear & found]), lost, fetches[is_clear & ~found][at])


def _settled(rows: Answers, commits: Ints, is_oneway: Bools) -> Ints:
    """Return by when each commit has taken effect, or never will."""
    call, end = rows.call[commits], rows.end[commits]
    unknown = np.where(is_oneway, call + GAP_NS, call + UNKNOWN_NS)
    settled: Ints = np.where(end == NEVER, unknown, end)
    return settled


def _was_answered(rows: Answers, commits: Ints, since: Ints, asked: Bools) -> Bools:
    """Return whether each commit's client was answered on this queue between `since` and it."""
    found = np.zeros(len(commits), dtype=np.bool_)
    for n in np.flatnonzero(asked).tolist():
        row = commits[n]
        is_before = rows.is_ok & (rows.process == rows.process[row])
        found[n] = bool((is_before & (rows.call >= since[n]) & (rows.end < rows.call[row])).any())
    return found
