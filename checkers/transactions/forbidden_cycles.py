"""Cycles that isolation levels forbid: of what weak levels force, and of Adya's dependencies.

Weak levels force orders of commits, whose cycles show that a level is broken. A history
satisfies a level iff its transactions can commit in one order that agrees with what was read (wr),
with sessions (so) where the level respects them, with the versions that lists show (ww), and with
this: where t3 reads a key from t1, and t2 writes that key too, t2 commits before t1 if

- monotonic atomic view: t3 had read from t2 before that;
- read atomic: t3 reads from t2 anything at all, or t2 comes before t3 in its session;
- causal: t2 reaches t3 by sessions and reads.

Each edge that is forced has its witness t3, so cycles explain themselves. The forced edges do not
depend on the order that is chosen, so no cycle means that there is an order. What each level forces
the next one forces too: if all edges together have no cycle, no level is broken.

Adya's dependencies are looked at where reads show the order of versions. Edges: ww, wr and rw of
the transactions that committed, then the order of sessions (so), then real time (rt). The kinds,
from the gravest: G0 (ww alone), G1c (ww and wr), G-single (exactly one rw), G-nonadjacent (several
rw, no two of them adjacent), G2 (any).

All edges together are looked at first: every cycle is inside one of their components, and a history
that is strict serializable has none. There real time goes by way of moments, in few edges.

A cycle without two adjacent rw is a cycle of the graph in which each transaction appears twice, as
reached by an rw and as reached otherwise, and no rw leads on from the first: so snapshot isolation
is decided by components too.

What was appended and never read is after the longest list that was read, in an order that is not
known. For levels up to causal, and for serializability, any order that agrees with the edges will
do. For snapshot isolation it may not: there nothing is claimed to hold.

Sources: Adya 1999 (read uncommitted to serializable are PL-1, PL-2, PL-2.99 and PL-3, consistent
view PL-2+); Bailis et al., VLDB 2013 (monotonic atomic view, read atomic); Biswas & Enea, OOPSLA
2019, whose read committed is monotonic atomic view here, and their read atomic and causal (the
axioms); AWDIT (arXiv 2504.06975) for the algorithms: the smaller side is walked, and causal order
is known by a clock with an entry for each session; Cerone & Gotsman 2016 (internal consistency;
snapshot isolation forbids exactly the cycles without two adjacent rw); Elle, VLDB 2020, and its
consistency models for the sessions and real time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions import forced as kernels
from shaketable.checkers.kernels.transactions.reads import INITIAL
from shaketable.checkers.transactions import graph
from shaketable.checkers.transactions.graph import (
    CO,
    FIRST,
    RW,
    SO,
    WR,
    WW,
    Cycle,
    Edge,
    Edges,
    cycles,
    number_parts,
    within,
)
from shaketable.checkers.transactions.observed import Observed
from shaketable.harness.contracts.isolation import LEVELS, implied

# What weak levels force.

SESSION, REALTIME = "-process", "-realtime"
"""What follows the name of an anomaly that needs the order of sessions, or real time as well."""
SESSIONS: Final = "strong-session-"
"""Levels of this prefix respect the order in each session too."""
PREFIX: Final = "prefix-consistency"
OF_REALTIME: Final = frozenset(LEVELS[LEVELS.index("strong-read-uncommitted") :])
"""Levels that respect real time."""
OF_REGISTERS: Final = LEVELS[: LEVELS.index("causal") + 1]
"""Levels that can be judged where the order of versions is not known."""


def weakest(levels: Iterable[str]) -> tuple[str, ...]:
    """Return those of the levels that imply none of the others, in the order of LEVELS."""
    among = frozenset(levels)
    return tuple(
        level for level in LEVELS if level in among and not (implied(level) - {level}) & among
    )


def strongest(levels: Iterable[str]) -> tuple[str, ...]:
    """Return those of the levels that none of the others implies, in the order of LEVELS."""
    among = frozenset(levels)
    return tuple(
        level
        for level in LEVELS
        if level in among and not any(level in implied(other) - {other} for other in among)
    )


# What weak levels force.

Ints = npt.NDArray[np.int64]
CLOCK_PLACES: Final = 32
"""Sessions of which causal order is looked at in one pass; more take more passes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cycle, and the anomaly that it is."""

    kind: str
    cycle: tuple[Edge, ...]


def session_order(observed: Observed) -> Ints:
    """Return the committed transactions by session, in its order."""
    committed = np.flatnonzero(observed.committed)
    return committed[np.argsort(observed.txns.process[committed], kind="stable")]


def session_edges(observed: Observed) -> Edges:
    """Return an edge from each transaction to the next one of its session."""
    order = session_order(observed)
    process = observed.txns.process[order]
    is_next = process[1:] == process[:-1]
    return Edges.of(SO, order[:-1][is_next], order[1:][is_next])


def read_edges(observed: Observed) -> Edges:
    """Return an edge to each read from the transaction that wrote what it saw."""
    reads = observed.reads
    seen = reads.writer != INITIAL
    return Edges.of(WR, reads.writer[seen], reads.txn[seen], reads.key[seen])


def version_edges(observed: Observed) -> Edges:
    """Return an edge between the transactions of successive versions, as far as they are known.

    What was appended and not read comes after the longest list that was read.
    """
    versions = observed.versions
    order = np.flatnonzero(observed.committed[versions.txn])
    key, txn = versions.key[order], versions.txn[order]
    is_next = key[1:] == key[:-1]
    known = Edges.of(WW, txn[:-1][is_next], txn[1:][is_next], key[1:][is_next])
    stop = np.searchsorted(key, np.arange(len(versions.is_known)), side="right")
    has_some = stop > np.searchsorted(key, np.arange(len(versions.is_known)))
    later_key = np.repeat(np.arange(len(versions.is_known)), np.diff(versions.later_starts))
    is_after = has_some[later_key]
    last = txn[stop[later_key[is_after]] - 1]
    return Edges.joined(known, Edges.of(WW, last, versions.later[is_after], later_key[is_after]))


class WeakLevels:
    """What weak levels force in one history, and the cycles of that."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._nodes = len(observed.txns) + 1
        """All transactions, and what keys hold at first."""
        self.so, self.wr = session_edges(observed), read_edges(observed)
        self.ww = version_edges(observed)
        entries = observed.entries
        self._places = kernels.Places(entries.starts, entries.key, *_known_places(observed))
        starts = np.searchsorted(observed.reads.txn, np.arange(self._nodes))
        self._reads = kernels.Sources(observed.reads.key, observed.reads.writer, starts)

    def search(self, *, is_acyclic: bool = False) -> list[Found]:
        """Return a cycle for each way in which weak levels are broken.

        Of what is broken without the order of sessions the same is not sought with it.

        Args:
            is_acyclic: it is known that reads, versions and sessions have no cycle by themselves.
        """
        forced = (
            self._forced(kernels.MONOTONIC),
            self._forced(kernels.ATOMIC),
            self._forced(kernels.ATOMIC, self._before()),
        )
        found: list[Found] = []
        if not is_acyclic or any(map(len, forced)):
            part, count = number_parts(self._nodes, self.wr, self.ww, self.so, *forced)
            found += self._search_parts(part, *forced) if count else []
        if any(each.kind.startswith(("G1c", "G0")) for each in found):
            return _without_repeated(found)
        causal = self._causal()
        if causal is not None and (not is_acyclic or len(causal)):
            part, count = number_parts(self._nodes, self.wr, self.ww, self.so, causal)
            edges = [within(each, part) for each in (self.wr, self.ww, self.so, causal)]
            for each in cycles(part, count, Edges.joined(*edges))[0]:
                found.append(Found("causality-violation", each.edges))
        return _without_repeated(found)

    def _search_parts(
        self, part: Ints, monotonic: Edges, atomic: Edges, in_session: Edges
    ) -> list[Found]:
        """Search the components of all edges together: every cycle is inside one."""
        so, wr, ww, monotonic, atomic, in_session = (
            within(each, part)
            for each in (self.so, self.wr, self.ww, monotonic, atomic, in_session)
        )
        plain, of_sessions = Edges.joined(wr, ww), Edges.joined(wr, ww, so)
        found: list[Found] = []
        for kind, without, with_sessions in (
            ("G0", ww, Edges.joined(ww, so)),
            ("G1c", plain, of_sessions),
            (
                "nonmonotonic-read",
                Edges.joined(plain, monotonic),
                Edges.joined(of_sessions, monotonic),
            ),
            (
                "fractured-read",
                Edges.joined(plain, atomic),
                Edges.joined(of_sessions, in_session),
            ),
        ):
            found += _first(self._nodes, kind, without, with_sessions)
        return found

    def _forced(self, level: int, before: Ints | None = None) -> Edges:
        none = np.full(len(self._observed.reads.key), -1, np.int64)
        given = none if before is None else before
        keys = len(self._observed.versions.is_known)
        return self._with_first(
            _filled(
                lambda found: kernels.force(level, keys, self._reads, self._places, given, found)
            )
        )

    def _before(self) -> Ints:
        """Return for each read the last writer of its key in its session before it, or -1."""
        observed = self._observed
        before = np.empty(len(observed.reads.key), np.int64)
        kernels.session_writers(
            session_order(observed), observed.txns.process, len(observed.versions.is_known),
            self._reads, self._places, before,
        )  # fmt: skip
        return before

    def _causal(self) -> Edges | None:
        """Return what causal consistency forces; None if sessions and reads have a cycle."""
        observed, nodes = self._observed, self._nodes
        happened = Edges.joined(self.wr, self.so)
        order = np.empty(nodes, np.int64)
        if kernels.topological(happened.source, happened.target, nodes, order) < nodes:
            return None
        order = order[order < nodes - 1]
        order = order[observed.committed[order]]
        sessions, count = self._sessions()
        groups = _groups(observed, sessions)
        width = max(1, min(count, CLOCK_PLACES))
        clocks = np.empty((nodes, width), np.int32)
        parts = []
        for first in range(0, count, width):

            def force(found: Ints, first: int = first) -> int:
                total: int = kernels.force_causal(
                    order, first, sessions, self._reads, self._places, groups, clocks, found
                )
                return total

            parts.append(self._with_first(_filled(force)))
        return Edges.joined(*parts) if parts else self.wr.only(np.zeros(len(self.wr), np.bool_))

    def _sessions(self) -> tuple[kernels.Sessions, int]:
        """Return the sessions of committed transactions, and how many there are."""
        order = session_order(self._observed)
        process = self._observed.txns.process[order]
        number, place, earlier = (np.full(self._nodes, -1, np.int64) for _ in range(3))
        if not len(order):
            return kernels.Sessions(number, place, earlier), 0
        is_new = np.append(True, process[1:] != process[:-1])
        of = np.cumsum(is_new) - 1
        number[order] = of
        place[order] = np.arange(len(order)) - np.flatnonzero(is_new)[of]
        earlier[order[1:][~is_new[1:]]] = order[:-1][~is_new[1:]]
        return kernels.Sessions(number, place, earlier), int(of[-1]) + 1

    def _with_first(self, found: Ints) -> Edges:
        """Return forced edges, those to what keys hold at first as edges to a node of its own.

        That was there before every transaction, so each such edge closes a cycle.
        """
        first = self._nodes - 1
        source, target, key, via = found.T
        is_first = target == INITIAL
        forced = Edges.of(CO, source, np.where(is_first, first, target), key, via)
        sources = np.unique(source[is_first])
        return Edges.joined(forced, Edges.of(FIRST, np.full(len(sources), first), sources))


def _filled(fill: Callable[[Ints], int]) -> Ints:
    """Return what a kernel finds, with as much room as it takes."""
    found = np.empty((1024, 4), np.int64)
    count = fill(found)
    if count > len(found):
        found = np.empty((count, 4), np.int64)
        fill(found)
    return found[:count]


def _known_places(observed: Observed) -> tuple[Ints, Ints]:
    """Return for each entry its first and last place among its key's versions, -1 if not known.

    What no read shows comes after all versions.
    """
    versions, entries = observed.versions, observed.entries
    first, last = (np.full(len(entries.txn), -1, np.int64) for _ in range(2))
    key = versions.key
    own = entries.find(versions.txn, key)
    place = np.arange(len(key)) - versions.starts[key]
    is_own = own >= 0
    last[own[is_own]] = place[is_own]
    first[own[is_own][::-1]] = place[is_own][::-1]
    later_key = np.repeat(np.arange(len(versions.is_known)), np.diff(versions.later_starts))
    own = entries.find(versions.later, later_key)
    is_after = (own >= 0) & (first[np.maximum(own, 0)] < 0) if len(first) else own >= 0
    after = versions.starts[later_key + 1] - versions.starts[later_key]
    first[own[is_after]] = last[own[is_after]] = after[is_after]
    return first, last


def _groups(observed: Observed, sessions: kernels.Sessions) -> kernels.Groups:
    """Group the writers of each key by session."""
    entries, keys = observed.entries, len(observed.versions.is_known)
    order = np.lexsort((sessions.place[entries.txn], sessions.number[entries.txn], entries.key))
    txn, key = entries.txn[order], entries.key[order]
    of = sessions.number[txn]
    is_new = np.ones(len(txn), np.bool_)
    is_new[1:] = (key[1:] != key[:-1]) | (of[1:] != of[:-1])
    starts = np.flatnonzero(is_new)
    of_key = np.searchsorted(key[starts], np.arange(keys + 1))
    return kernels.Groups(of_key, of[starts], np.append(starts, len(txn)), txn)


def _first(nodes: int, kind: str, plain: Edges, with_sessions: Edges) -> Iterator[Found]:
    """Yield the cycles without sessions; if there are none, those with them."""
    found = _of(nodes, plain)
    yield from (Found(kind, cycle.edges) for cycle in found)
    if not found:
        yield from (Found(kind + SESSION, cycle.edges) for cycle in _of(nodes, with_sessions))


def _of(nodes: int, edges: Edges) -> list[Cycle]:
    part, count = number_parts(nodes, edges)
    return cycles(part, count, edges)[0] if count else []


def _without_repeated(found: Sequence[Found]) -> list[Found]:
    """Leave out cycles that were found for a weaker level: that one breaks the stronger too."""
    seen: set[frozenset[Edge]] = set()
    kept = []
    for each in found:
        edges = frozenset(each.cycle)
        if edges not in seen:
            seen.add(edges)
            kept.append(each)
    return kept


# Adya's dependencies.

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
