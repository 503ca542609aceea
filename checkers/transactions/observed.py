"""Trace each read to the transaction that wrote what it saw; find what reads show by themselves.

A value written once in a key, or an element appended once, names its transaction. A value that was
written twice names none: reads of it prove nothing, and the verdict is never VALID.

What a key holds at first is nothing, or what the history's format or --initial says. If neither
says it, one value of a key that was read and never written is taken for its first one, unless
another read found nothing there.

Sources: Adya 1999 (G1a, G1b); Elle, VLDB 2020 (internal, dirty update, duplicates); AWDIT (arXiv
2504.06975), for read consistency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shaketable.checkers.transactions.history import (
    APPEND,
    READ,
    WRITE,
    Transaction,
    key_name,
    shown,
)

INITIAL: Final = -1
"""The writer of what a key holds at first."""


class Read(NamedTuple):
    """An external read: transaction, its step, the key, and who wrote what it saw.

    `length`: of a list, how many elements it saw.
    """

    txn: int
    step: int
    key: Any
    writer: int
    length: int = 0


class Anomaly(NamedTuple):
    """What some transactions show: kind, a sentence, and the transactions.

    `cycle`: of a cycle its edges, each (source, target, kind, why).
    """

    kind: str
    message: str
    txns: tuple[int, ...]
    cycle: tuple[tuple[int, int, str, str], ...] = ()


class _Write(NamedTuple):
    txn: int
    step: int


@dataclass(slots=True)
class Observed:
    """What the reads of a history show.

    Attributes:
        txns: all transactions.
        committed: those that certainly committed: ok, or seen by one that is.
        reads: external reads whose writer is known, by transaction, in the order of its steps.
        writes: for each committed transaction the keys that it writes.
        versions: for each key of which reads show it, the transactions of its versions in their
            order: of each element of a list, or of each value if every transaction but the first
            read the value that it wrote over.
        later: for each such key the committed transactions of elements that no read shows.
        anomalies: what reads show by themselves.
        doubts: why something may be missed.
    """

    txns: Sequence[Transaction]
    committed: list[bool] = field(default_factory=list)
    reads: list[list[Read]] = field(default_factory=list)
    writes: list[dict[Any, int]] = field(default_factory=list)
    versions: dict[Any, list[int]] = field(default_factory=dict)
    later: dict[Any, list[int]] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def observe(txns: Sequence[Transaction], first: Mapping[str, Any] | None = None) -> Observed:
    """Trace the reads of all transactions.

    Args:
        txns: the transactions.
        first: what keys hold at first, nothing if they are not in it; None: it is not known.
    """
    tracer = _Tracer(txns, first)
    return tracer.trace()


class _Tracer:
    """Traces reads; one object for each history."""

    def __init__(self, txns: Sequence[Transaction], first: Mapping[str, Any] | None) -> None:
        self._txns, self._first = txns, first
        self._found = Observed(txns)
        self._writer: dict[tuple[Any, Any], _Write] = {}
        self._twice: Counter[tuple[Any, Any]] = Counter()
        self._last: list[dict[Any, int]] = []  # by transaction: its last write of each key, a step
        self._appended: set[Any] = set()
        self._assumed: dict[Any, Any] = {}
        self._was_empty = set(self._keys_read_empty())

    def trace(self) -> Observed:
        """Return what the reads show."""
        found = self._found
        for number, txn in enumerate(self._txns):
            self._add_writes(number, txn)
        if self._twice:
            (key, value), _ = self._twice.most_common(1)[0]
            found.doubts.append(
                f"{len(self._twice)} values were written more than once, so reads do not show by"
                f" whom: {value} in {key_name(key)}"
            )
        found.reads = [list(self._reads(number)) for number in range(len(self._txns))]
        found.committed = self._committed()
        found.writes = [
            last if is_committed else {}
            for last, is_committed in zip(self._last, found.committed, strict=True)
        ]
        self._order_versions()
        self._order_values()
        return found

    def _add_writes(self, number: int, txn: Transaction) -> None:
        last: dict[Any, int] = {}
        for place, (f, key, value) in enumerate(txn.steps):
            if f == READ:
                continue
            last[key] = place
            if f == APPEND:
                self._appended.add(key)
            before = self._writer.setdefault((key, value), _Write(number, place))
            if before != (number, place):
                self._twice[key, value] += 1
        self._last.append(last)

    def _reads(self, number: int) -> Iterator[Read]:
        """Yield the external reads of a transaction; note what contradicts the transaction."""
        txn = self._txns[number]
        written: dict[Any, Any] = {}
        appended: dict[Any, tuple[Any, ...]] = {}
        seen: dict[Any, tuple[Any, Read | None]] = {}
        for place, (f, key, value) in enumerate(txn.steps):
            if f == WRITE:
                written[key] = value
            elif f == APPEND:
                appended[key] = (*appended.get(key, ()), value)
            elif key in written:
                if value != written[key]:
                    self._note_internal(number, key, value, written[key])
            else:
                is_list = key in self._appended and value is None
                external = self._without_own(number, key, () if is_list else value, appended)
                if external is _UNREAD:
                    continue
                before = seen.get(key)
                if before is None or before[0] != external:
                    if before is not None:
                        self._note_internal(number, key, external, before[0])
                    is_again = before is not None
                    read = self._external(number, place, key, external, is_again=is_again)
                    seen[key] = (external, read)
                if (traced := seen[key][1]) is not None:
                    yield traced._replace(step=place)

    def _note_internal(self, number: int, key: Any, value: Any, before: Any) -> None:
        self._note(
            "internal",
            f"{self._txns[number].describe()} read {shown(value)} in {key_name(key)}, where it had"
            f" {shown(before)} before",
            number,
        )

    def _without_own(
        self, number: int, key: Any, value: Any, appended: Mapping[Any, tuple[Any, ...]]
    ) -> Any:
        """Return what a read saw of others: a list without the transaction's own appends."""
        own = appended.get(key, ())
        if not own:
            return value
        if isinstance(value, tuple) and value[len(value) - len(own) :] == own:
            return value[: len(value) - len(own)]
        self._note(
            "internal",
            f"{self._txns[number].describe()} read {shown(value)} in {key_name(key)} after its own"
            f" appends of {shown(own)}",
            number,
        )
        return _UNREAD

    def _external(
        self, number: int, place: int, key: Any, value: Any, *, is_again: bool
    ) -> Read | None:
        if key in self._appended:
            return self._list_read(number, place, key, value)
        if value in (None, ()) or self._is_first(key, value):
            return Read(number, place, key, INITIAL)
        if is_again and self._first is None and (key, value) not in self._writer:
            return None  # either of the two values may be the first one: noted as internal
        return self._read_of(number, place, key, value, value)

    def _list_read(self, number: int, place: int, key: Any, seen: Any) -> Read | None:
        if not isinstance(seen, tuple):
            self._found.doubts.append(
                f"op {self._txns[number].op} read no list in {key_name(key)}, where others append"
            )
            return None
        counts = Counter(seen)
        if len(counts) < len(seen):
            twice = next(value for value, count in counts.items() if count > 1)
            self._note(
                "duplicate-elements",
                f"{self._txns[number].describe()} read {shown(seen)} in {key_name(key)}: {twice} is"
                " there more than once",
                number,
            )
        if not seen:
            return Read(number, place, key, INITIAL)
        self._note_aborted(number, key, seen)
        if any(self._txn_of(key, value) == number for value in seen[:-1]):
            self._future(number, key, seen)
            return None
        read = self._read_of(number, place, key, seen[-1], seen)
        return None if read is None else read._replace(length=len(seen))

    def _note_aborted(self, number: int, key: Any, seen: tuple[Any, ...]) -> None:
        """Note elements of failed transactions, and committed ones that were appended after."""
        aborted = None
        for value in seen:
            writer = self._txn_of(key, value)
            if writer is None:
                continue
            if self._txns[writer].outcome == "fail":
                if value != seen[-1]:  # the last one is noted as the version that was read
                    self._note_g1a(number, key, value, writer)
                aborted = writer
            elif aborted is not None:
                self._note(
                    "dirty-update",
                    f"{self._txns[writer].describe()} appended to {key_name(key)} after"
                    f" {self._txns[aborted].describe()}, which failed, as"
                    f" {self._txns[number].describe()} shows",
                    aborted, writer, number,
                )  # fmt: skip
                aborted = None

    def _read_of(self, number: int, place: int, key: Any, version: Any, seen: Any) -> Read | None:
        if (key, version) in self._twice:
            return None
        write = self._writer.get((key, version))
        reader = self._txns[number].describe()
        if write is None:
            self._note(
                "thin-air-read",
                f"{reader} read {shown(seen)} in {key_name(key)}, and no transaction wrote"
                f" {shown(version)}",
                number,
            )
            return None
        if write.txn == number:
            self._future(number, key, seen)
            return None
        writer = self._txns[write.txn]
        if writer.outcome == "fail":
            self._note_g1a(number, key, version, write.txn)
            return None
        if self._last[write.txn][key] != write.step:
            self._note(
                "G1b",
                f"{reader} read {shown(version)} in {key_name(key)}, which {writer.describe()}"
                " wrote over itself",
                write.txn, number,
            )  # fmt: skip
        return Read(number, place, key, write.txn)

    def _future(self, number: int, key: Any, seen: Any) -> None:
        self._note(
            "future-read",
            f"{self._txns[number].describe()} read {shown(seen)} in {key_name(key)} before it wrote"
            " that itself",
            number,
        )

    def _note_g1a(self, number: int, key: Any, value: Any, writer: int) -> None:
        self._note(
            "G1a",
            f"{self._txns[number].describe()} read {shown(value)} in {key_name(key)}, which"
            f" {self._txns[writer].describe()} wrote, and that failed",
            writer, number,
        )  # fmt: skip

    def _is_first(self, key: Any, value: Any) -> bool:
        """Return whether that may be what the key held at first."""
        if self._first is not None:
            return bool(self._first.get(str(key), _UNREAD) == value)
        if (key, value) in self._writer or key in self._was_empty:
            return False
        return bool(self._assumed.setdefault(key, value) == value)

    def _keys_read_empty(self) -> Iterator[Any]:
        """Yield the keys in which a transaction read nothing before it wrote there."""
        for txn in self._txns:
            written: set[Any] = set()
            for f, key, value in txn.steps if txn.is_ok else ():
                if f != READ:
                    written.add(key)
                elif value in (None, ()) and key not in written:
                    yield key

    def _txn_of(self, key: Any, value: Any) -> int | None:
        write = None if (key, value) in self._twice else self._writer.get((key, value))
        return None if write is None else write.txn

    def _note(self, kind: str, message: str, *txns: int) -> None:
        self._found.anomalies.append(Anomaly(kind, message, tuple(dict.fromkeys(txns))))

    def _committed(self) -> list[bool]:
        committed = [txn.is_ok for txn in self._txns]
        for reads in self._found.reads:
            for read in reads:
                if read.writer != INITIAL:
                    committed[read.writer] = True
        for txn in self._txns:
            for f, key, value in txn.steps:
                if f == READ and key in self._appended and isinstance(value, tuple):
                    for each in value:
                        writer = self._txn_of(key, each)
                        if writer is not None and self._txns[writer].outcome == "info":
                            committed[writer] = True
        return committed

    def _order_versions(self) -> None:
        """Order the transactions that appended to each key by the longest list that was read."""
        lists: dict[Any, list[tuple[tuple[Any, ...], int]]] = {key: [] for key in self._appended}
        for number, txn in enumerate(self._txns):
            for f, key, value in txn.steps:
                if f == READ and key in lists and isinstance(value, tuple):
                    lists[key].append((value, number))
        elements: dict[Any, list[tuple[Any, int]]] = {key: [] for key in self._appended}
        for (key, value), write in self._writer.items():
            if key in elements and self._found.committed[write.txn]:
                elements[key].append((value, write.txn))
        for key in sorted(self._appended, key=str):
            order = self._versions_of(key, lists[key])
            if order is not None:
                self._found.versions[key] = order
                read = {value for seen, _ in lists[key] for value in seen}
                unread = [txn for value, txn in elements[key] if value not in read]
                self._found.later[key] = list(dict.fromkeys(unread))

    def _order_values(self) -> None:
        """Order the transactions that wrote a key where each shows the one before it.

        Source: mini-transactions (arXiv 2504.02344), where every write follows a read of its key.
        """
        before: dict[Any, dict[int, int | None]] = {}
        for number, last in enumerate(self._found.writes):
            for key in last:
                if key not in self._appended:
                    before.setdefault(key, {})[number] = None
        for reads in self._found.reads:
            for read in reads:
                if read.txn in before.get(read.key, ()):
                    before[read.key][read.txn] = read.writer
        for key, of_key in before.items():
            order = _chain(of_key)
            if order is not None:
                self._found.versions[key] = order
                self._found.later[key] = []

    def _versions_of(
        self, key: Any, lists: Sequence[tuple[tuple[Any, ...], int]]
    ) -> list[int] | None:
        """Return the transactions that appended to a key, in order; None if reads do not agree."""
        longest, by = max(lists, key=lambda each: len(each[0]), default=((), -1))
        for seen, number in lists:
            if longest[: len(seen)] != seen:
                self._note(
                    "incompatible-order",
                    f"{self._txns[number].describe()} and {self._txns[by].describe()} read"
                    f" {key_name(key)} in orders of which neither begins with the other",
                    number, by,
                )  # fmt: skip
                return None
        writers = [self._txn_of(key, value) for value in dict.fromkeys(longest)]
        return None if None in writers else [each for each in writers if each is not None]


def _chain(before: Mapping[int, int | None]) -> list[int] | None:
    """Return transactions in the order in which each wrote over the one before it.

    `before` has for each the writer of what it wrote over; None: it did not read that. None if
    these do not make one chain.
    """
    after: dict[int | None, int] = {}
    for number, over in before.items():
        if over in after:
            return None
        after[over] = number
    if None in after and INITIAL in after:
        return None
    order: list[int] = []
    newest = after.get(None, after.get(INITIAL))
    while newest is not None and len(order) < len(before):
        order.append(newest)
        newest = after.get(newest)
    return order if len(order) == len(before) else None


_UNREAD: Final = object()
