"""Finds producers whose later message is stored before an earlier one.

Source: jepsen.tests.kafka "nonmonotonic-send" and "int-nonmonotonic-send".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude_log,
    details,
    finding,
    send_name,
)
from shaketable.checkers.anomalies.observations import Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "nonmonotonic-send"


class NonmonotonicSend:
    """One producer's acknowledged sends were given offsets that do not rise."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare the offsets of each process's acknowledged sends, in the order it sent them."""
        rules = (nonmonotonic_sends,)
        return check_log(rules, tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "every producer's acknowledged sends stand in the order in which it sent them"
        return conclude_log(NAME, findings, context, clean=clean, what=("sends_acknowledged",))


PLUGIN = NonmonotonicSend()


def nonmonotonic_sends(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each acknowledged send at or before the offset of the one before it.

    A value that was sent again may be answered with the offset of its first attempt: left out.
    """
    sends = log.sends
    is_single = ~np.isin(sends.value, log.repeated)
    acked = np.flatnonzero(sends.is_ok & (sends.offset >= 0) & is_single)
    before, after = acked[:-1], acked[1:]
    is_back = (sends.process[before] == sends.process[after]) & (
        sends.offset[after] <= sends.offset[before]
    )

    def describe(n: int) -> Finding:
        first, second = int(before[n]), int(after[n])
        message = f"{send_name(log, second)} came after {send_name(log, first)}"
        more = details(context, int(sends.call[second]), value=sends.value[second])
        operations = (sends.op[first], sends.op[second])
        return finding(NAME, log, int(sends.offset[second]), operations, message, more)

    findings.add(NAME, np.flatnonzero(is_back).tolist(), describe)
    return {}
