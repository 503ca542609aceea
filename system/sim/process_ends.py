"""Whether a log knows, at a start, how the process before it ended."""

from __future__ import annotations

from shaketable.system.raft.batch import LogEnd
from shaketable.system.sim.violation import Violated
from shaketable.system.store.commit_log import CommitLog


def check_start(
    log: CommitLog, name: str, stopped_at: LogEnd | None, *, must_be_aborted: bool
) -> None:
    """See the abort marker, and that a stop in order lost nothing. Raises Violated.

    `stopped_at` is the log's end at such a stop, None where the process did not end so.
    """
    if stopped_at is not None and log.was_aborted:
        raise Violated("abort-marks-a-crash", "a stop in order is taken for a crash", name)
    if stopped_at is not None and log.end != stopped_at:
        raise Violated("stop-keeps-all", f"the log ends at {log.end}, was stopped at {stopped_at}")
    if must_be_aborted and not log.was_aborted:
        raise Violated("abort-marks-a-crash", "a crash is taken for a stop in order", name)
