"""Checks that the ids from a generator are all different.

Source: jepsen.checker "unique-ids".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import Answers
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "unique-ids"
REPEATED: Final = "repeated-id"


class UniqueIds:
    """No generator (key) hands out an id twice."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Count how often each id of one generator was handed out.

        Raises:
            ValueError: an answer has no id.
        """
        rows = Answers(tables["operations"], ("generate",))
        done = np.flatnonzero(rows.is_ok)
        texts = rows.table["extra"].to_pylist()
        given = []
        for row in done.tolist():
            output = json.loads(texts[row]).get("output") if texts[row] else None
            if output is None and not rows.has_output[row]:
                raise ValueError(f"operation {rows.op[row]} is ok but lacks its id")
            given.append(str(int(rows.output[row])) if output is None else json.dumps(output))
        ids, number, counts = np.unique(
            np.array(given, dtype=np.str_), return_inverse=True, return_counts=True
        )
        findings = Findings()

        def describe(n: int) -> Finding:
            who = done[number == n]
            ops = rows.op[who].tolist()
            by = " and ".join(f"op {rows.op[row]} (process {rows.process[row]})" for row in who[:2])
            message = f"{rows.about}the id {ids[n]} was handed out {counts[n]} times, to {by}."
            more = details(context, int(rows.call[who[-1]]), value=str(ids[n]))
            return Finding(REPEATED, message, rows.key or None, None, tuple(ops), more)

        findings.add(REPEATED, np.flatnonzero(counts > 1).tolist(), describe)
        return findings.table({"generators": 1, "ids": len(given)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the generators' findings."""
        gathered = gather(findings)
        clean = f"all {gathered.sums().get('ids', 0)} ids are different"
        return conclude(NAME, gathered, context, clean=clean, what=("ids",))


PLUGIN = UniqueIds()
