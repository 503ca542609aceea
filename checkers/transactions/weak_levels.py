"""What weak levels force: orders of commits, whose cycles show that a level is broken.

A history satisfies a level iff its transactions can commit in one order that agrees with what was
read (wr), with sessions (so) where the level respects them, with the versions that lists show (ww),
and with this: where t3 reads a key from t1, and t2 writes that key too, t2 commits before t1 if

- monotonic atomic view: t3 had read from t2 before that;
- read atomic: t3 reads from t2 anything at all, or t2 comes before t3 in its session;
- causal: t2 reaches t3 by sessions and reads.

Each edge that is forced has its witness t3, so cycles explain themselves. The forced edges do not
depend on the order that is chosen, so no cycle means that there is an order.

Sources: Biswas & Enea, OOPSLA 2019 (the axioms; their read committed is monotonic atomic view);
AWDIT (arXiv 2504.06975) for the algorithms: the smaller side is walked, and causal order is known
by a clock with an entry for each session.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shaketable.checkers.transactions.graph import CO, FIRST, SO, WR, WW, Edge, cycles, distinct
from shaketable.checkers.transactions.levels import SESSION
from shaketable.checkers.transactions.observed import INITIAL, Observed, Read

Cycle = list[Edge]


@dataclass(frozen=True, slots=True)
class Found:
    """A cycle, and the anomaly that it is."""

    kind: str
    cycle: Cycle


def sessions_of(observed: Observed) -> list[list[int]]:
    """Return the committed transactions of each session, in its order."""
    by_process: dict[int, list[int]] = {}
    for number, txn in enumerate(observed.txns):
        if observed.committed[number]:
            by_process.setdefault(txn.process, []).append(number)
    return list(by_process.values())


def session_edges(observed: Observed) -> list[Edge]:
    """Return an edge from each transaction to the next one of its session."""
    return [
        Edge(before, after, SO)
        for session in sessions_of(observed)
        for before, after in pairwise(session)
    ]


def read_edges(observed: Observed) -> list[Edge]:
    """Return an edge to each read from the transaction that wrote what it saw."""
    return distinct(
        Edge(read.writer, read.txn, WR, read.key)
        for reads in observed.reads
        for read in reads
        if read.writer != INITIAL
    )


def version_edges(observed: Observed) -> list[Edge]:
    """Return an edge between the transactions of successive versions, as far as they are known.

    What was appended and not read comes after the longest list that was read.
    """
    edges: list[Edge] = []
    for key, writers in observed.versions.items():
        order = [writer for writer in writers if observed.committed[writer]]
        edges += [Edge(before, after, WW, key) for before, after in pairwise(order)]
        edges += [Edge(order[-1], after, WW, key) for after in observed.later[key] if order]
    return distinct(edges)


def search_weak_levels(observed: Observed) -> list[Found]:
    """Return a cycle for each way in which weak levels are broken.

    Of what is broken without the order of sessions the same is not sought with it.
    """
    so, wr, ww = session_edges(observed), read_edges(observed), version_edges(observed)
    nodes = len(observed.txns) + 1
    found: list[Found] = []
    for kind, base, of_sessions in (("G0", ww, [*ww, *so]), ("G1c", [*ww, *wr], [*ww, *wr, *so])):
        found += _first(nodes, kind, base, of_sessions)
    base, of_sessions = [*wr, *ww], [*wr, *ww, *so]
    for kind, plain, sessions in (
        ("nonmonotonic-read", _monotonic(observed), None),
        ("fractured-read", _atomic(observed, {}), _atomic(observed, _before(observed))),
    ):
        forced = with_first(distinct(plain), nodes - 1)
        more = forced if sessions is None else with_first(distinct(sessions), nodes - 1)
        found += _first(nodes, kind, [*base, *forced], [*of_sessions, *more])
    if not any(each.kind.startswith(("G1c", "G0")) for each in found):
        forced = with_first(distinct(_causal(observed, of_sessions)), nodes - 1)
        found += [
            Found("causality-violation", cycle) for cycle in cycles(nodes, [*of_sessions, *forced])
        ]
    return _without_repeated(found)


def _first(
    nodes: int, kind: str, plain: Sequence[Edge], with_sessions: Sequence[Edge]
) -> Iterator[Found]:
    """Yield the cycles without sessions; if there are none, those with them."""
    found = cycles(nodes, plain)
    yield from (Found(kind, cycle) for cycle in found)
    if not found:
        yield from (Found(kind + SESSION, cycle) for cycle in cycles(nodes, with_sessions))


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


def with_first(forced: Sequence[Edge], first: int) -> list[Edge]:
    """Return forced edges, those to what keys hold at first as edges to a node `first`.

    That was there before every transaction, so each such edge closes a cycle.
    """
    made: list[Edge] = []
    for edge in forced:
        if edge.target == INITIAL:
            made.append(edge._replace(target=first))
            made.append(Edge(first, edge.source, FIRST))
        else:
            made.append(edge)
    return made


def _monotonic(observed: Observed) -> Iterator[Edge]:
    """Yield what monotonic atomic view forces: an earlier read saw the other writer."""
    for reads in observed.reads:
        keys = _keys(reads)
        seen: dict[Any, set[int]] = {}  # key -> transactions seen so far that write it
        done: set[int] = set()
        for read in reads:
            for other in seen.get(read.key, ()):
                if other != read.writer:
                    yield Edge(other, read.writer, CO, read.key, read.txn)
            if read.writer not in done and read.writer != INITIAL:
                done.add(read.writer)
                for key in _both(observed.writes[read.writer], keys):
                    seen.setdefault(key, set()).add(read.writer)


def _atomic(observed: Observed, before: Mapping[int, Mapping[Any, int]]) -> Iterator[Edge]:
    """Yield what read atomic forces; `before` has the last writers in the reader's session."""
    for number, reads in enumerate(observed.reads):
        by_key = _keys(reads)
        for writer in {read.writer for read in reads} - {INITIAL}:
            for key in _both(observed.writes[writer], by_key):
                for other in by_key[key]:
                    if other != writer:
                        yield Edge(writer, other, CO, key, number)
        for key in _both(before.get(number, {}), by_key):
            for other in by_key[key]:
                if before[number][key] != other:
                    yield Edge(before[number][key], other, CO, key, number)


def _before(observed: Observed) -> dict[int, dict[Any, int]]:
    """Return for each transaction the last writers, in its session, of the keys that it reads."""
    found: dict[int, dict[Any, int]] = {}
    for session in sessions_of(observed):
        last: dict[Any, int] = {}
        for number in session:
            keys = _keys(observed.reads[number])
            found[number] = {key: last[key] for key in _both(last, keys)}
            last.update(dict.fromkeys(observed.writes[number], number))
    return found


def _causal(observed: Observed, happened: Sequence[Edge]) -> Iterator[Edge]:
    """Yield what causal consistency forces; `happened` are so, wr and ww, without a cycle."""
    sessions = sessions_of(observed)
    place = {number: (s, n) for s, each in enumerate(sessions) for n, number in enumerate(each)}
    writers: dict[Any, dict[int, list[int]]] = {}  # key -> session -> places of its writers
    for number, (s, n) in sorted(place.items(), key=lambda each: each[1]):
        for key in observed.writes[number]:
            writers.setdefault(key, {}).setdefault(s, []).append(n)
    clocks = _clocks(observed, [edge for edge in happened if edge.kind != WW], sessions, place)
    for number, reads in enumerate(observed.reads):
        if number not in place:
            continue
        for read in reads:
            for s, places in writers.get(read.key, {}).items():
                newest = bisect_right(places, clocks[number][s]) - 1
                other = sessions[s][places[newest]] if newest >= 0 else read.writer
                if other not in (read.writer, number):
                    yield Edge(other, read.writer, CO, read.key, number)


def _clocks(
    observed: Observed,
    happened: Sequence[Edge],
    sessions: Sequence[Sequence[int]],
    place: Mapping[int, tuple[int, int]],
) -> list[list[int]]:
    """Return for each transaction the last place of each session that happened before it."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for edge in happened:
        before.setdefault(edge.target, []).append(edge.source)
        after.setdefault(edge.source, []).append(edge.target)
    waits = {number: len(before.get(number, ())) for number in place}
    ready = [number for number, count in waits.items() if not count]
    clocks: list[list[int]] = [[-1] * len(sessions) for _ in observed.txns]
    while ready:
        number = ready.pop()
        clock = clocks[number]
        for earlier in before.get(number, ()):
            s, n = place[earlier]
            clock[:] = map(max, clock, clocks[earlier])
            clock[s] = max(clock[s], n)
        for later in after.get(number, ()):
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return clocks


def _keys(reads: Sequence[Read]) -> dict[Any, set[int]]:
    """Return for each key that is read the writers of what was seen there."""
    found: dict[Any, set[int]] = {}
    for read in reads:
        found.setdefault(read.key, set()).add(read.writer)
    return found


def _both(some: Mapping[Any, Any], others: Mapping[Any, Any]) -> list[Any]:
    """Return the keys that both have, by walking the smaller one."""
    small, large = (some, others) if len(some) <= len(others) else (others, some)
    return [key for key in small if key in large]
