"""Finds consumers that get messages with others left out between them.

Source: jepsen.tests.kafka "poll-skip" and "int-poll-skip".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.consumer_steps import (
    known_offsets,
    operations_of,
    step_origin,
    steps_of,
)
from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude_log,
    details,
    finding,
    read_name,
)
from shaketable.checkers.anomalies.observations import Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "poll-skip"
INSIDE = "int-poll-skip"


class PollSkip:
    """A consumer's next message lies behind others that stand in the log."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Follow each consumer, and count the known offsets between its messages."""
        return check_log((poll_skips,), tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no consumer skipped a message"
        return conclude_log(NAME, findings, context, clean=clean, what=("messages_polled",))


PLUGIN = PollSkip()


def poll_skips(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each step over offsets that hold a message."""
    steps = steps_of(log)
    known = known_offsets(log)
    low = np.searchsorted(known, steps.left, side="right")
    high = np.searchsorted(known, steps.reached, side="left")
    is_skip = high > low

    def describe(n: int) -> Finding:
        after = int(steps.after[n])
        skipped = known[low[n] : high[n]].tolist()
        what = f"offset {skipped[0]}" if len(skipped) == 1 else (
            f"{len(skipped)} offsets from {skipped[0]} to {skipped[-1]}"
        )  # fmt: skip
        message = (
            f"{read_name(log.reads, after)} was given offset {steps.reached[n]}"
            f" {step_origin(log, steps, n)}: it skipped {what}"
        )
        kind = INSIDE if steps.is_inside[n] else NAME
        more = details(context, int(log.reads.call[after]), skipped=len(skipped))
        return finding(kind, log, skipped[0], operations_of(log, steps, n), message, more)

    findings.add(NAME, np.flatnonzero(is_skip & ~steps.is_inside).tolist(), describe)
    findings.add(INSIDE, np.flatnonzero(is_skip & steps.is_inside).tolist(), describe)
    return {"messages_polled": int(log.reads.is_poll.sum())}
