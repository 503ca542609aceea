"""Which of two transactions wrote a key first, where no read says it: a choice for each pair.

A history satisfies serializability, snapshot isolation or prefix consistency iff each choice can be
made so that the dependencies have no cycle that the level forbids. An alternative "t before s"
brings the edge from t to s, and one from each transaction that read t's version to s. Where a
transaction's start and its commit are nodes of their own, the three levels differ only in what an
edge joins:

- serializable: start and commit are one node;
- snapshot isolation: a read, and a version, must have been committed when the next one started; who
  did not see a version started before it was committed;
- prefix consistency: the same, but two transactions that wrote one key may have overlapped.

First the known edges decide what they can: an alternative that closes a cycle is out, and its twin
is an edge that is known from then on. What is left is for a SAT solver, which is told of cycles as
they come up: solve, look for cycles, forbid them, and again.

An accusation is proven without the solver. Each step that was taken is a *lemma*, some alternatives
which cannot all be taken because they close a cycle; a few lemmas that no choice satisfies are the
evidence, and a search of our own sees that none does.

Levels are tried from the strongest to the weakest: what holds for one holds for all that it
implies, and of those that are broken the weakest are accused.

Sources: Papadimitriou 1979 (polygraphs); PolySI (arXiv 2301.07313) and Viper (EuroSys 2023);
Biswas & Enea, OOPSLA 2019 (prefix consistency), Cerone & Gotsman 2016 (snapshot isolation).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions.forced import topological
from shaketable.checkers.kernels.transactions.graphs import (
    Graph,
    closing,
    reachable,
    shortest_cycles,
)
from shaketable.checkers.kernels.transactions.reads import INITIAL
from shaketable.checkers.transactions import graph
from shaketable.checkers.transactions.forbidden_cycles import (
    REALTIME,
    SESSION,
    WeakLevels,
    anti_edges,
    weakest,
)
from shaketable.checkers.transactions.graph import RW, WW, Edge, Edges, number_parts
from shaketable.checkers.transactions.observed import Observed
from shaketable.harness.contracts.isolation import BREAKS, implied

Ints = npt.NDArray[np.int64]
NODES_MAX: Final = 12_000
"""Of a graph: a bit for each pair of them is 18 MB."""
CHOICES_MAX: Final = 100_000
"""Pairs of transactions that wrote one key."""
ROUNDS_MAX: Final = 2_000
"""Answers of the solver that are looked through for cycles."""
CONFLICTS_MAX: Final = 200_000
"""Of the solver, in all rounds."""
PROOF_STEPS_MAX: Final = 20_000
"""Of the search that proves an accusation."""
REASONS_MAX: Final = 20_000
"""Lemmas from which the evidence of an accusation is chosen."""
MINIMAL_MAX: Final = 200
"""Lemmas of an accusation of which each is tried to be left out."""
CYCLES_A_ROUND: Final = 64
"""Cycles of one answer of the solver that it is told."""
SOLVER: Final = "glucose4"
FIRST_ROUND: Final = 0


class Order(Enum):
    """A level that asks for an order: see the module."""

    SERIAL = "serial"
    SNAPSHOT = "snapshot"
    PREFIX = "prefix"

    @property
    def is_split(self) -> bool:
        """Whether start and commit are nodes of their own."""
        return self is not Order.SERIAL

    def ends(self, kind: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return the nodes that edges of a kind join; the start of n is 2n, its commit 2n + 1."""
        if not self.is_split:
            return source, target
        if kind == RW:
            return 2 * source, 2 * target + 1
        overlaps = kind == WW and self is Order.PREFIX
        return 2 * source + 1, 2 * target + (1 if overlaps else 0)


class Choice(NamedTuple):
    """Two transactions that wrote a key: one of them wrote it first."""

    key: int
    first: int
    second: int


class Lemma(NamedTuple):
    """Alternatives that cannot all be taken: with known edges they close a cycle.

    `taken`: for each choice whether the first of its transactions came first.
    """

    taken: frozenset[tuple[int, bool]]
    cycle: tuple[Edge, ...]


class UndecidedError(Exception):
    """A limit was reached."""


@dataclass(frozen=True, slots=True)
class Polygraph:
    """The choices of one history, and the edges that each alternative brings.

    Attributes:
        nodes: how many transactions there are.
        choices: all of them.
        edges: those of all alternatives; `of` is the choice of each, `is_first` whether it belongs
            to the alternative that the choice's first transaction came first.
    """

    nodes: int
    choices: tuple[Choice, ...]
    edges: Edges
    of: Ints
    is_first: npt.NDArray[np.bool_]


def choices_of(observed: Observed) -> Polygraph:
    """Return the choices where the order of versions is not known.

    In lists these are the transactions whose elements no read shows.

    Raises:
        UndecidedError: there are more than CHOICES_MAX.
    """
    entries, reads = observed.entries, observed.reads
    unknown = ~observed.versions.is_known
    versions = observed.versions
    unread = np.repeat(np.arange(len(unknown)), np.diff(versions.later_starts))
    mine = np.flatnonzero(unknown[entries.key])
    of_key = np.concatenate((entries.key[mine], unread))
    count = np.bincount(of_key)
    if int((count * (count - 1) // 2).sum()) > CHOICES_MAX:
        raise UndecidedError(f"more than {CHOICES_MAX:,} pairs of transactions wrote one key")
    writers: dict[int, list[int]] = {}
    by = np.concatenate((entries.txn[mine], versions.later))
    for txn, key in zip(by.tolist(), of_key.tolist(), strict=True):
        writers.setdefault(key, []).append(txn)
    readers: dict[tuple[int, int], list[int]] = {}
    for txn, key, writer in zip(*map(np.ndarray.tolist, reads[:3]), strict=True):
        if unknown[key] and writer != INITIAL:
            readers.setdefault((key, writer), []).append(txn)
    choices: list[Choice] = []
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for key, txns in sorted(writers.items()):
        for first, second in combinations(sorted(set(txns)), 2):
            for source, target, is_first in ((first, second, True), (second, first, False)):
                rows.append((source, target, WW, key, len(choices), is_first))
                rows += [
                    (reader, target, RW, key, len(choices), is_first)
                    for reader in dict.fromkeys(readers.get((key, source), ()))
                    if reader != target
                ]
            choices.append(Choice(key, first, second))
    table = np.array(rows, np.int64).reshape(-1, 6)
    edges = Edges(
        table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.int8),
        table[:, 3].astype(np.int32), np.full(len(table), -1, np.int32),
    )  # fmt: skip
    return Polygraph(
        len(observed.txns), tuple(choices), edges, table[:, 4].copy(), table[:, 5] == 1
    )


def first_reads(observed: Observed) -> Edges:
    """Return an edge from each read of what a key held at first to all that wrote the key.

    Only of keys whose versions are not known.
    """
    entries, reads = observed.entries, observed.reads
    unknown = ~observed.versions.is_known
    mine = np.flatnonzero((reads.writer == INITIAL) & unknown[reads.key])
    order = np.argsort(entries.key, kind="stable")
    keys = entries.key[order]
    start = np.searchsorted(keys, reads.key[mine])
    count = np.searchsorted(keys, reads.key[mine], side="right") - start
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    target = entries.txn[order[np.repeat(start, count) + offset]]
    return Edges.of(
        RW, np.repeat(reads.txn[mine], count), target, np.repeat(reads.key[mine], count)
    )


@dataclass(slots=True)
class Solved:
    """Whether an order exists; if none does, the lemmas that show it.

    `is_possible`: None if a limit was reached, and `why` says which.
    """

    is_possible: bool | None
    lemmas: tuple[Lemma, ...] = ()
    why: str = ""


def solve(polygraph: Polygraph, known: Edges, order: Order, is_over: Callable[[], bool]) -> Solved:
    """Decide whether choices exist that leave no cycle.

    Args:
        polygraph: the choices.
        known: the edges that hold whatever is chosen.
        order: the level.
        is_over: whether the time is over.
    """
    try:
        return _Solver(polygraph, known, order, is_over).solve()
    except UndecidedError as undecided:
        return Solved(None, why=str(undecided))


@dataclass(slots=True)
class _Arcs:
    """Edges between nodes of one level; `origin` is the edge of the history, `of` its choice.

    `round`: when it became known; edges of alternatives that are open have none (NEVER).
    """

    source: Ints
    target: Ints
    origin: Ints
    of: Ints
    is_first: npt.NDArray[np.bool_]
    round: Ints
    unnamed: tuple[Any, ...]
    """What Edges have besides."""


_NEVER: Final = 2**62
_NO_CHOICE: Final = -1


@dataclass(slots=True)
class _State:
    """What is decided: for each choice whether its first transaction came first, -1 if open."""

    taken: npt.NDArray[np.int8]
    why: dict[int, int] = field(default_factory=dict)
    """For each choice that known edges decided, an arc of the alternative that is out."""


class _Solver:
    """Solves one polygraph for one level."""

    def __init__(
        self, polygraph: Polygraph, known: Edges, order: Order, is_over: Callable[[], bool]
    ) -> None:
        self._graph, self._order, self._is_over = polygraph, order, is_over
        self._nodes = polygraph.nodes * (2 if order.is_split else 1)
        self._edges = Edges.joined(known, polygraph.edges)
        self._arcs = self._arcs_of(len(known))
        self._state = _State(np.full(len(polygraph.choices), -1, np.int8))

    def solve(self) -> Solved:
        """Decide by known edges, then by the solver."""
        impossible = self._known_cycle()
        if impossible is None and self._graph.choices:
            if self._nodes > NODES_MAX:
                raise UndecidedError(f"more than {NODES_MAX:,} starts and commits of transactions")
            impossible = self._propagate() or self._search()
        if impossible is None:
            return Solved(True)
        lemmas = _core(self._with_reasons(impossible))
        if not is_refuted(lemmas):
            raise UndecidedError("what excludes every order is too large to be proven")
        return Solved(False, tuple(lemmas))

    def _arcs_of(self, known: int) -> _Arcs:
        edges = self._edges
        source, target = np.empty_like(edges.source), np.empty_like(edges.target)
        for kind in np.unique(edges.kind).tolist():
            mine = edges.kind == kind
            source[mine], target[mine] = self._order.ends(
                kind, edges.source[mine], edges.target[mine]
            )
        count = self._graph.nodes if self._order.is_split else 0
        start = 2 * np.arange(count)
        of = np.concatenate(
            (np.full(known, _NO_CHOICE), self._graph.of, np.full(count, _NO_CHOICE))
        )
        return _Arcs(
            np.concatenate((source, start)),
            np.concatenate((target, start + 1)),
            np.concatenate((np.arange(len(edges)), np.full(count, -1))),
            of,
            np.concatenate((np.zeros(known, np.bool_), self._graph.is_first, start < 0)),
            np.where(of == _NO_CHOICE, FIRST_ROUND, _NEVER),
            (np.zeros(len(of), np.int8), *(np.zeros(len(of), np.int32) for _ in range(2))),
        )  # fmt: skip

    def _known_cycle(self) -> list[Lemma] | None:
        known = np.flatnonzero(self._arcs.of < 0)
        cycles = self._cycles(known, 1)
        return [self._lemma(cycles[0])] if cycles else None

    def _propagate(self) -> list[Lemma] | None:
        """Decide choices by known edges, to a fixpoint; lemmas that cannot all hold, or None."""
        arcs, taken = self._arcs, self._state.taken
        for number in range(1, len(taken) + 2):
            if self._is_over():
                raise UndecidedError("the time budget was used up")
            now = np.flatnonzero(arcs.round < number)
            order = np.empty(self._nodes, np.int64)
            if topological(arcs.source[now], arcs.target[now], self._nodes, order) < self._nodes:
                return [self._lemma(self._cycles(now, 1)[0])]
            reached = reachable(arcs.source[now], arcs.target[now], self._nodes, order)
            still = np.flatnonzero(arcs.round == _NEVER)
            still = still[taken[arcs.of[still]] < 0]
            closes = np.zeros(len(still), np.bool_)
            closing(reached, arcs.source[still], arcs.target[still], closes)
            if not closes.any():
                return None
            clash = self._decide(still[closes], number)
            if clash is not None:
                return clash
        return None

    def _decide(self, out: Ints, number: int) -> list[Lemma] | None:
        """Take the twins of the alternatives that arcs `out` exclude; lemmas if both are out."""
        arcs, state = self._arcs, self._state
        decided: dict[int, tuple[int, bool]] = {}
        for arc in out.tolist():
            choice, is_first = int(arcs.of[arc]), bool(arcs.is_first[arc])
            before = decided.setdefault(choice, (arc, is_first))
            if before[1] != is_first:
                return [self._closed_by(before[0], number), self._closed_by(arc, number)]
        for choice, (arc, is_first) in decided.items():
            state.taken[choice] = not is_first
            state.why[choice] = arc
        mine = np.flatnonzero(arcs.round == _NEVER)
        now = state.taken[arcs.of[mine]] == arcs.is_first[mine]
        arcs.round[mine[now]] = number
        return None

    def _closed_by(self, arc: int, number: int) -> Lemma:
        """Return the lemma that an alternative closes a cycle of what was known by then."""
        known = np.flatnonzero(self._arcs.round < number)
        return self._lemma(
            self._through(np.array([arc]), known, np.zeros(self._nodes, np.int64))[0]
        )

    def _cycles(self, among: Ints, most: int) -> list[list[int]]:
        """Return up to `most` cycles of some arcs, each a shortest one through an arc of its own.

        Those of open choices come first, from all components; none only if there is no cycle.
        """
        arcs = self._arcs
        edges = Edges(*(column[among] for column in (arcs.source, arcs.target, *arcs.unnamed)))
        part, count = number_parts(self._nodes, edges)
        if not count:
            return []
        source, target = part[arcs.source[among]], part[arcs.target[among]]
        inside = among[(source >= 0) & (source == target)]
        chosen = inside[arcs.round[inside] == _NEVER]
        first = chosen if len(chosen) else inside
        step = max(1, len(first) // most)
        return self._through(first[::step][:most], inside, part)

    def _through(self, first: Ints, usable: Ints, part: Ints) -> list[list[int]]:
        """Return for each of some arcs a shortest cycle with others, inside its component."""
        arcs = self._arcs
        usable = usable[np.argsort(arcs.source[usable], kind="stable")]
        starts = np.searchsorted(arcs.source[usable], np.arange(self._nodes + 1))
        graph = Graph(arcs.source, arcs.target, part, starts, usable)
        found = np.empty(len(first) * (self._nodes + 1), np.int64)
        bounds = shortest_cycles(
            graph, first, np.arange(len(first) + 1), np.array((1, _NEVER)), found,
            np.zeros(len(first), np.bool_),
        ).tolist()  # fmt: skip
        return [found[start:stop].tolist() for start, stop in pairwise(bounds) if stop > start]

    def _lemma(self, cycle: Sequence[int]) -> Lemma:
        arcs = self._arcs
        taken = frozenset(
            (int(arcs.of[arc]), bool(arcs.is_first[arc])) for arc in cycle if arcs.of[arc] >= 0
        )
        edges = tuple(
            self._edges.edge(int(arcs.origin[arc])) for arc in cycle if arcs.origin[arc] >= 0
        )
        return Lemma(taken, edges)

    def _search(self) -> list[Lemma] | None:
        """Let the solver choose what is left; lemmas that cannot all hold, or None."""
        from pysat.solvers import Solver  # noqa: PLC0415 - few histories need it

        still = np.flatnonzero(self._state.taken < 0)
        if not len(still):
            return None
        lemmas: list[Lemma] = []
        with Solver(name=SOLVER) as solver:
            # In the order of their calls, all choices agree: a good first guess.
            solver.set_phases([int(choice) + 1 for choice in still])
            solver.conf_budget(CONFLICTS_MAX)
            for _ in range(ROUNDS_MAX):
                if self._is_over():
                    raise UndecidedError("the time budget was used up")
                answer = solver.solve_limited()
                if answer is None:
                    raise UndecidedError(f"the solver met {CONFLICTS_MAX:,} conflicts")
                if not answer:
                    return lemmas
                fresh = self._closed_cycles(still, solver.get_model() or ())
                if not fresh:
                    return None
                lemmas += fresh
                for lemma in fresh:
                    solver.add_clause(self._clause(lemma))
        raise UndecidedError(f"the solver took {ROUNDS_MAX:,} rounds")

    def _clause(self, lemma: Lemma) -> list[int]:
        """Return a lemma for the solver, without the choices that known edges decided."""
        return [
            -(choice + 1) if is_first else choice + 1
            for choice, is_first in sorted(lemma.taken)
            if self._state.taken[choice] < 0
        ]

    def _closed_cycles(self, still: Ints, model: Iterable[int]) -> list[Lemma]:
        """Return what is wrong with an answer of the solver; what it leaves open is not first."""
        arcs = self._arcs
        chosen = self._state.taken.copy()
        chosen[still] = 0
        for literal in model:
            if literal > 0 and literal <= len(chosen):
                chosen[literal - 1] = 1
        is_taken = (arcs.of < 0) | (chosen[np.maximum(arcs.of, 0)] == arcs.is_first)
        cycles = self._cycles(np.flatnonzero(is_taken), CYCLES_A_ROUND)
        return list(dict.fromkeys(map(self._lemma, cycles)))

    def _with_reasons(self, lemmas: Iterable[Lemma]) -> list[Lemma]:
        """Add the lemmas by which known edges decided the choices that lemmas depend on."""
        found: dict[Lemma, None] = {}
        waiting = list(lemmas)
        done: set[int] = set()
        while waiting:
            lemma = waiting.pop()
            if lemma in found:
                continue
            found[lemma] = None
            for choice, _ in sorted(lemma.taken):
                if choice in self._state.why and choice not in done:
                    done.add(choice)
                    arc = self._state.why[choice]
                    when = int(self._arcs.round[self._arcs.of == choice].min())
                    waiting.append(self._closed_by(arc, when))
            if len(found) > REASONS_MAX:
                raise UndecidedError("what excludes every order is too large to be proven")
        return list(found)


def literals(lemma: Lemma) -> list[int]:
    """Return a lemma as a clause: choice n, first before second, is the literal n + 1."""
    return [-(choice + 1) if is_first else choice + 1 for choice, is_first in sorted(lemma.taken)]


def _core(lemmas: list[Lemma]) -> list[Lemma]:
    """Return few of some lemmas that cannot all hold; of a small core none can be left out."""
    core = lemmas
    while len(smaller := _used(core)) < len(core):
        core = smaller
    for lemma in list(core) if len(core) <= MINIMAL_MAX else ():
        rest = [each for each in core if each is not lemma]
        if rest and len(_used(rest)):
            core = rest
    return core


def _used(lemmas: Sequence[Lemma]) -> list[Lemma]:
    """Return the lemmas by which the solver finds that not all can hold; none if they can."""
    from pysat.solvers import Solver  # noqa: PLC0415 - few histories need it

    first = 2 + max((choice for lemma in lemmas for choice, _ in lemma.taken), default=0)
    with Solver(name=SOLVER) as solver:
        for number, lemma in enumerate(lemmas):
            solver.add_clause([*literals(lemma), -(first + number)])
        solver.conf_budget(CONFLICTS_MAX)
        answer = solver.solve_limited(assumptions=[first + number for number in range(len(lemmas))])
        core = (solver.get_core() or []) if answer is False else []
        return [lemmas[literal - first] for literal in sorted(core)]


def is_refuted(lemmas: Iterable[Lemma]) -> bool:
    """Return whether a search without the solver sees that no choice satisfies all lemmas.

    It takes what must be taken, then tries both ways of one choice. False if it takes more than
    PROOF_STEPS_MAX.
    """
    waiting: list[dict[int, bool]] = [{}]
    clauses = [literals(lemma) for lemma in lemmas]
    for _ in range(PROOF_STEPS_MAX):
        if not waiting:
            return True
        taken = waiting.pop()
        open_choice = _take_all(clauses, taken)
        if open_choice is None:
            continue
        if open_choice == 0:
            return False
        waiting += [{**taken, open_choice: True}, {**taken, open_choice: False}]
    return False


def _take_all(clauses: Iterable[list[int]], taken: dict[int, bool]) -> int | None:
    """Take what must be taken; return an open choice, 0 if there is none, None if all is out."""
    is_news = True
    open_choice = 0
    while is_news:
        is_news, open_choice = False, 0
        for clause in clauses:
            if any(taken.get(abs(literal)) == (literal > 0) for literal in clause):
                continue
            left = [literal for literal in clause if abs(literal) not in taken]
            if not left:
                return None
            if len(left) == 1:
                taken[abs(left[0])] = left[0] > 0
                is_news = True
            else:
                open_choice = abs(left[0])
    return open_choice


# Levels that ask for an order of transactions.


class _Level(NamedTuple):
    """A level by its name, the order that it asks for, and what a violation is called."""

    name: str
    order: Order
    anomaly: str

    @property
    def has_sessions(self) -> bool:
        """Whether it respects the order of sessions."""
        return self.has_time or self.anomaly.endswith(SESSION) or self.order is Order.PREFIX

    @property
    def has_time(self) -> bool:
        """Whether it respects real time."""
        return self.anomaly.endswith(REALTIME)


_LEVELS: Final = (
    _Level("strict-serializable", Order.SERIAL, "no-serial-order-realtime"),
    _Level("strong-session-serializable", Order.SERIAL, "no-serial-order-process"),
    _Level("serializable", Order.SERIAL, "no-serial-order"),
    _Level("strong-snapshot-isolation", Order.SNAPSHOT, "no-snapshot-order-realtime"),
    _Level("strong-session-snapshot-isolation", Order.SNAPSHOT, "no-snapshot-order-process"),
    _Level("snapshot-isolation", Order.SNAPSHOT, "no-snapshot-order"),
    _Level("prefix-consistency", Order.PREFIX, "no-prefix-order"),
)


@dataclass(slots=True)
class Decided:
    """What was decided of levels that ask for an order.

    Attributes:
        holds: levels that hold.
        excluded: anomalies that break levels, with the lemmas that show it.
        choices: what the lemmas speak of.
        undecided: why levels could not be decided, by their names.
    """

    holds: set[str] = field(default_factory=set)
    excluded: dict[str, tuple[Lemma, ...]] = field(default_factory=dict)
    choices: Polygraph | None = None
    undecided: dict[str, str] = field(default_factory=dict)


def decide_orders(
    observed: Observed,
    weak: WeakLevels,
    judged: Collection[str],
    broken: Collection[str],
    is_over: Callable[[], bool],
    *,
    is_timed: bool = True,
) -> Decided:
    """Decide the levels that ask for an order and are not `judged` yet, nor known to be `broken`.

    `is_timed`: the history has times. Without them, and if all transactions overlap, real time is
    not known.
    """
    decided = Decided()
    has_order = is_timed or graph.has_order(observed.txns, observed.committed)
    left = [
        each
        for each in _LEVELS
        if each.name not in judged and each.name not in broken and (has_order or not each.has_time)
    ]
    if not left:
        return decided
    try:
        decided.choices = choices_of(observed)
    except UndecidedError as why:
        decided.undecided = {each.name: str(why) for each in left}
        return decided
    plain = Edges.joined(weak.ww, weak.wr, anti_edges(observed), first_reads(observed))
    rt = None
    failed: dict[str, tuple[_Level, tuple[Lemma, ...]]] = {}
    for level in left:
        if level.name in decided.holds:
            continue
        known = Edges.joined(plain, weak.so) if level.has_sessions else plain
        if level.has_time:
            if rt is None:
                rt = graph.reduced(observed.txns, observed.committed)
            known = Edges.joined(known, rt)
        found = solve(decided.choices, known, level.order, is_over)
        if found.is_possible:
            decided.holds |= implied(level.name)
        elif found.is_possible is None:
            decided.undecided[level.name] = found.why
        else:
            failed[level.name] = (level, found.lemmas)
    for name in weakest(failed):
        level, lemmas = failed[name]
        assert BREAKS[level.anomaly] == (name,), "an anomaly is named after the level it breaks"
        decided.excluded[level.anomaly] = lemmas
    return decided
