"""Batches of ENTRIES rows, built as columns that the compiled decoder fills.

`Keys` numbers the queues; `Rows` holds one batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shaketable.harness.history.schema import ENTRIES
from shaketable.harness.targets.logs.dledger_kernels import (
    HAS_ENTRY,
    HAS_KEY,
    HAS_VALUE,
    Bytes,
    Ints,
    find_key,
    hash_key,
)

# A row of ENTRIES without its node.
Row = tuple[
    int, int | None, int, int | None, int | None, str | None, int | None, int | None, str | None
]
_FREE = -1
_SLOTS_MIN = 64
_COLUMNS = 8  # index, term, position, size, crc, key, offset, value


class Keys:
    """The queues seen so far, by topic bytes: an open-addressing hash table for kernels.

    `slots` maps a hash (with linear probing) to a queue's number; `known` holds for each number
    (start in `arena`, length, queue id, is visible to users); `texts` holds its key, None for an
    internal topic.
    """

    def __init__(self) -> None:
        self.slots: Ints = np.full(_SLOTS_MIN, _FREE, dtype=np.int64)
        self.known: Ints = np.zeros((_SLOTS_MIN // 2, 4), dtype=np.int64)
        self.arena: Bytes = np.zeros(1024, dtype=np.uint8)
        self.texts: list[str | None] = []
        self._used_bytes = 0
        self._by_text: dict[str, int] = {}

    @property
    def table(self) -> tuple[Ints, Ints, Bytes]:
        """The arrays that `decode` searches."""
        return self.slots, self.known, self.arena

    def add(self, topic: bytes, queue_id: int, text: str | None) -> None:
        """Add a queue, unless it is known."""
        name = np.frombuffer(topic, dtype=np.uint8)
        if find_key(name, 0, len(name), queue_id, self.slots, self.known, self.arena) >= 0:
            return
        number = len(self.texts)
        if number == len(self.known):
            self._grow()
        while self._used_bytes + len(name) > len(self.arena):
            self.arena = np.concatenate((self.arena, np.zeros_like(self.arena)))
        self.arena[self._used_bytes : self._used_bytes + len(name)] = name
        self.known[number] = self._used_bytes, len(name), queue_id, text is not None
        self._used_bytes += len(name)
        self.texts.append(text)
        if text is not None:
            self._by_text.setdefault(text, number)
        self._place(number)

    def number_of(self, text: str) -> int:
        """Return the number of a queue that was added."""
        return self._by_text[text]

    def _place(self, number: int) -> None:
        start, length, queue_id = (int(n) for n in self.known[number, :3])
        slot = hash_key(self.arena, start, length, queue_id) & (len(self.slots) - 1)
        while self.slots[slot] != _FREE:
            slot = (slot + 1) & (len(self.slots) - 1)
        self.slots[slot] = number

    def _grow(self) -> None:
        """Double the capacity; half of the slots stay free, so that probes stay short."""
        self.known = np.concatenate((self.known, np.zeros_like(self.known)))
        self.slots = np.full(2 * len(self.slots), _FREE, dtype=np.int64)
        for number in range(len(self.texts)):
            self._place(number)


class Rows:
    """One batch of a node's rows: filled by the decoder from `count` on, or row by row."""

    def __init__(self, node: str, keys: Keys, rows_max: int) -> None:
        self.node = node
        self.keys = keys
        self.rows_max = rows_max
        self._empty()

    def _empty(self) -> None:
        # New arrays each time: the batch that was returned still refers to the old ones.
        self.out: Ints = np.zeros((_COLUMNS, self.rows_max), dtype=np.int64)
        self.flags: Bytes = np.zeros(self.rows_max, dtype=np.uint8)
        self.count = 0
        self._problems: dict[int, str] = {}

    @property
    def columns(self) -> tuple[Ints, Bytes]:
        """The arrays that `decode` fills."""
        return self.out, self.flags

    @property
    def is_full(self) -> bool:
        """True if there is no room for another row."""
        return self.count == self.rows_max

    def add(self, row: Row) -> None:
        """Add one row; there must be room."""
        index, term, position, size, crc, key, offset, value, problem = row
        n, flag = self.count, 0
        self.out[0, n], self.out[2, n] = index, position
        if term is not None and size is not None and crc is not None:
            self.out[1, n], self.out[3, n], self.out[4, n] = term, size, crc
            flag |= HAS_ENTRY
        if key is not None and offset is not None:
            self.out[5, n], self.out[6, n] = self.keys.number_of(key), offset
            flag |= HAS_KEY
        if value is not None:
            self.out[7, n] = value
            flag |= HAS_VALUE
        if problem is not None:
            self._problems[n] = problem
        self.flags[n] = flag
        self.count += 1

    def take(self) -> pa.RecordBatch:
        """Return the rows as a batch of ENTRIES, and start a new batch."""
        n, out, flags = self.count, self.out, self.flags[: self.count]

        def column(number: int, needs: int) -> pa.Array:
            is_null = (flags & needs) == 0
            return pa.array(out[number, :n], mask=is_null if is_null.any() else None)

        numbers = column(5, HAS_KEY).cast(pa.int32())
        texts = pa.array(self.keys.texts, pa.string())
        problems = pa.nulls(n, pa.string())
        if self._problems:
            problems = pa.array([self._problems.get(row) for row in range(n)], pa.string())
        columns = {
            "node": pa.repeat(pa.scalar(self.node, pa.string()), n),
            "index": pa.array(out[0, :n]),
            "term": column(1, HAS_ENTRY),
            "position": pa.array(out[2, :n]),
            "size": column(3, HAS_ENTRY),
            "crc": column(4, HAS_ENTRY),
            "key": texts.take(numbers),
            "offset": column(6, HAS_KEY),
            "value": column(7, HAS_VALUE),
            "problem": problems,
        }
        self._empty()
        return pa.RecordBatch.from_arrays([columns[name] for name in ENTRIES.names], schema=ENTRIES)
