"""Judges a growing history by Spark Structured Streaming: a state for each bucket of its keys.

A source reads the lines that were appended to a file, and gives each bucket those of its keys; the
bucket's judge (`checkers.online`) takes them and is the state that Spark keeps. It is in the
query's checkpoint, with how far the file was read, so that a query that was killed goes on there.

A group costs Spark about a millisecond a batch, however few its rows: so keys share buckets, and a
bucket gets one row for all of its lines.

Source: Spark's Structured Streaming guide, "Arbitrary stateful operations"; PySpark's
DataSourceStreamReader (Python data sources).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge, Violation
from shaketable.checkers.spark.session import Session, first_line
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.foreign.columns import key_text, split_key
from shaketable.harness.history.foreign.jsonl import EventLine

BUCKETS: Final = 32
"""Keys are judged in so many groups; fixed by a query's checkpoint."""
BATCH_BYTES: Final = 16 << 20
"""How much of the file one batch takes at most."""
PART_BYTES: Final = 1 << 20
"""How much of it one task reads, to the end of a line."""
LINE_BYTES_MAX: Final = 16 << 20
SOURCE: Final = "shaketable_history"
_ROWS: Final = "bucket int, at long, body binary"
_STATE: Final = "through long, ended string, judge binary"
_FOUND: Final = "bucket int, through long, body binary"


class Slice(msgspec.Struct, kw_only=True):
    """The lines of one bucket in a part of the file.

    `numbers` are those of the lines, from 0. `through` is the number after the part's last line,
    `byte` the place after it, `until_ns` its time. `hole` says why nothing after these is judged.
    `ended`: all of the history is there; the judges are to say what they know.
    """

    numbers: list[int]
    lines: list[bytes]
    through: int
    byte: int
    until_ns: int | None = None
    hole: str | None = None
    ended: str | None = None


class Progress(msgspec.Struct, kw_only=True):
    """What a bucket's judge knows after a batch.

    At the end alone (`ended`) its `outcome` is given, how many keys are unknown for each reason
    (`doubts`), and why something was not judged (`lacks`).
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


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is judged: a file of JSON lines, the model of each key, where the checkpoint is.

    `end_file` holds a text once the history is whole; each new one asks the judges again.
    """

    path: Path
    model: str
    initial: str | None
    splits_keys: bool
    checkpoint: Path
    end_file: Path


def start_query(session: Session, plan: StreamPlan, take: Callable[[list[Progress]], None]) -> Any:
    """Start the query; `take` gets what is known after each batch, in a thread of its own.

    A batch that was not committed before the query was killed is judged again, and given again.

    Raises:
        HarnessError: Spark does not start it.
    """
    spark = session.frames
    try:
        spark.dataSource.register(HistorySource)
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
        rows = (
            spark.readStream.format(SOURCE)
            .option("path", str(plan.path))
            .option("end_file", str(plan.end_file))
            .option("splits_keys", str(plan.splits_keys).lower())
            .load()
        )
        judged = rows.groupBy("bucket").applyInPandasWithState(
            BucketJudge(plan), _FOUND, _STATE, "append", "NoTimeout"
        )

        def give(batch: Any, _number: int) -> None:
            table = batch.toArrow()
            bodies = table["body"].to_pylist()
            take([msgspec.json.decode(body, type=Progress) for body in bodies])

        return (
            judged.writeStream.foreachBatch(give)
            .option("checkpointLocation", plan.checkpoint.absolute().as_uri())
            .start()
        )
    except Exception as error:
        raise HarnessError(f"Spark does not judge {plan.path}: {first_line(error)}") from error


# The source: the lines of a file that grows.


@dataclass(frozen=True, slots=True)
class _Part(InputPartition):  # type: ignore[misc]  # pyspark has no types for it
    """A range of the file: whole lines. `line` is the number of its first."""

    start: int
    stop: int
    line: int
    ended: str | None


class HistorySource(DataSource):  # type: ignore[misc]  # pyspark has no types for it
    """The format `shaketable_history`: a row for each bucket of each part of the file."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return SOURCE

    def schema(self) -> str:
        """Return the columns."""
        return _ROWS

    def streamReader(self, schema: Any) -> HistoryReader:  # noqa: N802 - pyspark's names
        """Return what reads the file."""
        return HistoryReader(dict(self.options))


class HistoryReader(DataSourceStreamReader):  # type: ignore[misc]  # likewise
    """Reads whole lines. An offset is {byte, line, ended}: how far, and whether that was all."""

    def __init__(self, options: dict[str, str]) -> None:
        self._path = Path(options["path"])
        self._end_file = Path(options["end_file"])
        self._splits_keys = options["splits_keys"] == "true"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        """Return the start of the file."""
        return {"byte": 0, "line": 0, "ended": ""}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        """Return how far the next batch goes: some whole lines, or that there are no more."""
        asked = _text_of(self._end_file)  # first: what is there by then is all
        ends, lines = whole_lines(self._path, start["byte"], BATCH_BYTES)
        if ends > start["byte"]:
            return {"byte": ends, "line": start["line"] + lines, "ended": start["ended"]}
        return {**start, "ended": asked or start["ended"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """Return the parts of a batch."""
        if start["byte"] == end["byte"]:
            ended = end["ended"] if end["ended"] != start["ended"] else None
            return [_Part(end["byte"], end["byte"], end["line"], ended)] if ended else []
        parts, at, line = [], start["byte"], start["line"]
        while at < end["byte"]:
            stop, lines = whole_lines(self._path, at, min(PART_BYTES, end["byte"] - at))
            parts.append(_Part(at, stop, line, None))
            at, line = stop, line + lines
        return parts

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        """Read one part: a row for each bucket, also for those without lines in it."""
        with self._path.open("rb") as file:
            file.seek(partition.start)
            data = file.read(partition.stop - partition.start)
        slices = sliced(data, partition.line, splits_keys=self._splits_keys)
        for each in slices:
            each.byte, each.ended = partition.stop, partition.ended
        yield pa.RecordBatch.from_pydict(
            {
                "bucket": pa.array(range(BUCKETS), pa.int32()),
                "at": pa.array([partition.line] * BUCKETS, pa.int64()),
                "body": pa.array(map(msgspec.msgpack.encode, slices), pa.binary()),
            }
        )


def whole_lines(path: Path, start: int, size_max: int) -> tuple[int, int]:
    """Return where the last whole line ends within so many bytes, and how many lines that are.

    A line that is longer is taken whole.

    Raises:
        ValueError: the file was cut, or a line is too long.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < start:
            raise ValueError(f"it was cut: it has {size:,} bytes, and {start:,} were read")
        file.seek(start)
        data = file.read(size_max)
        end = data.rfind(b"\n") + 1
        while not end and len(data) < size - start:
            more = file.read(size_max)
            end = len(data) + more.find(b"\n") + 1 if b"\n" in more else 0
            data += more
            if len(data) > LINE_BYTES_MAX and not end:
                raise ValueError(f"a line of more than {LINE_BYTES_MAX:,} bytes")
    return start + end, data.count(b"\n", 0, end)


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


def sliced(data: bytes, first: int, *, splits_keys: bool) -> list[Slice]:
    """Give each bucket its lines of a part of the file, whose first line has the number `first`.

    Nothing is given after a line that cannot be read, or whose key is not known.
    """
    kind: type[_Routed | _RoutedByKey] = _Routed if splits_keys else _RoutedByKey
    decode = msgspec.json.Decoder(kind).decode
    lines = data.split(b"\n")
    lines.pop()  # after the last end of a line
    slices = [
        Slice(numbers=[], lines=[], through=first + len(lines), byte=0) for _ in range(BUCKETS)
    ]
    until_ns: int | None = None
    for number, line in enumerate(lines, first):
        if not line or line.isspace():
            continue
        try:
            event = decode(line)
            bucket = None if event.process in ("nemesis", -1) else bucket_of(event)
        except (msgspec.DecodeError, ValueError) as error:
            hole = f"line {number + 1:,} cannot be judged: {error}"
            for each in slices:
                each.hole = hole
            break
        until_ns = event.time_ns if event.time_ns is not None else event.time
        if bucket is not None:
            slices[bucket].numbers.append(number)
            slices[bucket].lines.append(line)
    for each in slices:
        each.until_ns = until_ns
    return slices


def bucket_of(event: _Routed | _RoutedByKey) -> int:
    """Return the bucket of an event's key; events without a key are of one object.

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
            raise ValueError("no [key value] to split by; Spark needs it in each event")
        key = pair[0]
    return zlib.crc32(key.encode()) % BUCKETS


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


# The judges: one a bucket, kept by Spark between batches.

_JUDGES: Final[dict[tuple[str, int], tuple[int, HistoryJudge]]] = {}
"""Judges of this process, and through which line: as good as Spark's state that is as far."""


class BucketJudge:
    """Judges what came for a bucket; called by Spark for each bucket and batch."""

    def __init__(self, plan: StreamPlan) -> None:
        self._model = plan.model
        self._initial = plan.initial
        self._splits_keys = plan.splits_keys
        self._query = str(plan.checkpoint)

    def __call__(self, key: tuple[int], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        """Take the bucket's slices in order; give what is known then."""
        [bucket] = key
        judge = self._judge(int(bucket), state)
        slices = [
            msgspec.msgpack.decode(body, type=Slice) for frame in frames for body in frame["body"]
        ]
        slices.sort(key=lambda each: (each.through, each.byte))
        violations: list[Violation] = []
        decode = msgspec.json.Decoder(EventLine).decode
        for each in slices:
            violations += take_slice(judge, each, decode)
        last = slices[-1]
        stored = msgspec.json.encode(judge.to_plain())
        state.update((last.through, last.ended or "", stored))
        _JUDGES[self._query, int(bucket)] = (last.through, judge)
        known = Progress(
            bucket=int(bucket), operations=judge.operations, keys=judge.keys, open=judge.open,
            through=last.through, byte=last.byte, violations=violations,
        )  # fmt: skip
        if last.ended is not None:
            self._conclude(known, last.ended, stored)
        yield _frame(int(bucket), known)

    def _judge(self, bucket: int, state: Any) -> HistoryJudge:
        if not state.exists:
            return self._new()
        through, _, stored = state.get
        kept = _JUDGES.pop((self._query, bucket), None)  # if this fails, it is of no use
        return kept[1] if kept is not None and kept[0] == through else self._restored(stored)

    def _conclude(self, known: Progress, ended: str, stored: bytes) -> None:
        """Say what the end of the history shows; the state stays as it was, to go on from."""
        judge = self._restored(stored)
        known.violations = [*known.violations, *judge.finish()]
        known.ended, known.outcome = ended, judge.outcome().value
        known.doubts, known.lacks = dict(judge.unknown_keys()), judge.lacks()

    def _new(self) -> HistoryJudge:
        return HistoryJudge(model_named(self._model), self._initial, splits_keys=self._splits_keys)

    def _restored(self, stored: bytes) -> HistoryJudge:
        judge = self._new()
        judge.restore(msgspec.json.decode(stored), lambda each: msgspec.convert(each, EventLine))
        return judge


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
    return found + judge.clock(given.until_ns)


def _frame(bucket: int, known: Progress) -> Any:
    import pandas as pd  # noqa: PLC0415 - only where Spark calls, which has it loaded

    body = msgspec.json.encode(known)
    return pd.DataFrame({"bucket": [bucket], "through": [known.through], "body": [body]})
