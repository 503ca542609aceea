"""Random small histories of each model's object: linearizable ones, and ones with a lie in them.

A history is made by doing random operations on a real object one by one, each at a moment of
its own, and stretching each into an interval around its moment. Some outcomes become unknown,
some operations certainly failed, and in about half of the histories one or two answers, times
or failures are falsified. Times are few, so many are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from shaketable.harness.history.schema import OPERATIONS

Row = dict[str, Any]
VALUES = (1, 2, 3)
TEXTS = ("a", "b", "ab")


class Source:
    """Gives inputs: unique ones, or a few values over and over."""

    def __init__(self, model: str, rng: Random, *, unique: bool) -> None:
        self.model, self.rng, self.unique, self.last = model, rng, unique, 0

    def value(self) -> int:
        self.last += 1
        return self.last if self.unique else self.rng.choice(VALUES)

    def any(self) -> int:
        """A value that may have been given, or not."""
        return self.rng.randint(1, self.last + 1) if self.unique else self.rng.choice(VALUES)


TAKES = frozenset(
    ("dequeue", "peek", "pop", "poll", "pop-front", "pop-back", "peek-front", "peek-back")
)
"""Operations that answer a value, or nothing."""
QUESTIONS = frozenset(("add", "remove", "contains", "release"))
"""Operations that answer yes or no, where they answer at all."""
ANSWERS = frozenset(("read", "cas", "acquire", "append", "end", "get", "txn", "count")) | TAKES
"""Operations whose answer can be falsified (append: of a log)."""

Do = Callable[[Source], Row]


def register(has_cas: bool) -> Callable[[], Do]:
    def new() -> Do:
        held: list[Any] = [None]

        def do(source: Source) -> Row:
            choice = source.rng.random()
            if has_cas and choice < 0.4:
                expected = held[0] if source.rng.random() < 0.5 else source.any()
                if expected is None and source.rng.random() < 0.5:
                    expected = source.any()
                row = {"f": "cas", "expected": expected, "input": source.value()}
                row["output"] = int(held[0] == expected)
                if row["output"]:
                    held[0] = row["input"]
                    row["output"] = source.rng.choice((1, None))
                return row
            if choice < 0.7:
                return {"f": "read", "output": held[0]}
            held[0] = source.value()
            return {"f": "write", "input": held[0]}

        return do

    return new


def mutex() -> Do:
    held = [False]

    def do(source: Source) -> Row:
        if source.rng.random() < 0.2:
            answer = None if not held[0] else 0
            held[0] = True
            return {"f": "acquire", "output": answer}
        held[0] = not held[0]
        return {"f": "acquire" if held[0] else "release"}

    return do


def counter() -> Do:
    total = [0]

    def do(source: Source) -> Row:
        if source.rng.random() < 0.5:
            return {"f": "read", "output": total[0]}
        row = {"f": "add", "input": source.rng.choice((-1, 1, 1, 2))}
        total[0] += row["input"]
        return row

    return do


def set_of(has_remove: bool) -> Callable[[], Do]:
    def new() -> Do:
        held: set[int] = set()

        def do(source: Source) -> Row:
            choice = source.rng.random()
            if choice < 0.4:
                seen = sorted(held)
                source.rng.shuffle(seen)
                return {"f": "read", "extra": {"output": seen}}
            if has_remove and choice < 0.6:
                row = {"f": "remove", "input": source.any()}
                held.discard(row["input"])
                return row
            row = {"f": "add", "input": source.value()}
            held.add(row["input"])
            return row

        return do

    return new


def queue(is_fifo: bool, has_peek: bool = False) -> Callable[[], Do]:
    def new() -> Do:
        held: list[int] = []

        def do(source: Source) -> Row:
            if has_peek and source.rng.random() < 0.25:
                return {"f": "peek", "output": held[0] if held else None}
            if source.rng.random() < 0.5:
                held.append(source.value())
                return {"f": "enqueue", "input": held[-1]}
            if not held:
                return {"f": "dequeue", "output": None}
            place = 0 if is_fifo else source.rng.randrange(len(held))
            return {"f": "dequeue", "output": held.pop(place)}

        return do

    return new


def ends(put: dict[str, int], take: dict[str, int], peek: dict[str, int]) -> Callable[[], Do]:
    """A list with operations at its ends: each name with the end that it is for, 0 or -1."""

    def new() -> Do:
        held: list[int] = []

        def do(source: Source) -> Row:
            chance = source.rng.random()
            if chance < 0.45:
                f = source.rng.choice(sorted(put))
                value = source.value()
                held.insert(len(held) if put[f] else 0, value)
                return {"f": f, "input": value}
            f = source.rng.choice(sorted(take if chance < 0.85 or not peek else peek))
            end = {**take, **peek}[f]
            found = held[end] if held else None
            if held and f in take:
                held.pop(end)
            return {"f": f, "output": found}

        return do

    return new


def priority_queue(largest_first: bool) -> Callable[[], Do]:
    def new() -> Do:
        held: list[int] = []

        def do(source: Source) -> Row:
            chance = source.rng.random()
            if chance < 0.45:
                # Priorities in another order than that of time.
                value = source.value()
                if source.unique:
                    value = 31 * (value // 31) + 7 * value % 31
                held.append(value)
                return {"f": "insert", "input": value}
            first = (max if largest_first else min)(held, default=None)
            if chance < 0.85 and held:
                held.remove(first)
            return {"f": "poll" if chance < 0.85 else "peek", "output": first}

        return do

    return new


def semaphore() -> Do:
    free = [0]

    def do(source: Source) -> Row:
        if source.rng.random() < 0.4:
            free[0] += 1
            return {"f": "release", "output": source.rng.choice((1, None))}
        if not free[0]:
            return {"f": "acquire", "output": 0}
        free[0] -= 1
        return {"f": "acquire", "output": source.rng.choice((1, None))}

    return do


def members(is_multiset: bool, has_read: bool) -> Callable[[], Do]:
    def new() -> Do:
        held: list[int] = []

        def do(source: Source) -> Row:
            chance = source.rng.random()
            if has_read and chance < 0.2:
                seen = sorted(held)
                source.rng.shuffle(seen)
                return {"f": "read", "extra": {"output": seen}}
            if chance < 0.55:
                value = source.value()
                row = {"f": "add", "input": value}
                if not is_multiset:
                    row["output"] = source.rng.choice((int(value not in held),) * 3 + (None,))
                if is_multiset or value not in held:
                    held.append(value)
                return row
            value = source.any()
            if is_multiset and chance < 0.65:
                return {"f": "count", "input": value, "output": held.count(value)}
            if chance < 0.75:
                return {"f": "contains", "input": value, "output": int(value in held)}
            row = {"f": "remove", "input": value}
            row["output"] = source.rng.choice((int(value in held),) * 3 + (None,))
            if value in held:
                held.remove(value)
            return row

        return do

    return new


def log() -> Do:
    held: list[int] = []

    def do(source: Source) -> Row:
        choice = source.rng.random()
        if choice < 0.5:
            held.append(source.value())
            return {"f": "append", "input": held[-1], "offset": len(held) - 1}
        if choice < 0.7:
            return {"f": "end", "output": len(held)}
        offset = source.rng.randint(0, len(held))
        found = held[offset] if offset < len(held) else None
        return {"f": "read", "offset": offset, "output": found}

    return do


def kv() -> Do:
    held = [""]

    def do(source: Source) -> Row:
        choice = source.rng.random()
        if choice < 0.4:
            return {"f": "get", "extra": {"output": held[0]}}
        text = str(source.value()) if source.unique else source.rng.choice(TEXTS)
        held[0] = text if choice < 0.6 else held[0] + text
        return {"f": "put" if choice < 0.6 else "append", "extra": {"input": text}}

    return do


def multi_register() -> Do:
    held: dict[str, int] = {}

    def do(source: Source) -> Row:
        asked, answered = [], []
        for _ in range(source.rng.randint(1, 3)):
            name = source.rng.choice("xy")
            if source.rng.random() < 0.6:
                asked.append(["r", name, None])
                answered.append(["r", name, held.get(name)])
            else:
                held[name] = source.value()
                asked.append(["w", name, held[name]])
                answered.append(asked[-1])
        return {"f": "txn", "extra": {"input": asked, "output": answered}}

    return do


OBJECTS: dict[str, Sequence[Callable[[], Do]]] = {
    "register": (register(has_cas=False),),
    "cas-register": (register(has_cas=True), register(has_cas=False)),
    "mutex": (mutex,),
    "counter": (counter,),
    "set": (set_of(has_remove=False), set_of(has_remove=False), set_of(has_remove=True)),
    "fifo-queue": (queue(is_fifo=True), queue(is_fifo=True), queue(is_fifo=True, has_peek=True)),
    "unordered-queue": (queue(is_fifo=False),),
    "append-log": (log,),
    "kv": (kv,),
    "multi-register": (multi_register,),
    "stack": (
        ends({"push": -1}, {"pop": -1}, {"peek": -1}),
        ends({"push": -1}, {"pop": -1}, {}),
    ),
    "deque": (
        ends(
            {"push-front": 0, "push-back": -1},
            {"pop-front": 0, "pop-back": -1},
            {"peek-front": 0, "peek-back": -1},
        ),
        ends({"push-front": 0}, {"pop-front": 0, "pop-back": -1}, {}),
    ),
    "priority-queue": (priority_queue(largest_first=True),),
    "min-priority-queue": (priority_queue(largest_first=False),),
    "semaphore": (semaphore,),
    "membership-set": (
        members(is_multiset=False, has_read=False),
        members(is_multiset=False, has_read=False),
        members(is_multiset=False, has_read=True),
    ),
    "multiset": (
        members(is_multiset=True, has_read=False),
        members(is_multiset=True, has_read=False),
        members(is_multiset=True, has_read=True),
    ),
}
"""For each model the objects whose histories it judges."""


def random_history(
    model: str,
    rng: Random,
    *,
    size_max: int = 10,
    unknown: float = 0.15,
    lies: float = 0.9,
    fills: bool = False,
) -> list[Row]:
    """Return rows of OPERATIONS of one object, perhaps falsified, in the order of their ids.

    With `fills` there are `size_max` operations, of which few overlap.
    """
    source = Source(model, rng, unique=rng.random() < 0.7)
    do = rng.choice(OBJECTS[model])()
    size = size_max if fills else min(rng.randint(0, size_max) + rng.randint(0, 4), size_max)
    span = rng.choice((size, 4 * size, 10 * size))
    reach = rng.choice((0, 0, 1, 1, 3, 4 if fills else span // 2 + 1))
    rows = []
    for moment in sorted(rng.randint(0, span) for _ in range(size)):
        row: Row = dict.fromkeys(OPERATIONS.names) | {"outcome": "ok", "key": "k"}
        dice = rng.random()
        happens = dice >= unknown / 2 + 0.05  # the others fail, or are unknown and never happen
        if happens:
            row |= do(source)
        else:
            row |= rng.choice(OBJECTS[model])()(source)
        if dice < 0.05:
            row["outcome"] = "fail"
        elif dice < unknown + 0.05:
            row["outcome"] = "info"
        row["call_ns"] = moment - rng.randint(0, reach)
        row["return_ns"] = moment + rng.randint(0, reach)
        rows.append(row)
    if rows and rng.random() < lies:
        often = 2 if model == "mutex" else 1  # it has two states: most lies are no matter
        for _ in range(often * rng.choice((1, 2, 3, 4))):
            falsify(rng.choice(rows), rows, source)
    rng.shuffle(rows)
    return [finished(row, op) for op, row in enumerate(sorted(rows, key=lambda r: r["call_ns"]))]


def falsify(row: Row, rows: Sequence[Row], source: Source) -> None:
    """Change an answer, a time, or what happened to an operation."""
    dice = source.rng.random()
    answers = ANSWERS if row["output"] is None else ANSWERS | QUESTIONS
    if row["outcome"] != "ok" or row["f"] not in answers:
        dice /= 2
    if dice < 0.25:
        shift = source.rng.randint(-8, 8)
        row["call_ns"] += shift
        row["return_ns"] += shift
    elif dice < 0.32:
        row["outcome"] = source.rng.choice(("ok", "fail", "info"))
    elif dice < 0.5:
        other = source.rng.choice([each for each in rows if each["f"] == row["f"]])
        for name in ("output", "offset", "extra"):
            if name != "extra" or "output" in (row["extra"] or {}):
                row[name], other[name] = other[name], row[name]
    else:
        answer(row, source)


def answer(row: Row, source: Source) -> None:
    """Give another answer."""
    rng = source.rng
    extra = row["extra"]
    if source.model == "counter" and row["f"] == "read":
        row["output"] += rng.choice((-1, 1, 2))
    elif (row["f"] == "read" and extra is None) or row["f"] in TAKES:
        row["output"] = rng.choice((None, source.any(), source.any()))
    elif row["f"] in ("cas", "acquire") or row["f"] in QUESTIONS:
        row["output"] = rng.choice((0, 1))
    elif row["f"] == "count":
        row["output"] = max(0, row["output"] + rng.choice((-1, 1)))
    elif row["f"] == "append" and row["offset"] is not None:
        row["offset"] += rng.choice((-1, 1))
    elif row["f"] == "end":
        row["output"] += rng.choice((-1, 1))
    elif row["f"] == "get":
        row["extra"] = {"output": extra["output"] + rng.choice(TEXTS)}
    elif row["f"] == "txn":
        row["extra"] = json.loads(json.dumps(extra))
        micro = rng.choice(row["extra"]["output"])
        if micro[0] == "r":
            micro[2] = rng.choice((None, source.any()))
    elif row["f"] == "read":
        row["extra"] = {"output": list({*extra["output"]} ^ {source.any()})}


def finished(row: Row, op: int) -> Row:
    """Give a row its id, and the form that recorded histories have."""
    row |= {"op": op, "process": op}
    if row["outcome"] != "ok":
        row["output"] = None
        row["return_ns"] = None
        if row["f"] == "append" and row["input"] is not None:
            row["offset"] = None
        if row["extra"] and "output" in row["extra"]:
            row["extra"] = {k: v for k, v in row["extra"].items() if k != "output"} or None
    if row["extra"] is not None:
        row["extra"] = json.dumps(row["extra"])
    return row
