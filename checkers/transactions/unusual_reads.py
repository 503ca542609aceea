"""Transactions whose reads are unusual: what is wrong with them, in words.

What is usual is traced by a kernel (checkers.kernels.transactions.reads). The rules are the same.

Sources: Adya 1999 (G1a, G1b); Elle, VLDB 2020 (internal, dirty update, duplicates); AWDIT (arXiv
2504.06975), for read consistency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions.json_text import APPEND, FAIL, WRITE
from shaketable.checkers.kernels.transactions.reads import INITIAL
from shaketable.checkers.transactions.history import Transactions, key_name, shown

Numbered = int | tuple[int, ...] | None


class Anomaly(NamedTuple):
    """What some transactions show: kind, a sentence, and the transactions.

    `cycle`: of a cycle its edges, each (source, target, kind, why).
    """

    kind: str
    message: str
    txns: tuple[int, ...]
    cycle: tuple[tuple[int, int, str, str], ...] = ()


class TracedRead(NamedTuple):
    """An external read: the place of its step, who wrote what it saw, a list's elements of it."""

    place: int
    writer: int
    length: int = 0


class Writes(NamedTuple):
    """Finds writes: `find` by the numbers of key and value; the others are by step.

    `find` returns a step, negative if no transaction wrote that.
    """

    find: Callable[[int, int], int]
    is_twice: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]
    txn_of: npt.NDArray[np.int64]


class UnusualReads:
    """Traces the reads of single transactions, and notes what contradicts them."""

    def __init__(
        self,
        txns: Transactions,
        writes: Writes,
        is_appended: npt.NDArray[np.bool_],
        first_of: Callable[[int], Numbered],
        *,
        is_first_given: bool,
    ) -> None:
        self._txns, self._writes, self._is_appended = txns, writes, is_appended
        self._first_of, self._is_first_given = first_of, is_first_given
        self.anomalies: list[Anomaly] = []
        self.doubts: list[str] = []

    def reads(self, number: int) -> Iterator[TracedRead]:
        """Yield the external reads of a transaction; note what contradicts the transaction."""
        written: dict[int, Numbered] = {}
        appended: dict[int, tuple[int, ...]] = {}
        seen: dict[int, tuple[Numbered, TracedRead | None]] = {}
        for place in self._txns.places(number):
            kind, key = int(self._txns.kind[place]), int(self._txns.key[place])
            value = self._txns.numbered(place)
            if kind == WRITE:
                written[key] = value
            elif kind == APPEND:
                assert isinstance(value, int), "an element has one number"
                appended[key] = (*appended.get(key, ()), value)
            elif key in written:
                if value != written[key]:
                    self._note_internal(number, key, value, written[key])
            else:
                is_list = self._is_appended[key] and value is None
                external = self._without_own(number, key, () if is_list else value, appended)
                if isinstance(external, str):
                    continue
                before = seen.get(key)
                if before is None or before[0] != external:
                    if before is not None:
                        self._note_internal(number, key, external, before[0])
                    read = self._external(number, place, key, external, before is not None)
                    seen[key] = (external, read)
                if (traced := seen[key][1]) is not None:
                    yield traced._replace(place=place)

    def txn_of(self, key: int, value: int) -> int | None:
        """Return the one transaction that wrote a value; None if there is none, or are several."""
        step = self._writes.find(key, value)
        return None if step < 0 or self._writes.is_twice[step] else int(self._writes.txn_of[step])

    def note(self, kind: str, message: str, *txns: int) -> None:
        """Note an anomaly."""
        self.anomalies.append(Anomaly(kind, message, tuple(dict.fromkeys(txns))))

    def _name(self, key: int) -> str:
        return key_name(self._txns.names.keys[key])

    def _shown(self, value: Numbered) -> str:
        return shown(self._txns.named(value))

    def _note_internal(self, number: int, key: int, value: Numbered, before: Numbered) -> None:
        self.note(
            "internal",
            f"{self._txns.describe(number)} read {self._shown(value)} in {self._name(key)}, where"
            f" it had {self._shown(before)} before",
            number,
        )

    def _without_own(
        self, number: int, key: int, value: Numbered, appended: Mapping[int, tuple[int, ...]]
    ) -> Numbered | str:
        """Return what a read saw of others: a list without the transaction's own appends."""
        own = appended.get(key, ())
        if not own:
            return value
        if isinstance(value, tuple) and value[len(value) - len(own) :] == own:
            return value[: len(value) - len(own)]
        self.note(
            "internal",
            f"{self._txns.describe(number)} read {self._shown(value)} in {self._name(key)} after"
            f" its own appends of {self._shown(own)}",
            number,
        )
        return _UNREAD

    def _external(
        self, number: int, place: int, key: int, value: Numbered, is_again: bool
    ) -> TracedRead | None:
        if self._is_appended[key]:
            return self._list_read(number, place, key, value)
        if not isinstance(value, int) or value == self._first_of(key):
            return TracedRead(place, INITIAL)
        if is_again and not self._is_first_given and self._writes.find(key, value) < 0:
            return None  # either of the two values may be the first one: noted as internal
        return self._read_of(number, place, key, value, value)

    def _list_read(
        self, number: int, place: int, key: int, elements: Numbered
    ) -> TracedRead | None:
        if not isinstance(elements, tuple):
            self.doubts.append(
                f"op {self._txns.op[number]} read no list in {self._name(key)}, where others append"
            )
            return None
        counts = Counter(elements)
        if len(counts) < len(elements):
            twice = next(value for value, count in counts.items() if count > 1)
            self.note(
                "duplicate-elements",
                f"{self._txns.describe(number)} read {self._shown(elements)} in {self._name(key)}:"
                f" {self._shown(twice)} is there more than once",
                number,
            )
        if not elements:
            return TracedRead(place, INITIAL)
        self._note_aborted(number, key, elements)
        if any(self.txn_of(key, value) == number for value in elements[:-1]):
            self._future(number, key, elements)
            return None
        read = self._read_of(number, place, key, elements[-1], elements)
        return None if read is None else read._replace(length=len(elements))

    def _note_aborted(self, number: int, key: int, elements: tuple[int, ...]) -> None:
        """Note elements of failed transactions, and committed ones that were appended after."""
        aborted = None
        for value in elements:
            writer = self.txn_of(key, value)
            if writer is None:
                continue
            if self._txns.outcome[writer] == FAIL:
                if value != elements[-1]:  # the last one is noted as the version that was read
                    self._note_g1a(number, key, value, writer)
                aborted = writer
            elif aborted is not None:
                self.note(
                    "dirty-update",
                    f"{self._txns.describe(writer)} appended to {self._name(key)} after"
                    f" {self._txns.describe(aborted)}, which failed, as"
                    f" {self._txns.describe(number)} shows",
                    aborted, writer, number,
                )  # fmt: skip
                aborted = None

    def _read_of(
        self, number: int, place: int, key: int, version: int, seen: Numbered
    ) -> TracedRead | None:
        step = self._writes.find(key, version)
        if step >= 0 and self._writes.is_twice[step]:
            return None
        reader = self._txns.describe(number)
        if step < 0:
            self.note(
                "thin-air-read",
                f"{reader} read {self._shown(seen)} in {self._name(key)}, and no transaction wrote"
                f" {self._shown(version)}",
                number,
            )
            return None
        writer = int(self._writes.txn_of[step])
        if writer == number:
            self._future(number, key, seen)
            return None
        if self._txns.outcome[writer] == FAIL:
            self._note_g1a(number, key, version, writer)
            return None
        if not self._writes.is_last[step]:
            self.note(
                "G1b",
                f"{reader} read {self._shown(version)} in {self._name(key)}, which"
                f" {self._txns.describe(writer)} wrote over itself",
                writer, number,
            )  # fmt: skip
        return TracedRead(place, writer)

    def _future(self, number: int, key: int, seen: Numbered) -> None:
        self.note(
            "future-read",
            f"{self._txns.describe(number)} read {self._shown(seen)} in {self._name(key)} before"
            " it wrote that itself",
            number,
        )

    def _note_g1a(self, number: int, key: int, value: Numbered, writer: int) -> None:
        self.note(
            "G1a",
            f"{self._txns.describe(number)} read {self._shown(value)} in {self._name(key)}, which"
            f" {self._txns.describe(writer)} wrote, and that failed",
            writer, number,
        )  # fmt: skip


_UNREAD: Final = "what was read is not known"
