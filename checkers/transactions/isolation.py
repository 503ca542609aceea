"""Checker "isolation": which isolation levels a history of transactions satisfies.

Source: see the modules of this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from shaketable.checkers.findings import Findings, gather, settle
from shaketable.checkers.transactions.dependencies import Dependencies, lost_updates
from shaketable.checkers.transactions.graph import (
    CO,
    FIRST,
    KINDS,
    RT,
    RW,
    SO,
    WR,
    WW,
    Edge,
)
from shaketable.checkers.transactions.history import (
    NotTransactionsError,
    key_name,
    load_transactions,
)
from shaketable.checkers.transactions.levels import (
    BREAKS,
    STRONGEST,
    broken,
    strongest,
    weakest,
)
from shaketable.checkers.transactions.observed import Observed, observe
from shaketable.checkers.transactions.unusual_reads import Anomaly
from shaketable.checkers.transactions.weak_levels import Found, WeakLevels
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "isolation"
EDGES_SHOWN_MAX: Final = 50
DRAWN: Final = {"so": "process", "rt": "realtime"}
"""What pages call these kinds of edges."""


class Isolation:
    """Transactions are as isolated as the strongest level that can be judged asks for.

    Judges transactions of reads with writes, or of reads with appends, that are recorded whole. Its
    `data` has `holds` and `broken`, all levels that hold or do not; the summary names the strongest
    and the weakest of these.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"
    judges_prefixes = True
    """What is broken in a history that was cut is broken in the whole one."""

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Search one history for anomalies."""
        try:
            txns = load_transactions(tables["operations"])
            first = _first_values(context.initial)
        except NotTransactionsError as error:
            return Findings().table({"doubts": [f"{error}: isolation judges transactions"]})
        observed = observe(txns, first)
        weak = WeakLevels(observed)
        strong = Dependencies(observed, weak)
        found = weak.search(is_acyclic=strong.is_acyclic)
        found += strong.search({each.kind for each in found})
        findings = Findings()
        kinds = _add_all(findings, observed, found)
        counts: dict[str, Any] = {
            "transactions": len(txns),
            "committed": int(observed.committed.sum()),
            "reads_traced": len(observed.reads.txn),
            "kinds": sorted(kinds),
            "doubts": observed.doubts,
            "judged": strong.levels(is_timed=context.is_timed),
        }
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Name the strongest levels that hold and the weakest that are broken."""
        gathered = gather(findings)
        kinds = {kind for checked in gathered.checked for kind in checked.get("kinds", ())}
        doubts = [each for checked in gathered.checked for each in checked.get("doubts", ())]
        is_broken = broken(kinds)
        judged = [level for checked in gathered.checked for level in checked.get("judged", ())]
        holds = [level for level in judged if level not in is_broken]
        top, bottom = strongest(holds), weakest(is_broken)
        if not any(checked.get("committed") for checked in gathered.checked) and not doubts:
            doubts.append("no transaction of known outcome to look at")
        is_real = context.incomplete is None
        is_known = is_real and not doubts
        rest = "" if STRONGEST in judged else "; stronger levels are not judged"
        text = f"strongest that hold: {', '.join(top) or 'none'}{rest}"
        verdict = settle(
            NAME, gathered, context, clean=text,
            doubts=doubts, doubtful=tuple(BREAKS), counts=gathered.sums(),
        )  # fmt: skip
        if kinds and is_real:
            parts = [verdict.summary, f"weakest broken: {', '.join(bottom)}"]
            verdict = replace(verdict, summary="; ".join([*parts, *([text] if is_known else [])]))
        verdict.data["broken"] = sorted(is_broken) if is_real else []
        verdict.data["weakest_broken"] = list(bottom) if is_real else []
        verdict.data["holds"] = holds if is_known else []
        verdict.data["strongest"] = list(top) if is_known else []
        return verdict


PLUGIN = Isolation()


def _first_values(text: str | None) -> Mapping[str, Any] | None:
    """Return what keys hold at first; None if it is not known.

    Raises:
        NotTransactionsError: a key is said to hold a list; lists start empty.
    """
    try:
        given = json.loads(text or "null")
    except json.JSONDecodeError:
        return None
    if not isinstance(given, dict):
        return None
    if any(isinstance(value, list) for value in given.values()):
        raise NotTransactionsError("--initial says that a key holds a list at first")
    return given


def _add_all(findings: Findings, observed: Observed, found: Sequence[Found]) -> set[str]:
    """Add all anomalies by kind; only those that are kept are put in words. Return the kinds."""
    by_kind: dict[str, list[Callable[[], Anomaly]]] = {}
    for anomaly in observed.anomalies:
        by_kind.setdefault(anomaly.kind, []).append(partial(_itself, anomaly))
    for pair in lost_updates(observed):
        by_kind.setdefault("lost-update", []).append(partial(_of_lost_update, pair, observed))
    for each in found:
        by_kind.setdefault(each.kind, []).append(partial(_of_cycle, each, observed))
    for kind in sorted(by_kind, key=list(BREAKS).index):
        made = by_kind[kind]
        findings.add(kind, range(len(made)), partial(_nth, made, observed))
    return set(by_kind)


def _nth(made: Sequence[Callable[[], Anomaly]], observed: Observed, place: int) -> Finding:
    return _finding(made[place](), observed)


def _itself(anomaly: Anomaly) -> Anomaly:
    return anomaly


def _of_lost_update(pair: tuple[int, int, int], observed: Observed) -> Anomaly:
    first, second, key = pair
    message = (
        f"{observed.txns.describe(first)} and {observed.txns.describe(second)} read one version of"
        f" {key_name(observed.txns.names.keys[key])} and both wrote the next"
    )
    return Anomaly("lost-update", message, (first, second))


def _of_cycle(found: Found, observed: Observed) -> Anomaly:
    """Return a cycle as an anomaly, each edge in words."""
    texts = [_edge_text(edge, observed) for edge in found.cycle[:EDGES_SHOWN_MAX]]
    ends = (number for edge in found.cycle for number in (edge.source, edge.target, edge.via))
    txns = [number for number in ends if 0 <= number < len(observed.txns)]
    edges = "1 edge" if len(found.cycle) == 1 else f"{len(found.cycle)} edges"
    message = f"a cycle of {edges}: {'; but '.join(texts)}"
    drawn = tuple(
        (edge.source, edge.target, KINDS[edge.kind], text)
        for edge, text in zip(found.cycle, texts, strict=False)
        if edge.kind != FIRST and edge.target < len(observed.txns)
    )
    is_whole = len(drawn) == len(found.cycle)
    return Anomaly(found.kind, message, tuple(dict.fromkeys(txns)), drawn if is_whole else ())


def _edge_text(edge: Edge, observed: Observed) -> str:
    """Describe an edge by its evidence."""
    first = len(observed.txns)
    source = "what keys hold at first" if edge.source == first else _name(edge.source, observed)
    target = "what keys hold at first" if edge.target == first else _name(edge.target, observed)
    key = key_name(observed.txns.names.keys[edge.key]) if edge.key >= 0 else ""
    return {
        SO: f"{source} came before {target} in its session",
        RT: f"{source} returned before {target} was called",
        WR: f"{target} read what {source} wrote in {key}",
        WW: f"{target} wrote the version of {key} after that of {source}",
        RW: f"{source} did not see what {target} wrote in {key}",
        FIRST: f"{source} was there before {target}",
        CO: f"{source} comes before {target}, since {_name(edge.via, observed)} had seen the former"
        f" and read {key}, which both wrote, from the latter",
    }[edge.kind]


def _name(number: int, observed: Observed) -> str:
    return observed.txns.describe(number) if 0 <= number < len(observed.txns) else ""


def _finding(anomaly: Anomaly, observed: Observed) -> Finding:
    """Return an anomaly as a finding; its details have the levels that it breaks."""
    ids = observed.txns.op
    operations = tuple(int(ids[number]) for number in anomaly.txns)
    details: dict[str, Any] = {"breaks": list(BREAKS[anomaly.kind])}
    if anomaly.cycle:
        details["cycle"] = [
            {
                "from": int(ids[source]),
                "to": int(ids[target]),
                "edge": DRAWN.get(kind, kind),
                "why": why,
            }
            for source, target, kind, why in anomaly.cycle
        ]
    return Finding(anomaly.kind, f"{anomaly.message}.", None, None, operations, details)
