"""Histories of transactions, of any size, that a serial execution answered: rows of OPERATIONS."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS

STEPS_MAX = 4
KEYS_OPEN = 10
"""Keys in use at a time, as Jepsen's list-append test has them."""
APPENDS_MAX = 32
"""Appends to a key before a new one takes its place."""
ROWS = 100_000


def list_append(seed: int, count: int, clients: int) -> pa.Table:
    """Return `count` transactions of appends and reads, which are strict serializable."""
    return _table(seed, count, clients, "append")


def blind_writes(seed: int, count: int, clients: int) -> pa.Table:
    """Return `count` transactions of writes and reads of registers: most writes are blind."""
    return _table(seed, count, clients, "w")


def _table(seed: int, count: int, clients: int, write: str) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    rows: list[dict[str, Any]] = []
    for row in _rows(random.Random(seed), count, clients, write):
        rows.append(row)
        if len(rows) == ROWS:
            batches.append(pa.RecordBatch.from_pylist(rows, OPERATIONS))
            rows.clear()
    batches.append(pa.RecordBatch.from_pylist(rows, OPERATIONS))
    table = pa.Table.from_batches(batches, OPERATIONS).sort_by("call_ns")
    return table.set_column(0, "op", pa.array(range(len(table)), pa.int64()))


def _rows(rng: random.Random, count: int, clients: int, write: str) -> Iterator[dict[str, Any]]:
    """Yield rows in the order in which their transactions took effect."""
    waiting = [(rng.randint(1, 100), client, 0) for client in range(clients)]
    heapq.heapify(waiting)
    keys, newest = list(range(KEYS_OPEN)), KEYS_OPEN
    state: dict[int, list[int]] = {}
    written: dict[int, int] = {}
    for number in range(count):
        effect, client, call = heapq.heappop(waiting)
        asked, answered = [], []
        for _ in range(rng.randint(1, STEPS_MAX)):
            slot = rng.randrange(KEYS_OPEN)
            key = keys[slot]
            held = state.setdefault(key, [])
            if rng.random() < 0.5:
                value = written[key] = written.get(key, 0) + 1
                state[key] = [*held, value] if write == "append" else [value]
                asked.append([write, key, value])
                answered.append(asked[-1])
                if value == APPENDS_MAX:
                    keys[slot], newest = newest, newest + 1
            else:
                asked.append(["r", key, None])
                seen = held if write == "append" else held[0] if held else None
                answered.append(["r", key, seen])
        end = effect + rng.randint(1, 50)
        yield {
            "op": number, "process": client, "f": "txn", "call_ns": call, "return_ns": end,
            "outcome": "ok", "extra": json.dumps({"input": asked, "output": answered}),
        }  # fmt: skip
        call = end + rng.randint(1, 20)
        heapq.heappush(waiting, (call + rng.randint(1, 50), client, call))
