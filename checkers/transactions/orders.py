"""Levels that ask for an order of transactions, where reads do not show the order of versions.

From the strongest to the weakest: what holds for one holds for all that it implies, and of those
that are broken the weakest are accused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shaketable.checkers.transactions import real_time
from shaketable.checkers.transactions.dependencies import anti_edges
from shaketable.checkers.transactions.graph import Edges
from shaketable.checkers.transactions.levels import BREAKS, REALTIME, SESSION, implied, weakest
from shaketable.checkers.transactions.observed import Observed
from shaketable.checkers.transactions.polygraph import (
    Lemma,
    Order,
    Polygraph,
    UndecidedError,
    choices_of,
    first_reads,
    solve,
)
from shaketable.checkers.transactions.weak_levels import WeakLevels


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
    has_order = is_timed or real_time.has_order(observed.txns, observed.committed)
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
                rt = real_time.reduced(observed.txns, observed.committed)
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
