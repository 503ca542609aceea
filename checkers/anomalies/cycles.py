"""Finds dependency cycles: offsets, reads, processes and real time that disagree.

Of one log, or of transactions over several logs.

Source: Adya 1999 (G0, G1c); Elle; jepsen.tests.kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.dependencies import (
    PROCESS,
    WR,
    WW,
    Cycle,
    Link,
    SearchResult,
    search,
)
from shaketable.checkers.anomalies.log_rules import REPEATED_SHOWN_MAX, conclude_log, details
from shaketable.checkers.anomalies.observations import TRANSACTION, Log, load_log
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.harness.history.schema import OPERATIONS

NAME: Final = "cycles"


class Cycles:
    """The sends and reads of each log can be ordered without a cycle.

    Judges each log by itself. If every invocation is about one key, that is enough: if each key's
    dependencies agree with real time, all of them together do (locality: Herlihy & Wing 1990,
    theorem 1). Transactions over several keys are judged by transaction-cycles.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Search one log's dependency graph."""
        return check_cycles([load_log(tables["operations"])], context)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        return conclude_cycles(NAME, findings, context)


def check_cycles(logs: Sequence[Log], context: CheckContext) -> pa.Table:
    """Search the dependency graph of several logs; return rows of FINDINGS."""
    searched: SearchResult = search(logs)
    findings = Findings()
    for kind in sorted({cycle.kind for cycle in searched.cycles}):
        cycles = [cycle for cycle in searched.cycles if cycle.kind == kind]

        def describe(n: int, cycles: Sequence[Cycle] = cycles) -> Finding:
            return _describe(cycles[n], logs, context)

        findings.add(kind, range(len(cycles)), describe)
    repeated = [f"{value} in {log.key}" for log in logs for value in log.repeated.tolist()]
    counts: dict[str, Any] = {
        "logs": len(logs),
        "sends_acknowledged": sum(int(log.sends.is_ok.sum()) for log in logs),
        "messages_read": sum(len(log.reads.op) for log in logs),
        "invocations": searched.invocations,
        "edges": searched.edges,
    }
    if repeated:
        counts |= {"values_repeated": len(repeated), "repeated": repeated[:REPEATED_SHOWN_MAX]}
    return findings.table(counts)


def conclude_cycles(
    name: str, findings: pa.Table, context: CheckContext, doubts: Sequence[str] = ()
) -> Verdict:
    """Join the findings of `check_cycles` into the verdict of checker `name`."""
    clean = "offsets, reads, processes and real time agree on one order"
    what = ("sends_acknowledged", "messages_read")
    return conclude_log(name, findings, context, clean=clean, what=what, doubts=doubts)


def _describe(cycle: Cycle, logs: Sequence[Log], context: CheckContext) -> Finding:
    """Describe a cycle, edge by edge."""
    if not cycle.links:
        message = (
            f"{cycle.component} operations, op {cycle.first} among them, are in a cycle that is"
            " too long to show."
        )
        return Finding(cycle.kind, message, None, None, (cycle.first,), {})
    texts = [_edge_text(link, logs) for link in cycle.links]
    keys = list(dict.fromkeys(logs[link.log].key for link in cycle.links if link.log >= 0))
    first = next(link for link in cycle.links if link.log >= 0)
    log = logs[first.log]
    offset = int(log.sends.offset[first.from_row])
    message = f"{', '.join(keys)}: a cycle of {len(texts)} operations: {'; but '.join(texts)}."
    edges = [
        {"from": link.source, "to": link.target, "edge": link.kind, "why": why}
        for link, why in zip(cycle.links, texts, strict=True)
    ]
    more = details(
        context,
        int(log.sends.call[first.from_row]),
        cycle=edges,
        component=cycle.component,
    )
    operations = tuple(link.source for link in cycle.links)
    key = keys[0] if len(keys) == 1 else None
    place = offset if key is not None and offset >= 0 else None
    return Finding(cycle.kind, message, key, place, operations, more)


def _edge_text(link: Link, logs: Sequence[Log]) -> str:
    """Describe an edge: "op 12 (append 5 at offset 3) comes before op 17 (...) in q/1"."""
    if link.log < 0:
        if link.kind == PROCESS:
            return f"op {link.source} came before op {link.target} in the same process"
        return f"op {link.source} returned before op {link.target} was called"
    log = logs[link.log]
    assert link.kind in (WW, WR), f"an edge of kind {link.kind} needs no log"
    if link.kind == WW:
        return f"{_sent(log, link.from_row)} comes before {_sent(log, link.to_row)} in {log.key}"
    reads, row = log.reads, link.to_row
    what = "poll" if reads.is_poll[row] else "read"
    at = f"at offset {reads.offset[row]} of {log.key}"
    return f"{_sent(log, link.from_row)} was seen by op {reads.op[row]} ({what}) {at}"


def _sent(log: Log, row: int) -> str:
    sends = log.sends
    offset = int(sends.offset[row])
    if offset < 0:
        read = (log.reads.value == sends.value[row]).nonzero()[0]
        offset = int(log.reads.offset[read[0]]) if len(read) else offset
    return f"op {sends.op[row]} ({log.verb} {sends.value[row]} at offset {offset})"


# Transactions over several logs.

TRANSACTION_CYCLES: Final = "transaction-cycles"
MICRO_OPERATIONS: Final = frozenset(("send", "poll"))


class TransactionCycles:
    """The transactions on several logs can be ordered without a cycle.

    Needs the whole history in one partition; if every invocation is about one key, `cycles` finds
    the same, log by log.
    """

    name = TRANSACTION_CYCLES
    tables: tuple[str, ...] = ("operations",)
    partition = "history"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Search the dependency graph of all logs together.

        Transactions of other objects are not judged; the first of them is named.
        """
        if (foreign := _foreign_transaction(tables["operations"])) is not None:
            return Findings().table({"foreign": foreign})
        operations = explode(tables["operations"])
        keys = sorted(pc.unique(operations["key"].drop_null()).to_pylist())
        logs = [load_log(operations.filter(pc.equal(operations["key"], key))) for key in keys]
        return check_cycles(logs, context)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Conclude from the one partition's findings."""
        foreign = [
            f"{checked['foreign']}: transaction-cycles judges transactions of send and poll"
            for checked in gather(findings).checked
            if "foreign" in checked
        ]
        return conclude_cycles(TRANSACTION_CYCLES, findings, context, foreign)


# Splits transactions that were recorded whole into a row for each of their micro-operations.


def _foreign_transaction(operations: pa.Table) -> str | None:
    """Name the first transaction with a micro-operation that no log has; None if there is none."""
    whole = operations.filter(pc.equal(operations["f"], TRANSACTION))
    for op, text in zip(whole["op"].to_pylist(), whole["extra"].to_pylist(), strict=True):
        steps = json.loads(text or "{}").get("input")
        names = {
            step[0] if isinstance(step, list) and step else None
            for step in (steps if isinstance(steps, list) else ())
        }
        if others := sorted(str(name) for name in names - MICRO_OPERATIONS):
            return f"op {op} is a transaction of {', '.join(others)}"
    return None


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
    steps = requested if row["outcome"] != "ok" or answered is None else answered
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


PLUGINS = (Cycles(), TransactionCycles())
