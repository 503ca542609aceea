"""The texts of recordings, each kept once: per recording for the kernels, then for the history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shaketable.harness.history.frame_kernels import TextTable, intern, place
from shaketable.harness.history.rows import FIRST_TEXTS

TEXTS_AT_FIRST = 1024
ARENA_BYTES_AT_FIRST = 1 << 16


class RecordedTexts:
    """The texts of one recording, in a table that grows."""

    def __init__(self) -> None:
        self.table = _empty(TEXTS_AT_FIRST, ARENA_BYTES_AT_FIRST)
        for text in FIRST_TEXTS:
            self.number(text)

    def __len__(self) -> int:
        return int(self.table.counts[0])

    def number(self, text: str) -> int:
        """Return the number of a text, taking it in if it is new."""
        data = np.frombuffer(text.encode(), np.uint8)
        while (number := int(intern(self.table, data))) < 0:
            self.grow(len(data))
        return number

    def grow(self, more_bytes: int = 0) -> None:
        """Make room for twice as much, and for a text of `more_bytes`."""
        old = self.table
        fresh = _empty(2 * len(old.known), 2 * len(old.arena) + more_bytes)
        texts, used = int(old.counts[0]), int(old.counts[1])
        fresh.arena[:used] = old.arena[:used]
        fresh.known[:texts] = old.known[:texts]
        fresh.counts[:] = old.counts
        place(fresh.known[:texts], fresh.slots)
        self.table = fresh

    def since(self, first: int) -> list[str]:
        """Return the texts from number `first` on."""
        arena = self.table.arena
        bounds = self.table.known[first : len(self), 1:].tolist()
        return [arena[start : start + size].tobytes().decode() for start, size in bounds]


class HistoryTexts:
    """The texts of a whole history: `texts` by number."""

    def __init__(self) -> None:
        self.texts: list[str] = list(FIRST_TEXTS)
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text, taking in those that are new."""
        found = []
        for text in texts:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
            found.append(number)
        return found


def _empty(texts: int, arena_bytes: int) -> TextTable:
    return TextTable(
        slots=np.zeros(2 * texts, np.int32),
        known=np.zeros((texts, 3), np.int64),
        arena=np.zeros(arena_bytes, np.uint8),
        counts=np.zeros(2, np.int64),
    )
