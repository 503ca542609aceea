"""Long histories made up for benchmarks: linearizable by construction, or wrong in one read.

Each client is busy some 91 % of its time. An operation takes effect at one instant inside its
interval; its answer is what the object then held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

THINKING = 0.1
"""How long a client waits between two operations, where one takes 1 on average."""
TICK_NS = 1_000_000


@dataclass(slots=True)
class Operation:
    """One operation; `returned` is None where the outcome stayed unknown."""

    process: int
    called: int
    returned: int | None
    f: str = ""
    input: int | None = None
    expected: int | None = None
    output: int | None = None


Apply = Callable[[Operation, Random], None]
"""Chooses what an operation does, and lets it happen."""


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
