"""How states go on: one value by itself, other states as the driver told."""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    CODE,
    FAMILY,
    FILLED,
    IMPOSSIBLE,
    KINDS,
    MISSING,
    MISSING_COUNT,
    MISSING_MAX,
    A,
    B,
    History,
    Int32s,
    Int64s,
    Steps,
)
from shaketable.checkers.kernels.search_history import CAS, READ, VALUE, WRITE
from shaketable.harness.compiled import bare, compiled, inlined


@inlined
def mix(x: Any) -> Any:
    """Spread the bits of a number (the finalizer of splitmix64)."""
    y = np.uint64(x)
    y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return y ^ (y >> np.uint64(31))


@bare
def _remembered(h: History, t: Steps, state: int, kind: int) -> int:
    key = state * h.facts[KINDS] + kind
    last = t.key.size - 1
    x = np.int64(mix(key) & np.uint64(last))
    while t.key[x] != key:
        if t.key[x] < 0:
            n = t.facts[MISSING_COUNT]
            if n < MISSING_MAX:
                t.missing[n, 0] = state
                t.missing[n, 1] = kind
                t.facts[MISSING_COUNT] = n + 1
            return MISSING
        x = (x + 1) & last
    return int(t.after[x])


@inlined
def step(h: History, t: Steps, state: int, kind: int) -> int:
    """Return the state after an operation of that kind, IMPOSSIBLE, or MISSING.

    What is missing is noted down; whoever calls drops what it began, and asks the driver.
    """
    if h.facts[FAMILY] != VALUE:
        return _remembered(h, t, state, kind)
    code = h.does[kind, CODE]
    if code == WRITE:
        return int(h.does[kind, B])
    matches = h.does[kind, A] == state
    if code == CAS:
        return int(h.does[kind, B]) if matches else IMPOSSIBLE
    return state if matches == (code == READ) else IMPOSSIBLE


@compiled
def remember(key: Int64s, after: Int32s, count: Int64s, keys: Int64s, states: Int32s) -> None:
    """Add steps; the table must have room for them. Those that are there already stay."""
    last = key.size - 1
    for n in range(keys.size):
        x = np.int64(mix(keys[n]) & np.uint64(last))
        while key[x] >= 0 and key[x] != keys[n]:
            x = (x + 1) & last
        if key[x] < 0:
            key[x] = keys[n]
            after[x] = states[n]
            count[FILLED] += 1
