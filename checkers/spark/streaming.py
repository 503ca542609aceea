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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import (
    HistoryJudge,
    Progress,
    Slice,
    Violation,
    conclude,
    progress_of,
    sliced,
    take_slice,
)
from shaketable.checkers.spark.session import Session, first_line
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.foreign.jsonl import EventLine

BUCKETS: Final = 32
"""Keys are judged in so many groups; fixed by a query's checkpoint."""
BATCH_BYTES: Final = 16 << 20
"""How much of the file one batch takes at most."""
PART_BYTES: Final = 1 << 20
"""How much of it one task reads, to the end of a line."""
LINE_BYTES_MAX: Final = 16 << 20
SETTLED_AFTER_S: Final = 1.0
"""After so long without an event no further one has the time of the latest: clocks have gone on."""
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.sql.streaming.pollingDelay": "100ms",  # 10 by default: how often the file is looked at
    # A state is kept as often as a batch can be gone back to: 100 times by default.
    "spark.sql.streaming.minBatchesToRetain": "10",
}
SOURCE: Final = "shaketable_history"
_ROWS: Final = "bucket int, at long, body binary"
_STATE: Final = "version long, judge binary"
_FOUND: Final = "bucket int, through long, body binary"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is judged: a file of JSON lines, the model of each key, where the checkpoint is.

    `end_file` holds a token and a size once the history is over: its first so many bytes are whole,
    and what comes after is for another query. Each new token asks the judges again.
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
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
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
    is_settled: bool = False
    ended: str | None = None


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
    """Reads whole lines.

    An offset is {byte, line, settled, ended}: how far, up to which byte nothing came for some time,
    and whether that was all.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._path = Path(options["path"])
        self._end_file = Path(options["end_file"])
        self._splits_keys = options["splits_keys"] == "true"

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        """Return the start of the file."""
        return {"byte": 0, "line": 0, "settled": 0, "ended": ""}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        """Return how far the next batch goes: some whole lines, or that there are no more."""
        asked, stop = _asked(self._end_file)
        if asked == start["ended"]:
            stop = None
        ends, lines = whole_lines(self._path, start["byte"], BATCH_BYTES, stop)
        if ends > start["byte"]:
            return {**start, "byte": ends, "line": start["line"] + lines}
        if asked and asked != start["ended"]:
            return {**start, "ended": asked}
        is_settled = time.time() - self._path.stat().st_mtime >= SETTLED_AFTER_S
        return {**start, "settled": ends} if is_settled else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """Return the parts of a batch."""
        if start["byte"] == end["byte"]:
            if start == end:
                return []
            ended = end["ended"] if end["ended"] != start["ended"] else None
            at, is_settled = end["byte"], end["settled"] != start["settled"]
            return [_Part(at, at, end["line"], is_settled=is_settled, ended=ended)]
        parts, at, line = [], start["byte"], start["line"]
        while at < end["byte"]:
            stop, lines = whole_lines(self._path, at, min(PART_BYTES, end["byte"] - at))
            if stop == at:
                raise ValueError(f"it was cut: {end['byte']:,} bytes were read, or are to be")
            parts.append(_Part(at, stop, line))
            at, line = stop, line + lines
        return parts

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        """Read one part: a row for each bucket, also for those without lines in it."""
        with self._path.open("rb") as file:
            file.seek(partition.start)
            data = file.read(partition.stop - partition.start)
        if len(data) < partition.stop - partition.start:
            raise ValueError(f"it was cut: {partition.stop:,} bytes were to be read")
        lines = data.split(b"\n")[:-1]
        slices = sliced(lines, partition.line, BUCKETS, splits_keys=self._splits_keys)
        for each in slices:
            each.byte, each.ended = partition.stop, partition.ended
            each.is_settled = partition.is_settled
        yield pa.RecordBatch.from_pydict(
            {
                "bucket": pa.array(range(BUCKETS), pa.int32()),
                "at": pa.array([partition.line] * BUCKETS, pa.int64()),
                "body": pa.array(map(msgspec.msgpack.encode, slices), pa.binary()),
            }
        )


def whole_lines(path: Path, start: int, size_max: int, stop: int | None = None) -> tuple[int, int]:
    """Return where the last whole line ends within so many bytes, and how many lines that are.

    A line that is longer is taken whole. Nothing after `stop` is taken.

    Raises:
        ValueError: the file was cut, or a line is too long.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < start:
            raise ValueError(f"it was cut: it has {size:,} bytes, and {start:,} were read")
        size = size if stop is None else min(size, max(start, stop))
        file.seek(start)
        data = file.read(min(size_max, size - start))
        end = data.rfind(b"\n") + 1
        while not end and len(data) < size - start:
            more = file.read(min(size_max, size - start - len(data)))
            end = len(data) + more.find(b"\n") + 1 if b"\n" in more else 0
            data += more
            if len(data) > LINE_BYTES_MAX and not end:
                raise ValueError(f"a line of more than {LINE_BYTES_MAX:,} bytes")
    return start + end, data.count(b"\n", 0, end)


def _asked(end_file: Path) -> tuple[str, int | None]:
    """Return the token of who asks for the end, and how much of the history there is by then."""
    try:
        token, _, size = end_file.read_text(encoding="utf-8").partition(" ")
    except FileNotFoundError:
        return "", None
    return token, int(size)


# The judges: one a bucket, kept by Spark between batches.

_JUDGES: Final[dict[tuple[str, int], tuple[int, HistoryJudge]]] = {}
"""Judges of this process, with a version: as good as Spark's state of the same one."""


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
        version, judge = self._judge(int(bucket), state)
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
        state.update((version + 1, stored))
        _JUDGES[self._query, int(bucket)] = (version + 1, judge)
        known = progress_of(judge, int(bucket), last, violations)
        if last.ended is not None:  # the state stays as it was, to go on from
            conclude(self._restored(stored), known, last.ended)
        yield _frame(int(bucket), known)

    def _judge(self, bucket: int, state: Any) -> tuple[int, HistoryJudge]:
        if not state.exists:
            return 0, self._new()
        version, stored = state.get
        kept = _JUDGES.pop((self._query, bucket), None)  # if this fails, it is of no use
        is_same = kept is not None and kept[0] == version
        return version, kept[1] if kept is not None and is_same else self._restored(stored)

    def _new(self) -> HistoryJudge:
        return HistoryJudge(model_named(self._model), self._initial, splits_keys=self._splits_keys)

    def _restored(self, stored: bytes) -> HistoryJudge:
        judge = self._new()
        judge.restore(msgspec.json.decode(stored), lambda each: msgspec.convert(each, EventLine))
        return judge


def _frame(bucket: int, known: Progress) -> Any:
    import pandas as pd  # noqa: PLC0415 - only where Spark calls, which has it loaded

    body = msgspec.json.encode(known)
    return pd.DataFrame({"bucket": [bucket], "through": [known.through], "body": [body]})
