"""Long histories made up for benchmarks: linearizable by construction, or wrong in one read.

Each client is busy some 91 % of its time. An operation takes effect at one instant inside its
interval; its answer is what the object then held.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS

THINKING = 0.1
"""How long a client waits between two operations, where one takes 1 on average."""
TICK_NS = 1_000_000


@dataclass(slots=True)
class Operation:
    """One operation; `returned` is None where the outcome stayed unknown.

    `key` and `text`, what is put or was got, are those of a key-value store; `extra` is what
    no column can hold.
    """

    process: int
    called: int
    returned: int | None
    f: str = ""
    input: int | None = None
    expected: int | None = None
    output: int | None = None
    offset: int | None = None
    key: str = "x"
    text: str | None = None
    extra: dict[str, object] | None = None


def intervals(rng: Random, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return operations without contents, in the order in which they take effect.

    One of unknown outcome takes effect half of the time; the others have `f` "none".
    """
    draws = np.random.default_rng(rng.getrandbits(64))
    each = -(-count // clients)
    operations: list[tuple[float, Operation]] = []
    processes = clients
    for client in range(clients):
        took = draws.exponential(1.0, each)
        called = np.cumsum(draws.exponential(THINKING, each) + took) - took
        at = called + took * draws.random(each)
        process = client
        for n in range(min(each, count - len(operations))):
            operation = Operation(
                process, int(called[n] * TICK_NS), int((called[n] + took[n]) * TICK_NS) + 1
            )
            if rng.random() < unknown:
                operation.returned = None
                operation.f = "" if rng.random() < 0.5 else "none"
                process, processes = processes, processes + 1
            operations.append((float(at[n]), operation))
    operations.sort(key=lambda pair: pair[0])
    return [operation for _, operation in operations]


def cas_register(
    seed: int, count: int, clients: int, unknown: float, values: int = 5
) -> list[Operation]:
    """Return reads, writes and cas of a register that begins with nothing."""
    rng = Random(seed)
    holds: int | None = None
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = rng.choice(("read", "write", "cas"))
        if o.f == "read":
            o.output = holds if o.returned is not None else None
            continue
        o.input = rng.randrange(values)
        if o.f == "write":
            holds = o.input if happens else holds
            continue
        # Half of them expect what stands there, so that many succeed.
        o.expected = holds if holds is not None and rng.random() < 0.5 else rng.randrange(values)
        succeeds = happens and o.expected == holds
        o.output = int(succeeds) if o.returned is not None else None
        holds = o.input if succeeds else holds
    return sorted(operations, key=lambda o: o.called)


def spoil(operations: list[Operation], at: float, value: int | None) -> None:
    """Let one read, `at` of the way through, return `value`, or another of the values read."""
    reads = [o for o in operations if o.f == "read" and o.returned is not None]
    read = reads[min(int(at * len(reads)), len(reads) - 1)]
    others = sorted({o.output for o in reads if o.output is not None} - {read.output})
    read.output = value if value is not None else others[len(others) // 2]


def mutex(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return acquires and releases of one lock; each one that returned succeeded."""
    rng = Random(seed)
    held = False
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = "release" if held else "acquire"
        held = not held if happens else held
    return sorted(operations, key=lambda o: o.called)


def fifo_queue(
    seed: int, count: int, clients: int, unknown: float, values: int = 10
) -> list[Operation]:
    """Return enqueues of few different values, and dequeues, of a short queue."""
    return _few_values(seed, count, clients, unknown, values, ("enqueue", "dequeue", 0))


def stack(seed: int, count: int, clients: int, unknown: float, values: int = 10) -> list[Operation]:
    """Return pushes of few different values, and pops, of a short stack."""
    return _few_values(seed, count, clients, unknown, values, ("push", "pop", -1))


def _few_values(
    seed: int, count: int, clients: int, unknown: float, values: int, kind: tuple[str, str, int]
) -> list[Operation]:
    rng = Random(seed)
    held: list[int] = []
    put, take, place = kind
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = put if rng.random() < 0.5 - 0.05 * (len(held) - 5) else take
        if o.f == put:
            o.input = rng.randrange(values)
            held += [o.input] if happens else []
        elif held and happens:
            value = held.pop(place)
            o.output = value if o.returned is not None else None
    return sorted(operations, key=lambda o: o.called)


def unique_register(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return reads, and writes of which no two put the same value."""
    rng = Random(seed)
    holds: int | None = None
    operations = intervals(rng, count, clients, unknown)
    for n, o in enumerate(operations):
        happens = o.f != "none"
        o.f = rng.choice(("read", "write"))
        if o.f == "read":
            o.output = holds if o.returned is not None else None
            continue
        o.input = n
        holds = n if happens else holds
    return sorted(operations, key=lambda o: o.called)


def unique_stack(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return pushes of which no two put the same value, pops, and some peeks."""
    return _unique_collection(seed, count, clients, unknown, ("push", "pop", "peek"), list.pop)


def unique_priority_queue(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return inserts of which no two put the same value, polls, and some peeks."""

    def poll(held: list[int]) -> int:
        return -heapq.heappop(held)

    return _unique_collection(seed, count, clients, unknown, ("insert", "poll", "peek"), poll)


def _unique_collection(
    seed: int, count: int, clients: int, unknown: float, names: tuple[str, str, str],
    take: Callable[[list[int]], int],
) -> list[Operation]:  # fmt: skip
    """Return operations of a collection that holds some hundred values at the most."""
    rng = Random(seed)
    held: list[int] = []
    put, taken, seen = names
    is_heap = put == "insert"
    operations = intervals(rng, count, clients, unknown)
    for n, o in enumerate(operations):
        happens, is_known = o.f != "none", o.returned is not None
        chance = rng.random()
        o.f = put if chance < 0.48 - 0.002 * (len(held) - 50) else taken if chance < 0.9 else seen
        if o.f == put:
            o.input = n * 7919 % 10_000_019 if is_heap else n
            if happens and is_heap:
                heapq.heappush(held, -o.input)
            elif happens:
                held.append(o.input)
        elif held and o.f == seen:
            o.output = (-held[0] if is_heap else held[-1]) if is_known else None
        elif held and happens:
            value = take(held)
            o.output = value if is_known else None
    return sorted(operations, key=lambda o: o.called)


def members(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return adds, removes and contains, of some hundred operations on each element."""
    rng = Random(seed)
    held: set[int] = set()
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = rng.choice(("add", "remove", "contains"))
        o.input = rng.randrange(1 + count // 200)
        is_there = o.input in held
        o.output = int(is_there if o.f != "add" else not is_there)
        if happens and o.f == "add":
            held.add(o.input)
        if happens and o.f == "remove":
            held.discard(o.input)
        if o.returned is None:
            o.output = None
    return sorted(operations, key=lambda o: o.called)


def unique_fifo(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return enqueues, of which no two put the same value, and dequeues."""
    rng = Random(seed)
    queue: deque[int] = deque()
    operations = intervals(rng, count, clients, unknown)
    for n, o in enumerate(operations):
        happens = o.f != "none"
        o.f = rng.choice(("enqueue", "dequeue"))
        if o.f == "enqueue":
            o.input = n
            queue.extend([n] if happens else [])
        elif happens and queue:
            value = queue.popleft()
            o.output = value if o.returned is not None else None
    return sorted(operations, key=lambda o: o.called)


def append_log(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return appends, of which no two put the same value, reads near the end, and ends."""
    rng = Random(seed)
    log: list[int] = []
    operations = intervals(rng, count, clients, unknown)
    for n, o in enumerate(operations):
        happens = o.f != "none"
        answers = o.returned is not None
        o.f = rng.choice(("append", "append", "read", "end"))
        if o.f == "append":
            o.input = n
            o.offset = len(log) if answers else None
            log.extend([n] if happens else [])
        elif o.f == "end":
            o.output = len(log) if answers else None
        else:
            o.offset = max(0, len(log) + 1 - rng.randrange(1, 20))
            o.output = log[o.offset] if answers and o.offset < len(log) else None
    return sorted(operations, key=lambda o: o.called)


def kv(
    seed: int, count: int, clients: int, unknown: float, keys: int = 10, resets: float = 0.1
) -> list[Operation]:
    """Return gets, appends and some puts of texts, each on one of the keys."""
    rng = Random(seed)
    holds = {str(key): "" for key in range(keys)}
    operations = intervals(rng, count, clients, unknown)
    for n, o in enumerate(operations):
        happens = o.f != "none"
        key = o.key = str(rng.randrange(keys))
        r = rng.random()
        o.f = "get" if r < 0.4 else "put" if r < 0.4 + resets else "append"
        if o.f == "get":
            o.text = holds[key]
            continue
        o.text = f"x {o.process} {n} y"
        if happens:
            holds[key] = o.text if o.f == "put" else holds[key] + o.text
    return sorted(operations, key=lambda o: o.called)


def counter(seed: int, count: int, clients: int, unknown: float) -> list[Operation]:
    """Return adds of -2 to 5, and reads of the sum."""
    rng = Random(seed)
    total = 0
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = rng.choice(("add", "read"))
        if o.f == "read":
            o.output = total if o.returned is not None else None
            continue
        o.input = rng.choice((-2, -1, 1, 2, 3, 4, 5))
        total += o.input if happens else 0
    return sorted(operations, key=lambda o: o.called)


def removing_set(
    seed: int, count: int, clients: int, unknown: float, elements: int = 20
) -> list[Operation]:
    """Return adds, removes and reads of all elements of a set of few elements."""
    rng = Random(seed)
    held: set[int] = set()
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = rng.choice(("add", "remove", "read"))
        if o.f == "read":
            o.extra = {"output": sorted(held)} if o.returned is not None else None
            continue
        o.input = rng.randrange(elements)
        if happens:
            (held.add if o.f == "add" else held.discard)(o.input)
    return sorted(operations, key=lambda o: o.called)


def unordered_queue(
    seed: int, count: int, clients: int, unknown: float, values: int = 10
) -> list[Operation]:
    """Return enqueues of few different values, and dequeues, of a short queue of no order."""
    rng = Random(seed)
    held: list[int] = []
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = "enqueue" if rng.random() < 0.5 - 0.05 * (len(held) - 3) else "dequeue"
        if o.f == "enqueue":
            o.input = rng.randrange(values)
            held += [o.input] if happens else []
        elif held and happens:
            value = held.pop(rng.randrange(len(held)))
            o.output = value if o.returned is not None else None
    return sorted(operations, key=lambda o: o.called)


def multi_register(
    seed: int, count: int, clients: int, unknown: float, names: int = 10, together: int = 2
) -> list[Operation]:
    """Return transactions that read or write up to `together` of the registers, of 5 values."""
    rng = Random(seed)
    held: dict[str, int] = {}
    operations = intervals(rng, count, clients, unknown)
    for o in operations:
        happens = o.f != "none"
        o.f = "txn"
        asked: list[list[object]] = []
        answered: list[list[object]] = []
        for name in rng.sample(range(names), rng.randint(1, together)):
            if rng.random() < 0.5:
                asked.append(["r", f"x{name}", None])
                answered.append(["r", f"x{name}", held.get(f"x{name}")])
                continue
            asked.append(["w", f"x{name}", rng.randrange(5)])
            answered.append(asked[-1])
            if happens:
                held[f"x{name}"] = answered[-1][2]  # type: ignore[assignment]
        o.extra = {"input": asked}
        if o.returned is not None:
            o.extra["output"] = answered
    return sorted(operations, key=lambda o: o.called)


def as_table(operations: list[Operation]) -> pa.Table:
    """Return them as OPERATIONS."""
    columns = {name: [None] * len(operations) for name in OPERATIONS.names}
    columns["op"] = list(range(len(operations)))
    for name in ("process", "f", "key", "input", "expected", "output", "offset"):
        columns[name] = [getattr(o, name) for o in operations]
    columns["call_ns"] = [o.called for o in operations]
    columns["return_ns"] = [o.returned for o in operations]
    columns["outcome"] = ["info" if o.returned is None else "ok" for o in operations]
    columns["extra"] = [_extra(o) for o in operations]
    return pa.table(columns, OPERATIONS)


def _extra(o: Operation) -> str | None:
    if o.extra is not None:
        return json.dumps(o.extra)
    if o.text is None:
        return None
    if o.f == "get":
        return json.dumps({"output": o.text}) if o.returned is not None else None
    return json.dumps({"input": o.text})
