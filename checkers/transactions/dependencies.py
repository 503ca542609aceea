"""Cycles of Adya's dependencies, where reads show the order of versions.

Edges: ww, wr and rw of the transactions that committed, then the order of sessions (so), then real
time (rt). The kinds, from the gravest: G0 (ww alone), G1c (ww and wr), G-single (exactly one rw),
G-nonadjacent (several rw, no two of them adjacent), G2 (any).

All edges together are looked at first: every cycle is inside one of their components, and a history
that is strict serializable has none. There real time goes by way of moments, in few edges.

A cycle without two adjacent rw is a cycle of the graph in which each transaction appears twice, as
reached by an rw and as reached otherwise, and no rw leads on from the first: so snapshot isolation
is decided by components too.

What was appended and never read is after the longest list that was read, in an order that is not
known. For levels up to causal, and for serializability, any order that agrees with the edges will
do. For snapshot isolation it may not: there nothing is claimed to hold.

Sources: Adya 1999; Elle, VLDB 2020; Cerone & Gotsman 2016 (snapshot isolation forbids exactly the
cycles without two adjacent rw).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions.reads import INITIAL
from shaketable.checkers.transactions import graph
from shaketable.checkers.transactions.graph import (
    RW,
    WR,
    Cycle,
    Edges,
    cycles,
    number_parts,
    within,
)
from shaketable.checkers.transactions.levels import (
    OF_REALTIME,
    OF_REGISTERS,
    PREFIX,
    REALTIME,
    SESSION,
    Found,
    WeakLevels,
)
from shaketable.checkers.transactions.observed import Observed
from shaketable.harness.contracts.isolation import LEVELS, implied

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SERIALIZABLE: Final = ("serializable", "strong-session-serializable", "strict-serializable")
SINGLE, NONADJACENT, ANY = "G-single-item", "G-nonadjacent-item", "G2-item"
ALL: Final = 1 << 60
"""More edges than there are: each is tried."""


class Dependencies:
    """The dependencies of one history, where the order of versions is known."""

    def __init__(self, observed: Observed, weak: WeakLevels) -> None:
        self._observed = observed
        self._nodes = len(observed.txns)
        self.has_versions = bool(len(observed.versions.txn) or len(observed.versions.later))
        self._is_acyclic = [True] * len(SERIALIZABLE)
        self.is_acyclic = False
        """Whether all dependencies together are known to have no cycle."""
        if not self.has_versions:
            return
        anti = anti_edges(observed)
        by_time, moments = graph.moments(observed.txns, observed.committed, self._nodes)
        nodes = self._nodes + moments
        part, count = number_parts(nodes, weak.ww, weak.wr, anti, weak.so, by_time)
        part = part[: self._nodes]
        rt = graph.reduced(observed.txns, part >= 0)
        self._plain = Edges.joined(*(within(each, part) for each in (weak.ww, weak.wr, anti)))
        self._so, self._rt = within(weak.so, part), within(rt, part)
        self.is_acyclic = not count
        if count:
            self._is_acyclic = [not self._has_cycle(edges) for edges in self._variants()]

    def levels(self, *, is_timed: bool = True) -> list[str]:
        """Return the levels that are known to hold unless an anomaly breaks them.

        `is_timed`: the history has times. Without them, and if all transactions overlap, real time
        is not known.
        """
        levels = list(OF_REGISTERS)
        if self._are_versions_known():
            levels = [each for each in LEVELS if self.is_acyclic or each != PREFIX]
            if (np.diff(self._observed.versions.later_starts) > 1).any():
                levels = self._judged_by_serializability()
        has_order = is_timed or graph.has_order(self._observed.txns, self._observed.committed)
        return [level for level in levels if has_order or level not in OF_REALTIME]

    def search(self, known: Collection[str] = ()) -> list[Found]:
        """Return a cycle of each kind in each component; kinds already `known` are left out.

        Of a kind that is found, the same with sessions or real time is not sought.
        """
        if not self.has_versions:
            return []
        found: list[Found] = []
        done = {kind.removesuffix(SESSION) for kind in known}
        for suffix, edges in zip(("", SESSION, REALTIME), self._variants(), strict=True):
            here = [each for each in self._kinds(edges) if each.kind not in done]
            found += [Found(each.kind + suffix, each.cycle) for each in here]
            done |= {each.kind for each in here}
        return found

    def _variants(self) -> tuple[Edges, Edges, Edges]:
        """Return the edges without sessions, with them, and with real time as well."""
        with_sessions = Edges.joined(self._plain, self._so)
        return self._plain, with_sessions, Edges.joined(with_sessions, self._rt)

    def _has_cycle(self, edges: Edges) -> bool:
        return number_parts(self._nodes, edges)[1] > 0

    def _are_versions_known(self) -> bool:
        """Return whether the order of the versions of each key that is written is known."""
        written = self._observed.entries.key
        return bool(len(written)) and bool(self._observed.versions.is_known[written].all())

    def _judged_by_serializability(self) -> list[str]:
        """Return the levels up to causal, and those that a serializable history satisfies."""
        held = [
            level
            for level, holds in zip(SERIALIZABLE, self._is_acyclic, strict=True)
            if holds and self.has_versions
        ]
        known = frozenset(OF_REGISTERS).union(*map(implied, held))
        return [level for level in LEVELS if level in known]

    def _kinds(self, edges: Edges) -> Iterator[Found]:
        """Yield the gravest cycle of each component, and of those inside it without some edges."""
        part, count = number_parts(self._nodes, edges)
        if not count:
            return
        is_anti = edges.kind == RW
        known = edges.only(~is_anti)
        yield from (Found("G0", each.edges) for each in self._all(known.only(known.kind != WR)))
        for each in self._all(known):
            if any(edge.kind == WR for edge in each.edges):
                yield Found("G1c", each.edges)
        apart = self._nonadjacent(part, edges)
        single, is_cut = cycles(part, count, edges, is_anti, ~is_anti, starts_max=ALL)
        singles = {each.part: each for each in single}
        for number, cycle in apart.items():
            if number in singles:
                yield Found(SINGLE, singles[number].edges)
            else:
                yield Found(NONADJACENT, cycle.edges)
                if is_cut[number]:
                    self._doubt_single()
        rest, _ = cycles(part, count, edges, is_anti)
        yield from (Found(ANY, each.edges) for each in rest if each.part not in apart)

    def _doubt_single(self) -> None:
        self._observed.doubts.append(
            "whether a cycle has exactly one rw was not decided: the component is too large"
        )

    def _all(self, edges: Edges) -> list[Cycle]:
        part, count = number_parts(self._nodes, edges)
        return cycles(part, count, edges)[0] if count else []

    def _nonadjacent(self, part: Ints, edges: Edges) -> dict[int, Cycle]:
        """Return for components a cycle without two adjacent rw, if they have one."""
        edges = within(edges, part)
        twice = doubled(edges)
        numbers, count = number_parts(2 * self._nodes, twice)
        found: dict[int, Cycle] = {}
        for each in cycles(numbers, count, twice)[0]:
            own = tuple(
                edge._replace(source=edge.source // 2, target=edge.target // 2)
                for edge in each.edges
            )
            number = int(part[own[0].source])
            if number not in found or len(own) < len(found[number].edges):
                found[number] = Cycle(number, own)
        return dict(sorted(found.items()))


def doubled(edges: Edges) -> Edges:
    """Return the graph in which node 2n is n as reached otherwise, and 2n + 1 as reached by rw."""
    is_anti = edges.kind == RW
    other, anti = edges.only(~is_anti), edges.only(is_anti)
    return Edges.joined(
        replace(other, source=2 * other.source, target=2 * other.target),
        replace(other, source=2 * other.source + 1, target=2 * other.target),
        replace(anti, source=2 * anti.source, target=2 * anti.target + 1),
    )


def anti_edges(observed: Observed) -> Edges:
    """Return an edge from each read to the transaction that wrote the version after it."""
    versions, reads = observed.versions, observed.reads
    known = np.flatnonzero(versions.is_known[reads.key])
    txn, key = reads.txn[known], reads.key[known]
    seen = _seen(observed, known)
    order = np.flatnonzero(observed.committed[versions.txn])
    after = np.searchsorted(order, versions.starts[key] + seen)
    has_next = after < np.searchsorted(order, versions.starts[key + 1])
    target = versions.txn[order[after[has_next]]]
    shown = Edges.of(RW, txn[has_next], target, key[has_next])
    txn, key = txn[~has_next], key[~has_next]
    counts = np.diff(versions.later_starts)[key]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    later = versions.later[np.repeat(versions.later_starts[key], counts) + offsets]
    return Edges.joined(shown, Edges.of(RW, np.repeat(txn, counts), later, np.repeat(key, counts)))


def _seen(observed: Observed, known: Ints) -> Ints:
    """Return how many versions of its key each of some reads had seen."""
    versions, reads = observed.versions, observed.reads
    key, writer, length = reads.key[known], reads.writer[known], reads.length[known]
    code = versions.key * (len(observed.txns) + 1) + versions.txn
    order = np.argsort(code, kind="stable")
    place = np.searchsorted(code[order], key * (len(observed.txns) + 1) + writer, side="right") - 1
    if not len(order):
        return np.where(writer == INITIAL, 0, length)
    own = order[np.maximum(place, 0)]
    is_own = (place >= 0) & (versions.txn[own] == writer) & (versions.key[own] == key)
    at = np.where(is_own, own - versions.starts[key] + 1, 0)
    return np.where(writer == INITIAL, 0, np.where(length > 0, length, at))


def lost_updates(observed: Observed) -> list[tuple[int, int, int]]:
    """Return pairs of transactions that read one version of a key and both wrote it, and the key.

    One pair for each version.
    """
    reads = observed.reads
    wrote = np.flatnonzero(observed.entries.find(reads.txn, reads.key) >= 0)
    txn, key = reads.txn[wrote], reads.key[wrote]
    writer, length = reads.writer[wrote], reads.length[wrote]
    order = np.lexsort((txn, length, writer, key))
    txn, key, writer, length = txn[order], key[order], writer[order], length[order]
    is_same = (key[1:] == key[:-1]) & (writer[1:] == writer[:-1]) & (length[1:] == length[:-1])
    group = np.append(0, np.cumsum(~is_same))[: len(txn)]
    pair = np.flatnonzero(is_same & (txn[1:] != txn[:-1]))
    _, first = np.unique(group[pair], return_index=True)
    chosen = pair[first]
    found = zip(txn[chosen].tolist(), txn[chosen + 1].tolist(), key[chosen].tolist(), strict=True)
    return sorted(found, key=lambda each: each[1])
