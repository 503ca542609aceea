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
from shaketable.checkers.transactions.history import (
    NotTransactionsError,
    load_transactions,
)
from shaketable.checkers.transactions.levels import (
    BREAKS,
    LEVELS,
    STRONGEST,
    broken,
    strongest,
    weakest,
)
from shaketable.checkers.transactions.observed import Observed, observe
from shaketable.checkers.transactions.orders import decide_orders
from shaketable.checkers.transactions.unusual_reads import Anomaly
from shaketable.checkers.transactions.weak_levels import Found, WeakLevels
from shaketable.checkers.transactions.wording import (
    cycle_anomaly,
    excluded_finding,
    finding_of,
    lost_update_anomaly,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "isolation"


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
        judged = strong.levels(is_timed=context.is_timed)
        decided = decide_orders(
            observed, weak, judged, broken(kinds), context.begin_search(), is_timed=context.is_timed
        )
        for kind, lemmas in decided.excluded.items():
            said = excluded_finding(kind, lemmas, decided, observed)
            findings.add(kind, range(1), [said].__getitem__)
        counts: dict[str, Any] = {
            "transactions": len(txns),
            "committed": int(observed.committed.sum()),
            "reads_traced": len(observed.reads.txn),
            "kinds": sorted(kinds | decided.excluded.keys()),
            "doubts": observed.doubts,
            "judged": [level for level in LEVELS if level in decided.holds.union(judged)],
            "undecided": sorted(set(decided.undecided.values())),
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
        undecided = [why for checked in gathered.checked for why in checked.get("undecided", ())]
        why = f" ({', '.join(undecided)})" if undecided else ""
        is_whole = STRONGEST in judged or STRONGEST in is_broken
        rest = "" if is_whole and not why else f"; stronger levels are not judged{why}"
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
        by_kind.setdefault("lost-update", []).append(partial(lost_update_anomaly, pair, observed))
    for each in found:
        by_kind.setdefault(each.kind, []).append(partial(cycle_anomaly, each, observed))
    for kind in sorted(by_kind, key=list(BREAKS).index):
        made = by_kind[kind]
        findings.add(kind, range(len(made)), partial(_nth, made, observed))
    return set(by_kind)


def _nth(made: Sequence[Callable[[], Anomaly]], observed: Observed, place: int) -> Finding:
    return finding_of(made[place](), observed)


def _itself(anomaly: Anomaly) -> Anomaly:
    return anomaly
