"""Shares a growing history among several judges: each gets the lines of its keys. Pure.

Lines are dealt out by key, so each judge sees all that happened to an object, in order. It also
gets the time of the last line, for it judges answers once no call at the same time can come.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shaketable.checkers.online import NEMESIS, HistoryJudge, Violation
from shaketable.harness.history.foreign.columns import key_text, split_key
from shaketable.harness.history.foreign.jsonl import EventLine


class Slice(msgspec.Struct, kw_only=True):
    """The lines of one judge in a part of the file.

    `numbers` are those of the lines, from 0. `through` is the number after the part's last line,
    `byte` the place after it, `until_ns` the time of the last event of a client, if it has one
    (`is_later`: there was such an event). `hole` says why nothing after these is judged.
    `is_settled`: for some time there was nothing new. `ended`: all of the history is there, and the
    judge is to say what it knows.
    """

    numbers: list[int]
    lines: list[bytes]
    through: int
    byte: int = 0
    until_ns: int | None = None
    is_later: bool = False
    hole: str | None = None
    is_settled: bool = False
    ended: str | None = None


class Progress(msgspec.Struct, kw_only=True):
    """What a judge knows after a slice.

    `lacks` says why something was not judged. At the end alone (`ended`) its `outcome` is given,
    and how many keys are unknown for each reason (`doubts`).
    """

    bucket: int
    operations: int
    keys: int
    open: int
    through: int
    byte: int
    violations: list[Violation]
    ended: str | None = None
    outcome: int | None = None
    doubts: dict[str, int] = msgspec.field(default_factory=dict)
    lacks: list[str] = msgspec.field(default_factory=list)


class _Routed(msgspec.Struct, gc=False):
    """What of an event says whose it is."""

    type: str
    process: int | str | None = None
    key: str | int | None = None
    value: Any = None
    time_ns: int | None = None
    time: int | None = None


class _RoutedByKey(msgspec.Struct, gc=False):
    type: str
    process: int | str | None = None
    key: str | int | None = None
    time_ns: int | None = None
    time: int | None = None


def sliced(lines: Sequence[bytes], first: int, buckets: int, *, splits_keys: bool) -> list[Slice]:
    """Give each of so many judges its lines of a part, whose first line has the number `first`.

    Nothing is given after a line that cannot be read, or whose key is not known.
    """
    kind: type[_Routed | _RoutedByKey] = _Routed if splits_keys else _RoutedByKey
    decode = msgspec.json.Decoder(kind).decode
    through = first + len(lines)
    slices = [Slice(numbers=[], lines=[], through=through) for _ in range(buckets)]
    until_ns: int | None = None
    is_any = False
    for number, line in enumerate(lines, first):
        if not line or line.isspace():
            continue
        try:
            event = decode(line)
            if event.process is None or event.process in NEMESIS:
                continue  # a judge does not take its time, either
            bucket = _bucket_of(event, buckets)
        except (msgspec.DecodeError, ValueError) as error:
            hole = f"line {number + 1:,} cannot be judged: {error}"
            for each in slices:
                each.hole = hole
            break
        until_ns = event.time_ns if event.time_ns is not None else event.time
        slices[bucket].numbers.append(number)
        slices[bucket].lines.append(line)
        is_any = True
    for each in slices:
        each.until_ns, each.is_later = until_ns, is_any
    return slices


def _bucket_of(event: _Routed | _RoutedByKey, buckets: int) -> int:
    """Return whose an event is; events without a key are of one object.

    Raises:
        ValueError: the key should be in the value, and is not.
    """
    if event.key is not None:
        key = key_text(event.key)
    elif isinstance(event, _RoutedByKey):
        return 0
    else:
        pair = split_key(event.value)
        if pair is None:
            raise ValueError("no [key value] to split by, which several judges need in each event")
        key = pair[0]
    return zlib.crc32(key.encode()) % buckets


def take_slice(
    judge: HistoryJudge, given: Slice, decode: Callable[[bytes], EventLine]
) -> list[Violation]:
    """Judge the lines of a slice; return what they show."""
    found: list[Violation] = []
    for number, line in zip(given.numbers, given.lines, strict=True):
        try:
            event = decode(line)
            if event.index is None:
                event.index = number
            found += judge.take(event)
        except (msgspec.DecodeError, ValueError) as error:
            found += judge.miss(f"line {number + 1:,} cannot be judged: {error}")
    if given.hole is not None:
        found += judge.miss(given.hole)
    if given.is_later:
        found += judge.clock(given.until_ns)
    return found + judge.settle() if given.is_settled else found


def progress_of(judge: HistoryJudge, bucket: int, last: Slice, found: list[Violation]) -> Progress:
    """Return what a judge knows after its latest slice, and what the slices have shown."""
    return Progress(
        bucket=bucket, operations=judge.operations, keys=judge.keys, open=judge.open,
        through=last.through, byte=last.byte, violations=found, lacks=judge.lacks(),
    )  # fmt: skip


def conclude(judge: HistoryJudge, known: Progress, ended: str) -> None:
    """Take the end of the history, and say what it shows. The judge is of no use then."""
    known.violations = [*known.violations, *judge.finish()]
    known.ended, known.outcome = ended, judge.outcome().value
    known.doubts, known.lacks = dict(judge.unknown_keys()), judge.lacks()
