"""The objects that models describe, once more and as plainly as can be, for brute force alone.

Nothing here is shared with the checkers: neither their models nor how they see operations. A state
is any hashable value; an operation leads from it to no state, to one, or (where its answer is not
known, and something was taken out) to several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
State = Any
After = Callable[[State, Row, bool], Iterable[State]]
"""(state, operation, whether its answer is known) -> the states that it may leave."""


def given(row: Row, name: str) -> Any:
    """Return what a column holds, or `extra` in its place."""
    extra = json.loads(row["extra"] or "{}")
    return extra.get(name, row[name])


def register(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "write":
        return [given(row, "input")]
    answer = given(row, "output")
    if row["f"] == "read":
        return [held] if not is_known or answer == held else []
    is_same = held == row["expected"]
    if not is_known:
        return [given(row, "input")] if is_same else [held]
    if answer == 0:
        return [] if is_same else [held]
    return [given(row, "input")] if is_same else []


def mutex(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "release":
        return ["free"] if held == "held" else []
    if is_known and row["output"] == 0:
        return ["held"] if held == "held" else []
    return ["held"] if held == "free" else []


def counter(total: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "add":
        return [total + row["input"]]
    return [total] if not is_known or row["output"] == total else []


def growing_set(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "add":
        return [held | {given(row, "input")}]
    if row["f"] == "remove":
        return [held - {given(row, "input")}]
    return [held] if not is_known or set(given(row, "output") or ()) == held else []


def fifo(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "enqueue":
        return [(*held, row["input"])]
    return _at_end(held, row, is_known, 0)


def _at_end(held: tuple[int, ...], row: Row, is_known: bool, end: int) -> Iterable[State]:
    """Take from an end, or look at it: 0 or -1."""
    rest = held if row["f"].startswith("peek") else held[1:] if end == 0 else held[:-1]
    if not is_known:
        return [rest]
    if row["output"] is None:
        return [] if held else [held]
    return [rest] if held and held[end] == row["output"] else []


def stack(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "push":
        return [(*held, row["input"])]
    return _at_end(held, row, is_known, -1)


def deque(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "push-front":
        return [(row["input"], *held)]
    if row["f"] == "push-back":
        return [(*held, row["input"])]
    return _at_end(held, row, is_known, 0 if row["f"].endswith("front") else -1)


def largest_first(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "insert":
        return [tuple(sorted((*held, row["input"])))]
    return _at_end(held, row, is_known, -1)


def least_first(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "insert":
        return [tuple(sorted((*held, row["input"])))]
    return _at_end(held, row, is_known, 0)


def semaphore(free: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "release":
        return [] if is_known and row["output"] == 0 else [free + 1]
    if is_known and row["output"] == 0:
        return [] if free else [free]
    if not free:
        return [] if is_known else [free]
    return [free - 1]


def members(held: State, row: Row, is_known: bool) -> Iterable[State]:
    """What is in a set, in ascending order."""
    is_there = row["input"] in held
    if row["f"] == "add" and not is_there:
        after = tuple(sorted((*held, row["input"])))
    elif row["f"] == "remove" and is_there:
        after = _less(held, row["input"])
    else:
        after = held
    if not is_known:
        return [after]
    if row["f"] == "read":
        return [held] if sorted(given(row, "output") or ()) == list(held) else []
    said = {None: None, 0: False, 1: True}[row["output"]]
    says = is_there if row["f"] != "add" else not is_there
    return [after] if said in (None, says) else []


def multiset(held: State, row: Row, is_known: bool) -> Iterable[State]:
    """What is in a multiset, in ascending order."""
    if row["f"] == "add":
        return [tuple(sorted((*held, row["input"])))]
    is_there = row["input"] in held
    after = _less(held, row["input"]) if row["f"] == "remove" and is_there else held
    if not is_known:
        return [after]
    if row["f"] == "read":
        return [held] if sorted(given(row, "output") or ()) == list(held) else []
    if row["f"] == "count":
        return [held] if held.count(row["input"]) == row["output"] else []
    return [after] if row["output"] in (None, int(is_there)) else []


def bag(held: State, row: Row, is_known: bool) -> Iterable[State]:
    """What waits, in ascending order."""
    if row["f"] == "enqueue":
        return [tuple(sorted((*held, row["input"])))]
    if is_known and row["output"] is None:
        return [] if held else [held]
    taken = set(held) if not is_known else {row["output"]} & set(held)
    return [_less(held, value) for value in sorted(taken)] or ([] if is_known else [held])


def _less(held: tuple[int, ...], value: int) -> tuple[int, ...]:
    place = held.index(value)
    return held[:place] + held[place + 1 :]


def log(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "append":
        fits = not is_known or row["offset"] == len(held)
        return [(*held, row["input"])] if fits else []
    if not is_known:
        return [held]
    if row["f"] == "end":
        return [held] if row["output"] == len(held) else []
    if row["offset"] < 0:
        return []
    there = held[row["offset"]] if row["offset"] < len(held) else None
    return [held] if row["output"] == there else []


def text(held: State, row: Row, is_known: bool) -> Iterable[State]:
    if row["f"] == "get":
        return [held] if not is_known or (given(row, "output") or "") == held else []
    put = given(row, "input") or ""
    return [put if row["f"] == "put" else held + put]


def registers(held: State, row: Row, is_known: bool) -> Iterable[State]:
    """(name, value) pairs of those that hold something."""
    now = dict(held)
    for f, name, value in given(row, "output") if is_known else given(row, "input"):
        if f == "w":
            now[name] = value
        elif is_known and now.get(name) != value:
            return []
    return [frozenset((name, value) for name, value in now.items() if value is not None)]


PLAIN: dict[str, tuple[State, After]] = {
    "register": (None, register),
    "cas-register": (None, register),
    "mutex": ("free", mutex),
    "counter": (0, counter),
    "set": (frozenset(), growing_set),
    "fifo-queue": ((), fifo),
    "unordered-queue": ((), bag),
    "append-log": ((), log),
    "kv": ("", text),
    "multi-register": (frozenset(), registers),
    "stack": ((), stack),
    "deque": ((), deque),
    "priority-queue": ((), largest_first),
    "min-priority-queue": ((), least_first),
    "semaphore": (0, semaphore),
    "membership-set": ((), members),
    "multiset": ((), multiset),
}
"""For each model the first state, and what an operation does."""
