"""Isolation levels by exhaustive search over the definitions; shares no code with the checker.

Sources: Biswas & Enea, OOPSLA 2019 (the axioms of read committed, here monotonic atomic view, read
atomic and causal); Cerone & Gotsman 2016 and Berenson et al. 1995 (snapshot isolation, and prefix
consistency, by starts and commits).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

Step = tuple[str, str, Any]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Txn:
    """A transaction: session, call, return, outcome, steps."""

    process: int
    call: int
    end: int
    outcome: str
    steps: tuple[Step, ...]


def draw(seed: int, *, lists: bool, count_max: int = 4) -> list[Txn]:
    """Draw a small history; most of its reads could have been answered so by a weak system."""
    rng = random.Random(seed)
    count = rng.randint(2, count_max)
    keys = "xyz"[: rng.randint(1, 3)]
    sessions = rng.randint(1, count)
    value = 0
    plans: list[list[list[Any]]] = []
    for _ in range(count):
        plan = []
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.5:
                value += 1
                plan.append(["append" if lists else "w", rng.choice(keys), value])
            else:
                plan.append(["r", rng.choice(keys), None])
        plans.append(plan)
    failed = [rng.random() < 0.06 for _ in plans]
    answer = _list_answers if lists else _register_answers
    answer(rng, plans, failed)
    txns, now = [], [0] * sessions
    order = list(range(count))
    for number in order:
        process = rng.randrange(sessions)
        call = now[process] + rng.randint(1, 12)
        end = call + rng.randint(1, 30)
        now[process] = end
        outcome = "fail" if failed[number] else "ok"
        steps = tuple((f, key, given) for f, key, given in plans[number])
        txns.append(Txn(process, call, end, outcome, steps))
    return txns


def _register_answers(rng: random.Random, plans: list[list[list[Any]]], failed: list[bool]) -> None:
    for plan in plans:
        own: dict[str, Any] = {}
        for step in plan:
            if step[0] == "w":
                own[step[1]] = step[2]
            elif step[1] in own and rng.random() < 0.95:
                step[2] = own[step[1]]
            else:
                others = [
                    last
                    for other, is_failed in zip(plans, failed, strict=True)
                    if other is not plan and (not is_failed or rng.random() < 0.1)
                    for last in [next((s[2] for s in other[::-1] if s[:2] == ["w", step[1]]), None)]
                    if last is not None
                ]
                step[2] = rng.choice([None, *others])
                own.setdefault(step[1], step[2]) if rng.random() < 0.8 else None


def _list_answers(rng: random.Random, plans: list[list[list[Any]]], failed: list[bool]) -> None:
    order: dict[str, list[tuple[int, Any]]] = {}
    for number in rng.sample(range(len(plans)), len(plans)):
        for f, key, given in plans[number]:
            if f == "append" and (not failed[number] or rng.random() < 0.1):
                order.setdefault(key, []).append((number, given))
    for number, plan in enumerate(plans):
        seen: dict[str, list[Any]] = {}
        own: dict[str, list[Any]] = {}
        for step in plan:
            f, key, given = step
            if f == "append":
                own.setdefault(key, []).append(given)
                continue
            elements = order.get(key, [])
            place = next((n for n, each in enumerate(elements) if each[0] == number), None)
            if key in own and place is not None:
                step[2] = [each for _, each in elements[:place]] + own[key]
            elif key in seen and rng.random() < 0.9:
                step[2] = seen[key] + own.get(key, [])
            else:
                end = rng.randint(0, len(elements) if place is None else place)
                seen[key] = [each for _, each in elements[:end]]
                step[2] = seen[key] + own.get(key, [])


class Exhaustive:
    """Decides the levels of one history whose reads are each of a committed, last write."""

    def __init__(self, txns: Sequence[Txn], *, lists: bool) -> None:
        self.txns = txns
        self.live = [n for n, txn in enumerate(txns) if txn.outcome == "ok"]
        self.is_list = lists
        self.writer = {
            (key, given): n
            for n, txn in enumerate(txns) for f, key, given in txn.steps if f != "r"
        }  # fmt: skip
        self.last = [{key: given for f, key, given in txn.steps if f != "r"} for txn in txns]
        self.reads = [self._external(n) if n in self.live else [] for n in range(len(txns))]
        self.before = {
            n: {m for m in self.live if m < n and txns[m].process == txns[n].process}
            for n in self.live
        }

    def _external(self, number: int) -> list[tuple[str, Any]]:
        found, own, appended = [], set(), {}
        for f, key, given in self.txns[number].steps:
            if f == "w":
                own.add(key)
            elif f == "append":
                appended.setdefault(key, []).append(given)
            elif key not in own:
                mine = len(appended.get(key, ()))
                found.append((key, tuple(given[: len(given) - mine]) if self.is_list else given))
        return found

    def writer_of(self, key: str, seen: Any) -> int | None:
        """Return who wrote what was seen; None: it was there at first."""
        version = (seen[-1] if seen else None) if self.is_list else seen
        return None if version is None else self.writer[key, version]

    def is_plain(self) -> bool:
        """Return whether each read is of a committed, last write of another, and repeatable."""
        return all(self._is_plain(number) for number in self.live)

    def _is_plain(self, number: int) -> bool:
        own: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        for f, key, given in self.txns[number].steps:
            if f == "w":
                own[key] = given
            elif f == "append":
                own[key] = [*own.get(key, ()), given]
            elif key in own and not self.is_list:
                if own[key] != given:
                    return False
            else:
                mine = own.get(key, [])
                if mine and given[len(given) - len(mine) :] != mine:
                    return False
                of_others = tuple(given[: len(given) - len(mine)]) if self.is_list else given
                is_same = seen.setdefault(key, of_others) == of_others
                if not is_same or not self._is_of_others(number, key, of_others):
                    return False
        return True

    def _is_of_others(self, number: int, key: str, seen: Any) -> bool:
        elements = [each for each in (seen if self.is_list else [seen]) if each is not None]
        writers = [self.writer.get((key, each)) for each in elements]
        if any(n in (None, number) or self.txns[n or 0].outcome != "ok" for n in writers):
            return False
        return not elements or self.last[writers[-1] or 0][key] == elements[-1]

    def versions(self) -> list[tuple[int, int]]:
        """Return pairs of transactions whose order of versions lists show."""
        pairs = []
        for key in {key for last in self.last for key in last} if self.is_list else ():
            lists = [seen for reads in self.reads for k, seen in reads if k == key]
            full = [
                tuple(given) for n in self.live for f, k, given in self.txns[n].steps
                if f == "r" and k == key
            ]  # fmt: skip
            longest = max([*lists, *full], key=len, default=())
            order = [self.writer[key, each] for each in longest]
            unread = [n for n in self.live if key in self.last[n] and n not in order]
            pairs += [(a, b) for n, a in enumerate(order) for b in order[n + 1 :] if a != b]
            pairs += [(a, b) for a in order for b in unread]
        return pairs

    def orders(self, pairs: Sequence[tuple[int, int]]) -> Iterator[dict[int, int]]:
        """Yield all orders of the committed transactions that agree with these pairs."""
        for order in permutations(self.live):
            place = {n: at for at, n in enumerate(order)}
            if all(place[a] < place[b] for a, b in pairs):
                yield place

    def weak(self, level: str, *, sessions: bool) -> bool:
        """Return whether a level up to causal holds, by its axiom."""
        wr = [
            (writer, n) for n in self.live for key, seen in self.reads[n]
            if (writer := self.writer_of(key, seen)) is not None
        ]  # fmt: skip
        so = [(m, n) for n in self.live for m in self.before[n]] if sessions else []
        reach = _closure([*wr, *so])
        forced = []
        for n in self.live:
            for at, (key, seen) in enumerate(self.reads[n]):
                writer = self.writer_of(key, seen)
                for other in self.live:
                    if other in (writer, n) or key not in self.last[other]:
                        continue
                    earlier = [self.writer_of(*read) for read in self.reads[n][:at]]
                    sees = {
                        "monotonic-atomic-view": other in earlier,
                        "read-atomic": (other, n) in wr or (other, n) in so,
                        "causal": (other, n) in reach,
                    }[level]
                    if sees:
                        forced.append((other, writer))
        if any(writer is None for _, writer in forced):
            return False
        return any(True for _ in self.orders([*wr, *so, *self.versions(), *forced]))

    def serial(self, how: str) -> bool:
        """Return whether some serial order answers all reads; how: "", session or strict."""
        for place in self.orders([*self._must(how), *self.versions()]):
            if self._replays(sorted(self.live, key=place.__getitem__)):
                return True
        return False

    def _must(self, how: str) -> list[tuple[int, int]]:
        pairs = [(m, n) for n in self.live for m in self.before[n]] if how else []
        if how == "strict":
            pairs += [
                (m, n) for m in self.live for n in self.live
                if self.txns[m].end < self.txns[n].call
            ]  # fmt: skip
        return pairs

    def _replays(self, order: Sequence[int]) -> bool:
        state: dict[str, Any] = {}
        for n in order:
            for f, key, given in self.txns[n].steps:
                if f == "w":
                    state[key] = given
                elif f == "append":
                    state[key] = (*state.get(key, ()), given)
                elif self._frozen(given) != state.get(key, () if self.is_list else None):
                    return False
        return True

    def _frozen(self, given: Any) -> Any:
        return tuple(given) if self.is_list else given

    def snapshot(self, how: str, *, may_overlap: bool = False) -> bool:
        """Return whether starts and commits exist that snapshot isolation allows.

        `may_overlap`: those that prefix consistency allows: writers of one key may overlap.
        """
        must = self._must(how)
        return any(
            all(place[a, 1] < place[b, 0] for a, b in must)
            and (may_overlap or self._are_apart(place))
            and self._snapshots(place)
            for place in self._intervals()
        )

    def _intervals(self) -> Iterator[dict[tuple[int, int], int]]:
        def extend(
            done: tuple[tuple[int, int], ...], waiting: frozenset[int], started: frozenset[int]
        ) -> Iterator[tuple[tuple[int, int], ...]]:
            if not waiting and not started:
                yield done
            for n in sorted(waiting):
                yield from extend((*done, (n, 0)), waiting - {n}, started | {n})
            for n in sorted(started):
                yield from extend((*done, (n, 1)), waiting, started - {n})

        for events in extend((), frozenset(self.live), frozenset()):
            yield {event: at for at, event in enumerate(events)}

    def _are_apart(self, place: dict[tuple[int, int], int]) -> bool:
        for a in self.live:
            for b in self.live:
                overlap = place[a, 0] < place[b, 1] and place[b, 0] < place[a, 1]
                if a < b and overlap and self.last[a].keys() & self.last[b].keys():
                    return False
        return True

    def _snapshots(self, place: dict[tuple[int, int], int]) -> bool:
        for n in self.live:
            state: dict[str, Any] = {}
            for m in sorted(self.live, key=lambda each: place[each, 1]):
                if place[m, 1] < place[n, 0]:
                    for f, key, given in self.txns[m].steps:
                        if f != "r":
                            state[key] = (*state.get(key, ()), given) if f == "append" else given
            if any(state.get(key, () if self.is_list else None) != seen
                   for key, seen in self.reads[n]):  # fmt: skip
                return False
        order = sorted(self.live, key=lambda each: place[each, 1])
        at = {n: k for k, n in enumerate(order)}
        return all(at[a] < at[b] for a, b in self.versions())


def _closure(pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    found = set(pairs)
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


LEVELS: dict[str, Callable[[Exhaustive], bool]] = {
    "monotonic-atomic-view": lambda it: it.weak("monotonic-atomic-view", sessions=False),
    "strong-session-monotonic-atomic-view": lambda it: it.weak(
        "monotonic-atomic-view", sessions=True
    ),
    "read-atomic": lambda it: it.weak("read-atomic", sessions=False),
    "strong-session-read-atomic": lambda it: it.weak("read-atomic", sessions=True),
    "causal": lambda it: it.weak("causal", sessions=True),
}
STRONG: dict[str, Callable[[Exhaustive], bool]] = {
    "prefix-consistency": lambda it: it.snapshot("session", may_overlap=True),
    "snapshot-isolation": lambda it: it.snapshot(""),
    "strong-session-snapshot-isolation": lambda it: it.snapshot("session"),
    "strong-snapshot-isolation": lambda it: it.snapshot("strict"),
    "serializable": lambda it: it.serial(""),
    "strong-session-serializable": lambda it: it.serial("session"),
    "strict-serializable": lambda it: it.serial("strict"),
}
