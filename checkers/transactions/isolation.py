"""Checker "isolation": which isolation levels a history of transactions satisfies, in words.

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
from shaketable.checkers.logs.durability import why_unpromised
from shaketable.checkers.transactions.forbidden_cycles import (
    Dependencies,
    Found,
    WeakLevels,
    lost_updates,
    strongest,
    weakest,
)
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
from shaketable.checkers.transactions.observed import Anomaly, Observed, observe
from shaketable.checkers.transactions.polygraph import (
    Choice,
    Decided,
    Lemma,
    decide_orders,
    literals,
)
from shaketable.harness.contracts.isolation import (
    BREAKS,
    LEVELS,
    STRONGEST,
    broken,
    ruled_out_by,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "isolation"


class Isolation:
    """Which isolation levels transactions satisfy; VALID if none that can be judged is broken.

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
            observed=partial(_why_not_promised, context=context),
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


def _why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why an anomaly breaks no promise of the target; None if it breaks one."""
    if kind not in ruled_out_by(context.promises.isolation) | context.promises.excludes:
        return "the target does not promise it"
    return why_unpromised(context)


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


# Anomalies in words, each edge by its evidence.

EDGES_SHOWN_MAX: Final = 50
LEMMAS_SHOWN_MAX: Final = 4
KEYS_SHOWN_MAX: Final = 6
DRAWN: Final = {"so": "process", "rt": "realtime"}
"""What pages call these kinds of edges."""


def lost_update_anomaly(pair: tuple[int, int, int], observed: Observed) -> Anomaly:
    """Return what `lost_updates` found as an anomaly."""
    first, second, key = pair
    message = (
        f"{observed.txns.describe(first)} and {observed.txns.describe(second)} read one version of"
        f" {key_name(observed.txns.names.keys[key])} and both wrote the next"
    )
    return Anomaly("lost-update", message, (first, second))


def cycle_anomaly(found: Found, observed: Observed) -> Anomaly:
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


def finding_of(anomaly: Anomaly, observed: Observed) -> Finding:
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


def excluded_finding(
    kind: str, lemmas: tuple[Lemma, ...], decided: Decided, observed: Observed
) -> Finding:
    """Return as a finding that every order of versions closes a cycle; its details have them all.

    `lemmas`: what shows it, by the choices of `decided`.
    """
    assert decided.choices is not None, "lemmas speak of choices"
    choices = decided.choices.choices
    texts, cycles = [], []
    for lemma in sorted(lemmas, key=lambda each: (len(each.taken), literals(each))):
        given = [
            _given(choices[choice], observed, is_first=is_first)
            for choice, is_first in sorted(lemma.taken)
        ]
        edges = [_edge_text(edge, observed) for edge in lemma.cycle[:EDGES_SHOWN_MAX]]
        condition = f"if {' and '.join(given)}, then " if given else ""
        texts.append(condition + "; but ".join(edges))
        cycles.append({"if": given, "edges": [_drawn(edge, observed) for edge in lemma.cycle]})
    keys = dict.fromkeys(choices[n].key for lemma in lemmas for n, _ in sorted(lemma.taken))
    names = [_key(key, observed) for key in keys][:KEYS_SHOWN_MAX]
    of_keys = f"no order of the writes of {', '.join(names)}" if names else "no order"
    more = f" ({len(texts) - LEMMAS_SHOWN_MAX} more cases)" if len(texts) > LEMMAS_SHOWN_MAX else ""
    (level,) = BREAKS[kind]
    message = f"{of_keys} satisfies {level}: {'. Or: '.join(texts[:LEMMAS_SHOWN_MAX])}{more}."
    ends = (end for lemma in lemmas for edge in lemma.cycle for end in (edge.source, edge.target))
    operations = tuple(int(observed.txns.op[number]) for number in dict.fromkeys(ends))
    details: dict[str, Any] = {"breaks": list(BREAKS[kind]), "cycles": cycles}
    return Finding(kind, message, None, None, operations, details)


def _given(choice: Choice, observed: Observed, *, is_first: bool) -> str:
    txns = (choice.first, choice.second) if is_first else (choice.second, choice.first)
    first, second = (_name(number, observed) for number in txns)
    return f"{first} wrote {_key(choice.key, observed)} before {second}"


def _key(number: int, observed: Observed) -> str:
    return key_name(observed.txns.names.keys[number])


def _drawn(edge: Edge, observed: Observed) -> dict[str, Any]:
    kind = KINDS[edge.kind]
    return {
        "from": int(observed.txns.op[edge.source]), "to": int(observed.txns.op[edge.target]),
        "edge": DRAWN.get(kind, kind), "why": _edge_text(edge, observed),
    }  # fmt: skip
