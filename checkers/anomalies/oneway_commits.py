"""Which commits that nobody answers took effect, where nothing was in their way. Pure.

A one-way commit may be lost: its sender is not told, and a connection that broke is found broken
by the next request. So it is looked at where all was well, and judged by many: a client had been
answered since the last disturbance, the commit was the last one before a fetch, and all the others
had settled. Source: RocketMQ's RemoteBrokerOffsetStore, which commits one-way by default.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shaketable.checkers.anomalies.answers import UNANSWERED, Answers
from shaketable.checkers.anomalies.observations import NEVER, Bools, Ints
from shaketable.checkers.anomalies.quiet_times import quiet_since
from shaketable.harness.plugins import CheckContext

GAP_NS: Final = 250_000_000
"""So long after it was sent a one-way commit has taken effect where nothing is in its way."""
UNKNOWN_NS: Final = 10_000_000_000
"""So long a commit of unknown outcome may yet take effect."""
RECOVERY_NS: Final = 1_000_000_000
"""So long after a disturbance nothing is asked of them."""
LOST_MIN: Final = 3
"""So many are lost, and none arrives, before that is called so."""


class Fates(NamedTuple):
    """Commits that were looked at: rows of those that a fetch found in effect, and of the others.

    `missed_by` has for each lost one the fetch that did not find it.
    """

    arrived: Ints
    lost: Ints
    missed_by: Ints

    @property
    def are_all_lost(self) -> bool:
        """Whether that many are lost and none arrived."""
        return len(self.arrived) == 0 and len(self.lost) >= LOST_MIN


def fates_of(rows: Answers, commits: Ints, fetches: Ints, context: CheckContext) -> Fates:
    """Return what became of the one-way commits among `commits`, as `fetches` saw it."""
    nobody = np.empty(0, dtype=np.int64)
    if not len(commits) or not len(fetches):
        return Fates(nobody, nobody, nobody)
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
    return Fates(np.unique(commit[is_clear & found]), lost, fetches[is_clear & ~found][at])


def _settled(rows: Answers, commits: Ints, is_oneway: Bools) -> Ints:
    """Return by when each commit has taken effect, or never will."""
    call, end = rows.call[commits], rows.end[commits]
    unknown = np.where(is_oneway, call + GAP_NS, call + UNKNOWN_NS)
    settled: Ints = np.where(end == NEVER, unknown, end)
    return settled


def _was_answered(rows: Answers, commits: Ints, since: Ints, asked: Bools) -> Bools:
    """Return where the commit's client was answered, of this queue, since then and before it."""
    found = np.zeros(len(commits), dtype=np.bool_)
    for n in np.flatnonzero(asked).tolist():
        row = commits[n]
        is_before = rows.is_ok & (rows.process == rows.process[row])
        found[n] = bool((is_before & (rows.call >= since[n]) & (rows.end < rows.call[row])).any())
    return found
