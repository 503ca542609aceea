"""Finds dependency cycles of transactions over several logs.

Source: Adya 1999 (G0, G1c); Elle; jepsen.tests.kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.observations import TRANSACTION, load_log
from shaketable.checkers.cycles.cycles import check_cycles, conclude_cycles
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.schema import OPERATIONS

NAME: Final = "transaction-cycles"


class TransactionCycles:
    """Transactions of several logs stand in an order that closes no cycle.

    Needs the whole history in one partition; if every invocation is about one key, `cycles` finds
    the same, log by log.
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


# Splits transactions that were recorded whole into a row for each of their micro-operations.


def explode(operations: pa.Table) -> pa.Table:
    """Return the operations with each "txn" as rows that share its `op`; others are unchanged.

    A poll becomes a row for each key in its answer, none if it found nothing.

    Raises:
        ValueError: a transaction has not the form that `checkers.anomalies` defines.
    """
    is_whole = pc.equal(operations["f"], TRANSACTION)
    whole = operations.filter(is_whole).to_pylist()
    if not whole:
        return operations
    rows = [part for row in whole for part in _parts(row)]
    kept = operations.filter(pc.invert(is_whole)).cast(OPERATIONS)
    return pa.concat_tables([kept, pa.Table.from_pylist(rows, OPERATIONS)])


def _parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    extra = json.loads(row["extra"] or "{}")
    requested, answered = extra.get("input"), extra.get("output")
    steps = answered if row["outcome"] == "ok" else requested
    place = 0
    for step in steps if isinstance(steps, list) else [steps]:
        try:
            made = list(_micro(step, is_done=row["outcome"] == "ok"))
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            text = f"transaction {row['op']}: {json.dumps(step)} is no micro-operation"
            raise ValueError(text) from error
        for part, more in made:
            extra = json.dumps({"place": place, **more})
            yield row | {"input": None, "output": None, "offset": None} | part | {"extra": extra}
            place += 1


def _micro(step: list[Any], *, is_done: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the columns and the extra of one micro-operation's rows."""
    if step[0] == "send":
        _, key, value = step
        offset = None
        if isinstance(value, list):
            offset, value = value
        elif is_done:
            raise ValueError("the answer names no offset")
        yield {"f": "send", "key": str(key), "input": int(value), "offset": offset}, {}
    elif step[0] == "poll":
        for key, messages in (step[1] if len(step) > 1 else {}).items():
            yield {"f": "poll", "key": key}, {"output": messages}
    else:
        raise ValueError("neither send nor poll")
