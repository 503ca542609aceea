"""Finds consumers that get messages again, or out of order.

Source: jepsen.tests.kafka "nonmonotonic-poll" and "int-nonmonotonic-poll".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.consumer_steps import operations_of, step_origin, steps_of
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

NAME = "nonmonotonic-poll"
INSIDE = "int-nonmonotonic-poll"


class NonmonotonicPoll:
    """A consumer's next message lies at or before the one that it was given last."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Follow each consumer, and compare the offsets of its messages."""
        rules = (nonmonotonic_polls,)
        return check_log(rules, tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no consumer was taken back"
        return conclude_log(NAME, findings, context, clean=clean, what=("messages_polled",))


PLUGIN = NonmonotonicPoll()


def nonmonotonic_polls(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each step that does not lead forward."""
    steps = steps_of(log)
    is_back = steps.reached <= steps.left

    def describe(n: int) -> Finding:
        after = int(steps.after[n])
        message = (
            f"{read_name(log.reads, after)} was given offset {steps.reached[n]}"
            f" {step_origin(log, steps, n)}: it went back"
        )
        kind = INSIDE if steps.is_inside[n] else NAME
        more = details(context, int(log.reads.call[after]), value=log.reads.value[after])
        place = int(steps.reached[n])
        return finding(kind, log, place, operations_of(log, steps, n), message, more)

    findings.add(NAME, np.flatnonzero(is_back & ~steps.is_inside).tolist(), describe)
    findings.add(INSIDE, np.flatnonzero(is_back & steps.is_inside).tolist(), describe)
    return {"messages_polled": int(log.reads.is_poll.sum())}
