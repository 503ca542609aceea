"""Anomalies of transactions in words, each edge by its evidence."""

from __future__ import annotations

from typing import Any, Final

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
from shaketable.checkers.transactions.history import key_name
from shaketable.checkers.transactions.levels import BREAKS
from shaketable.checkers.transactions.observed import Observed
from shaketable.checkers.transactions.orders import Decided
from shaketable.checkers.transactions.polygraph import Choice, Lemma, literals
from shaketable.checkers.transactions.unusual_reads import Anomaly
from shaketable.checkers.transactions.weak_levels import Found
from shaketable.harness.contracts.verdict import Finding

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
