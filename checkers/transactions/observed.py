"""Trace each read to the transaction that wrote what it saw; order the versions that reads show.

A value written once in a key, or an element appended once, names its transaction. A value that was
written twice names none: reads of it prove nothing, and the verdict is never VALID.

What a key holds at first is nothing, or what the history's format or --initial says. If neither
says it, one value of a key that was read and never written is taken for its first one, unless
another read found nothing there.

All is done over arrays, in time linear in the history but for sorting. What is usual is traced by a
kernel (checkers.kernels.transactions.reads). A transaction of which a read is unusual is looked at
by `UnusualReads`, one by one, by the same rules, which says in words what is wrong with it.

Sources for unusual reads: Adya 1999 (G1a, G1b); Elle, VLDB 2020 (internal, dirty update,
duplicates); AWDIT (arXiv 2504.06975), for read consistency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions import reads as kernels
from shaketable.checkers.kernels.transactions.json_text import APPEND, FAIL, INFO, OK, READ, WRITE
from shaketable.checkers.kernels.transactions.reads import INITIAL, NOT_TRACED
from shaketable.checkers.transactions.history import Transactions, key_name, shown

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
BLIND, DANGLING = -2, -3
"""What a transaction wrote over: it did not read it; it is no write of a committed transaction."""


class Reads(NamedTuple):
    """External reads whose writer is known, by transaction, in the order of its steps.

    `length`: of a list, how many elements of others it had.
    """

    txn: Ints
    key: Ints
    writer: Ints
    length: Ints


class Entries(NamedTuple):
    """What committed transactions write: an entry for each transaction and key, by these.

    `starts`: transaction n has the entries starts[n] to starts[n + 1].
    """

    txn: Ints
    key: Ints
    starts: Ints
    code: Ints
    keys: int

    def find(self, txn: Ints, key: Ints) -> Ints:
        """Return the entry of each transaction and key; -1 if it wrote none there."""
        code = txn * self.keys + key
        found = np.searchsorted(self.code, code)
        found[found == len(self.code)] = 0
        if not len(self.code):
            return np.full(len(code), -1, np.int64)
        return np.where(self.code[found] == code, found, -1)


class Versions(NamedTuple):
    """The transactions of each key's versions, as far as reads show their order.

    Attributes:
        starts: key n has the versions starts[n] to starts[n + 1]: one for each element of a list,
            or for each value of a register.
        txn: their transactions.
        is_known: by key; what is not known has no versions.
        later_starts, later: the same of committed transactions that no read shows: they come after
            all others, in an order that is not known.
    """

    starts: Ints
    txn: Ints
    is_known: Bools
    later_starts: Ints
    later: Ints

    @property
    def key(self) -> Ints:
        """The key of each version."""
        return np.repeat(np.arange(len(self.is_known)), np.diff(self.starts))


@dataclass(slots=True)
class Observed:
    """What the reads of a history show.

    Attributes:
        txns: all transactions.
        committed: those that certainly committed: ok, or seen by one that is.
        reads, entries, versions: see there.
        anomalies: what reads show by themselves.
        doubts: why something may be missed.
    """

    txns: Transactions
    committed: Bools
    reads: Reads
    entries: Entries
    versions: Versions
    anomalies: list[Anomaly] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def observe(txns: Transactions, first: Mapping[str, Any] | None = None) -> Observed:
    """Trace the reads of all transactions.

    Args:
        txns: the transactions.
        first: what keys hold at first, nothing if they are not in it; None: it is not known.
    """
    return _Tracer(txns, first).observed()


class _Tracer:
    """Traces reads; one object for each history."""

    def __init__(self, txns: Transactions, first: Mapping[str, Any] | None) -> None:
        self._txns, self._keys = txns, len(txns.names.keys)
        self._key = txns.key
        self._steps = kernels.Steps(
            txns.starts, txns.outcome, txns.kind, txns.key, txns.length, txns.value, txns.elements
        )
        self._written = _written(self._steps, self._keys)
        self._txn_of = self._written.txn_of
        self._is_appended = np.zeros(self._keys, np.bool_)
        self._is_appended[self._key[txns.kind == APPEND]] = True
        self._longest: dict[int, tuple[int, ...]] = {}
        self._lists = self._order_lists()
        self._first = self._first_values(first)
        self._unusual = UnusualReads(
            txns,
            Writes(self._find, self._written.is_twice, self._written.is_last, self._txn_of),
            self._is_appended,
            lambda key: int(self._first.value[key]) if self._first.is_set[key] else None,
            is_first_given=first is not None,
        )

    def observed(self) -> Observed:
        """Return what the reads show."""
        self._doubt_repeated()
        reads = self._reads()
        committed = self._committed(reads)
        entries = self._entries(committed)
        is_list, order_starts, order = self._list_versions()
        is_chain, chain_starts, chained = self._chains(entries, reads)
        is_known = is_list | is_chain
        size = np.where(is_list, np.diff(order_starts), np.diff(chain_starts)) * is_known
        starts = np.append(0, np.cumsum(size))
        txn = np.empty(starts[-1], np.int64)
        for which, its_starts, its in ((is_list, order_starts, order),
                                       (is_chain, chain_starts, chained)):  # fmt: skip
            into, out = _ranges(starts, which), _ranges(its_starts, which)
            txn[into] = its[out]
        later_starts, later = self._later(committed, is_list)
        versions = Versions(starts, txn, is_known, later_starts, later)
        return Observed(
            self._txns, committed, reads, entries, versions,
            self._unusual.anomalies, self._unusual.doubts,
        )  # fmt: skip

    def _find(self, key: int, value: int) -> int:
        slots = self._written.slots
        return int(kernels.find(slots, self._steps.key, self._steps.value, key, value))

    def _order_lists(self) -> kernels.Lists:
        keys, none = self._keys, np.zeros(0, np.int64)
        lists = kernels.Lists(
            np.full(keys, -1, np.int64), np.ones(keys, np.bool_), np.zeros(keys, np.int64),
            none, none, np.full(len(self._key), -1, np.int64),
        )  # fmt: skip
        starts, order = kernels.order_lists(self._steps, self._written, lists)
        return lists._replace(starts=starts, order=order)

    def _first_values(self, given: Mapping[str, Any] | None) -> kernels.First:
        """Return what keys hold at first, by number."""
        first = kernels.First(
            self._is_appended, np.zeros(self._keys, np.bool_), np.zeros(self._keys, np.int64)
        )
        if given is None:
            was_empty = np.zeros(self._keys, np.bool_)
            kernels.assume_first(self._steps, self._written.slots, was_empty, first)
        for number, key in enumerate(self._txns.names.keys) if given else ():
            value = self._txns.names.number(given.get(str(key)) if given else None)
            if value is not None:
                first.is_set[number], first.value[number] = True, value
        return first

    def _doubt_repeated(self) -> None:
        twice = np.flatnonzero(self._written.is_twice)
        if len(twice):
            _, key, value = self._txns.step(int(twice[0]))
            self._unusual.doubts.append(
                f"{len(twice)} values were written more than once, so reads do not show by"
                f" whom: {shown(value)} in {key_name(key)}"
            )

    def _reads(self) -> Reads:
        """Trace all reads."""
        txns = self._txns
        writer = np.full(len(self._key), NOT_TRACED, np.int64)
        size = np.zeros(len(self._key), np.int64)
        is_odd = np.zeros(len(txns), np.bool_)
        kernels.trace(self._steps, self._written, self._lists, self._first, writer, size, is_odd)
        for number in np.flatnonzero(is_odd).tolist():
            places = txns.places(number)
            writer[places.start : places.stop] = NOT_TRACED
            for read in self._unusual.reads(number):
                writer[read.place], size[read.place] = read.writer, read.length
        found = np.flatnonzero(writer != NOT_TRACED)
        key = self._key[found].astype(np.int64)
        return Reads(self._txn_of[found], key, writer[found], size[found])

    def _committed(self, reads: Reads) -> Bools:
        """Return which transactions are ok, or were seen."""
        txns = self._txns
        committed = txns.outcome == OK
        committed[reads.writer[reads.writer != INITIAL]] = True
        shown_by = self._txn_of[self._lists.order[self._lists.order >= 0]]
        committed[shown_by[txns.outcome[shown_by] == INFO]] = True
        disagreed = self._is_appended & ~self._lists.is_agreed
        is_read = (txns.kind == READ) & disagreed[self._key] & (txns.length > 0)
        for place in np.flatnonzero(is_read).tolist():
            elements = txns.numbered(place)
            for value in elements if isinstance(elements, tuple) else ():
                writer = self._unusual.txn_of(int(self._key[place]), value)
                if writer is not None and txns.outcome[writer] == INFO:
                    committed[writer] = True
        return np.asarray(committed)

    def _entries(self, committed: Bools) -> Entries:
        steps = np.flatnonzero(self._written.is_last)
        steps = steps[committed[self._txn_of[steps]]]
        code = np.sort(self._txn_of[steps] * self._keys + self._key[steps])
        txn = code // max(1, self._keys)
        starts = np.searchsorted(txn, np.arange(len(committed) + 1))
        return Entries(txn, code - txn * self._keys, starts, code, self._keys)

    def _list_versions(self) -> tuple[Bools, Ints, Ints]:
        """Return for which keys lists show the order, where it starts, and the transactions."""
        starts, steps = self._lists.starts, self._lists.order
        key = np.repeat(np.arange(self._keys), np.diff(starts))
        is_known = self._is_appended & self._lists.is_agreed
        # An element that is there twice is a version once.
        is_first = self._lists.place_of[steps] == np.arange(len(steps)) - starts[key]
        is_unknown = steps < 0
        is_known[key[is_unknown]] = False
        self._note_disagreed()
        keep = is_first & ~is_unknown
        kept = np.append(0, np.cumsum(np.bincount(key[keep], minlength=self._keys)))
        return is_known, kept, self._txn_of[steps[keep]]

    def _note_disagreed(self) -> None:
        """Note for each key without an order two reads that show it."""
        txns = self._txns
        disagreed = self._is_appended & ~self._lists.is_agreed
        is_list = (txns.kind == READ) & disagreed[self._key] & (txns.length >= 0)
        others: dict[int, int] = {}
        for place in np.flatnonzero(is_list).tolist():
            key = int(self._key[place])
            longest = self._longest_of(key)
            if key not in others and longest[: txns.length[place]] != txns.numbered(place):
                others[key] = place
        for key, other in sorted(others.items()):
            number, by = int(self._txn_of[other]), int(self._txn_of[self._lists.longest[key]])
            self._unusual.note(
                "incompatible-order",
                f"{txns.describe(number)} and {txns.describe(by)} read"
                f" {key_name(txns.names.keys[key])} in orders of which neither begins with the"
                " other",
                number, by,
            )  # fmt: skip

    def _longest_of(self, key: int) -> tuple[int, ...]:
        if key not in self._longest:
            longest = self._txns.numbered(int(self._lists.longest[key]))
            assert isinstance(longest, tuple), "the longest list is one"
            self._longest[key] = longest
        return self._longest[key]

    def _chains(self, entries: Entries, reads: Reads) -> tuple[Bools, Ints, Ints]:
        """Order the transactions that wrote a key where each shows the one before it.

        Source: mini-transactions (arXiv 2504.02344), where every write follows a read of its key.
        """
        mine = np.flatnonzero(~self._is_appended[entries.key])
        mine = mine[np.argsort(entries.key[mine], kind="stable")]
        place = np.full(len(entries.txn), -1, np.int64)
        place[mine] = np.arange(len(mine))
        over = np.full(len(mine), BLIND, np.int64)
        own = entries.find(reads.txn, reads.key)
        is_over = (own >= 0) & ~self._is_appended[reads.key]
        own, writer, key = own[is_over], reads.writer[is_over], reads.key[is_over]
        before = entries.find(np.maximum(writer, 0), key)
        before = np.where(before >= 0, place[before], DANGLING)
        over[place[own]] = np.where(writer == INITIAL, INITIAL, before)
        counts = np.bincount(entries.key[mine], minlength=self._keys)
        starts = np.append(0, np.cumsum(counts))
        order = np.zeros(len(mine), np.int64)
        is_known = np.empty(self._keys, np.bool_)
        kernels.chain(entries.key[mine], over, starts, order, is_known)
        return is_known & (counts > 0), starts, entries.txn[mine][order]

    def _later(self, committed: Bools, is_list: Bools) -> tuple[Ints, Ints]:
        """Return for each key the transactions whose elements no read shows."""
        steps = np.flatnonzero(
            (self._txns.kind == APPEND) & (self._lists.place_of < 0) & committed[self._txn_of]
            & is_list[self._key] & ~self._written.is_repeat
        )  # fmt: skip
        code = np.unique(self._key[steps] * np.int64(len(self._txns)) + self._txn_of[steps])
        key = code // max(1, len(self._txns))
        starts = np.searchsorted(key, np.arange(self._keys + 1))
        return starts, code - key * len(self._txns)


def _written(steps: kernels.Steps, keys: int) -> kernels.Written:
    """Return what is known of writes."""
    count = len(steps.kind)
    writes = int(np.count_nonzero(steps.kind != READ))
    written = kernels.Written(
        np.full(1 << (2 * writes + 1).bit_length(), -1, np.int64),
        is_twice=np.zeros(count, np.bool_),
        is_repeat=np.zeros(count, np.bool_),
        is_last=np.zeros(count, np.bool_),
        before=np.full(count, -1, np.int64),
        txn_of=np.empty(count, np.int64),
    )
    kernels.index_writes(steps, written, keys)
    return written


def _ranges(starts: Ints, which: Bools) -> Ints:
    """Return the places that belong to some of the keys."""
    is_of = np.repeat(which, np.diff(starts))
    return np.flatnonzero(is_of)


# Unusual reads.

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
