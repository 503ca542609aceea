"""Cycles in the dependencies of transactions over several logs.

Source: Adya 1999 (G0, G1c); Elle; jepsen.tests.kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.cycles import check_cycles, conclude_cycles
from shaketable.checkers.anomalies.micro_operations import explode
from shaketable.checkers.anomalies.observations import load_log
from shaketable.harness.plugins import CheckContext
from shaketable.harness.verdict import Verdict

NAME: Final = "transaction-cycles"


class TransactionCycles:
    """Transactions of several logs stand in an order that closes no circle.

    Needs the whole history in one partition; where every invocation is about one key, `cycles`
    finds the same, log by log.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Search the dependency graph of all logs together."""
        operations = explode(tables["operations"])
        keys = sorted(pc.unique(operations["key"].drop_null()).to_pylist())
        logs = [load_log(operations.filter(pc.equal(operations["key"], key))) for key in keys]
        return check_cycles(logs, context)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Conclude from the one partition's findings."""
        return conclude_cycles(NAME, findings, context)


PLUGIN = TransactionCycles()
