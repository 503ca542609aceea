"""Cycles of Adya's dependencies, where reads show the order of versions.

Edges: ww, wr and rw of the transactions that committed, then the order of sessions (so), then real
time (rt). The kinds, from the gravest: G0 (ww alone), G1c (ww and wr), G-single (exactly one rw),
G-nonadjacent (several rw, no two of them adjacent), G2 (any).

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

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from shaketable.checkers.transactions.graph import (
    RT,
    RW,
    Edge,
    cycles,
    cyclic_parts,
    distinct,
    path_to,
    shortest,
)
from shaketable.checkers.transactions.history import NEVER
from shaketable.checkers.transactions.levels import (
    LEVELS,
    OF_REALTIME,
    OF_REGISTERS,
    REALTIME,
    SESSION,
    implied,
)
from shaketable.checkers.transactions.observed import INITIAL, Anomaly, Observed
from shaketable.checkers.transactions.weak_levels import (
    Found,
    read_edges,
    session_edges,
    version_edges,
)

SINGLES_TRIED_MAX: Final = 5_000
"""Edges rw of a component from which a cycle without another one is sought."""
SERIALIZABLE: Final = ("serializable", "strong-session-serializable", "strict-serializable")


def judged_levels(observed: Observed, *, is_timed: bool = True) -> list[str]:
    """Return the levels that are known to hold unless an anomaly breaks them.

    `is_timed`: the history has times. Without them, and if all transactions overlap, real time is
    not known.
    """
    levels = list(OF_REGISTERS)
    if _are_versions_known(observed):
        levels = list(LEVELS)
        if any(len(later) > 1 for later in observed.later.values()):
            levels = _judged_by_serializability(observed)
    has_order = is_timed or bool(_realtime_edges(observed))
    return [level for level in levels if has_order or level not in OF_REALTIME]


def _judged_by_serializability(observed: Observed) -> list[str]:
    """Return the levels up to causal, and those that a serializable history satisfies."""
    graph = _Graph(observed)
    acyclic = [
        level
        for level, edges in zip(SERIALIZABLE, graph.variants(), strict=True)
        if not cyclic_parts(graph.nodes, edges)
    ]
    known = frozenset(OF_REGISTERS).union(*map(implied, acyclic))
    return [level for level in LEVELS if level in known]


def lost_updates(observed: Observed) -> Iterator[Anomaly]:
    """Yield pairs of transactions that read one version of a key and both wrote that key."""
    first: dict[tuple[Any, int, int], int] = {}
    reported: set[tuple[Any, int, int]] = set()
    for reads in observed.reads:
        for _, number, key, writer, length in (
            (read.step, read.txn, read.key, read.writer, read.length) for read in reads
        ):
            version = (key, writer, length)
            if key not in observed.writes[number]:
                continue
            other = first.setdefault(version, number)
            if other != number and version not in reported:
                reported.add(version)
                txns = observed.txns
                message = (
                    f"{txns[other].describe()} and {txns[number].describe()} read one version of"
                    f" {key} and both wrote the next"
                )
                yield Anomaly("lost-update", message, (other, number))


def search_dependencies(observed: Observed, known: Collection[str] = ()) -> list[Found]:
    """Return a cycle of each kind in each component; kinds already `known` are left out.

    Of a kind that is found, the same with sessions or real time is not sought.
    """
    if not any(observed.versions.values()) and not any(observed.later.values()):
        return []
    graph = _Graph(observed)
    if sum(edge.kind == RW for edge in graph.plain) > SINGLES_TRIED_MAX:
        observed.doubts += _undecided_singles(graph)
    found: list[Found] = []
    done = {kind.removesuffix(SESSION) for kind in known}
    for suffix, edges in zip(("", SESSION, REALTIME), graph.variants(), strict=True):
        here = [each for each in _kinds(graph.nodes, edges) if each.kind not in done]
        found += [Found(each.kind + suffix, each.cycle) for each in here]
        done |= {each.kind for each in here}
    return found


class _Graph:
    """The edges between the committed transactions of a history."""

    def __init__(self, observed: Observed) -> None:
        self.nodes = len(observed.txns)
        self.plain = [*version_edges(observed), *read_edges(observed), *_anti(observed)]
        self._so = session_edges(observed)
        self._rt = _realtime_edges(observed)

    def variants(self) -> tuple[list[Edge], list[Edge], list[Edge]]:
        """Return the edges without sessions, with them, and with real time as well."""
        with_sessions = [*self.plain, *self._so]
        return self.plain, with_sessions, [*with_sessions, *self._rt]


def _are_versions_known(observed: Observed) -> bool:
    """Return whether the order of the versions of each key that is written is known."""
    written = {key for last in observed.writes for key in last}
    return bool(written) and written <= observed.versions.keys()


def _anti(observed: Observed) -> list[Edge]:
    """Return an edge from each read to the transaction that wrote the version after it."""
    edges: list[Edge] = []
    place = {
        (key, writer): n
        for key, order in observed.versions.items()
        for n, writer in enumerate(order)
    }
    for reads in observed.reads:
        for read in reads:
            order = observed.versions.get(read.key)
            if order is None:
                continue
            value_at = place.get((read.key, read.writer), -1)
            length = 0 if read.writer == INITIAL else read.length or value_at + 1
            places = range(length, len(order))
            after = next((order[n] for n in places if observed.committed[order[n]]), None)
            writers = observed.later[read.key] if after is None else [after]
            edges += [Edge(read.txn, writer, RW, read.key) for writer in writers]
    return distinct(edges)


def _realtime_edges(observed: Observed) -> list[Edge]:
    """Return the order in real time, reduced: each edge that others imply is left out.

    Sweep over time. The frontier holds the transactions that returned, and that no other one which
    returned was called after.
    """
    events = []
    for number, txn in enumerate(observed.txns):
        if observed.committed[number]:
            events.append((txn.call_ns, 0, number))
            if txn.end_ns != NEVER:
                events.append((txn.end_ns, 1, number))
    edges: list[Edge] = []
    frontier: dict[int, None] = {}
    before: dict[int, tuple[int, ...]] = {}
    for _, is_end, number in sorted(events):
        if not is_end:
            before[number] = tuple(frontier)
            edges += [Edge(earlier, number, RT) for earlier in frontier]
        else:
            for earlier in before.pop(number):
                frontier.pop(earlier, None)
            frontier[number] = None
    return edges


def _kinds(nodes: int, edges: Sequence[Edge]) -> Iterator[Found]:
    """Yield the gravest cycle of each component, and of those inside it without some edges."""
    versions = [edge for edge in edges if edge.kind not in ("wr", RW)]
    known = [edge for edge in edges if edge.kind != RW]
    yield from (Found("G0", cycle) for cycle in cycles(nodes, versions))
    yield from (Found("G1c", cycle) for cycle in cycles(nodes, known) if _has(cycle, "wr"))
    for part in cyclic_parts(nodes, edges):
        anti = [edge for edge in part if edge.kind == RW]
        if not anti:
            continue
        apart = _nonadjacent(part)
        single = None if apart is None else _single(part, anti)
        if single is not None:
            yield Found("G-single-item", single)
        elif apart is not None:
            yield Found("G-nonadjacent-item", apart)
        elif (cycle := shortest(part, lambda edge: edge.kind == RW)) is not None:
            yield Found("G2-item", cycle)


def _undecided_singles(graph: _Graph) -> list[str]:
    """Return a doubt if a component has more edges rw than are tried for a cycle with one."""
    for edges in graph.variants():
        for part in cyclic_parts(graph.nodes, edges):
            anti = [edge for edge in part if edge.kind == RW]
            has_more = len(anti) > SINGLES_TRIED_MAX and _nonadjacent(part) is not None
            if has_more and _single(part, anti) is None:
                return [
                    "whether a cycle has exactly one rw was not decided: a component has"
                    f" {len(anti)} of them, and {SINGLES_TRIED_MAX} were tried"
                ]
    return []


def _has(cycle: Sequence[Edge], kind: str) -> bool:
    return any(edge.kind == kind for edge in cycle)


def _single(part: Sequence[Edge], anti: Sequence[Edge]) -> list[Edge] | None:
    """Return a cycle with exactly one rw; None if there is none among those tried."""
    after: dict[int, list[Edge]] = {}
    for edge in part:
        if edge.kind != RW:
            after.setdefault(edge.source, []).append(edge)
    best: list[Edge] | None = None
    for edge in anti[:SINGLES_TRIED_MAX]:
        path = path_to(after, edge.target, edge.source, len(best or part))
        if path is not None and (best is None or len(path) + 1 < len(best)):
            best = [edge, *path]
    return best


def _nonadjacent(part: Sequence[Edge]) -> list[Edge] | None:
    """Return a cycle without two adjacent rw; None if there is none."""
    nodes = {node: n for n, node in enumerate({e.source for e in part} | {e.target for e in part})}
    twice: list[Edge] = []
    origin: dict[tuple[int, int], Edge] = {}
    for edge in part:
        source, target = 2 * nodes[edge.source], 2 * nodes[edge.target]
        ends = [(source, target + 1)] if edge.kind == RW else [
            (source, target), (source + 1, target),
        ]  # fmt: skip
        for pair in ends:
            if pair not in origin:
                origin[pair] = edge
                twice.append(Edge(*pair, edge.kind))
    found = cycles(2 * len(nodes), twice)
    if not found:
        return None
    return [origin[edge.source, edge.target] for edge in min(found, key=len)]
