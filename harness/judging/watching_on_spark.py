"""Watches a history as `judging.watching` does, by a query of Spark Structured Streaming.

The checkpoint is a folder: Spark's own, which says how far the history was judged and holds each
key's state; what is watched; the violations that were found, and those that were shown.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge, Violation
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.judging.engines import SPARK, Engine
from shaketable.harness.judging.watching import (
    LINE_BYTES_MAX,
    SAMPLE_BYTES,
    STDIN,
    TOLD_MAX,
    CheckpointOf,
    Found,
    SharedWatch,
    WatchSettings,
    require_same,
    sample_of,
)
from shaketable.harness.run_markers import scratch_prefix

if TYPE_CHECKING:
    from shaketable.checkers.online import Progress

FORMAT: Final = 1
POLL_S: Final = 0.1
FINISH_TIMEOUT_S: Final = 600.0
"""How long what is still to be judged may take once the history has ended."""
RAISED: Final = re.compile(r"(?m)^(?:\w+\.)*\w*(?:Error|Exception): (.+)$")
WATCHED: Final = "watch.json"
FOUND: Final = "found.jsonl"
TOLD: Final = "told.jsonl"
ENDED: Final = "ended"


class SparkWatch(SharedWatch):
    """One watch, from its start, or from its checkpoint; see `judging.watching.Watch`.

    Raises:
        UsageError: the history cannot be read, the checkpoint is of another one, or Spark cannot
            be used; one line.
        HarnessError: Spark does not start.
    """

    def __init__(self, given: WatchSettings, master: str, say: Callable[[str], None]) -> None:
        self._file = _identity(given.path)
        HistoryJudge(model_named(given.model), given.initial, splits_keys=False)  # as judges will
        if master.startswith("sc://"):
            raise UsageError("watch needs its driver here: a Spark master, no Spark Connect server")
        self._given = given
        self._is_scratch = given.checkpoint is None
        self._folder = given.checkpoint or Path(tempfile.mkdtemp(prefix=scratch_prefix("watch")))
        super().__init__()
        self._sampled = 0
        self._given_back: queue.Queue[list[Progress]] = queue.Queue()
        self.was_continued = self._continue()
        self._engine = Engine(SPARK, master)
        self._query: Any = None
        try:
            self._start(say)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the query and Spark."""
        if self._query is not None:
            with contextlib.suppress(Exception):  # its Spark may be gone
                self._query.stop()
            self._query = None
        self._engine.stop()
        if self._is_scratch:
            shutil.rmtree(self._folder, ignore_errors=True)

    def step(self, wait_s: float) -> tuple[int, list[Violation]]:
        """Take what was judged meanwhile; return how many lines that was, and what they show.

        Raises:
            HarnessError: the file was cut, or cannot be read, or the query has ended.
        """
        before = self.lines
        with contextlib.suppress(queue.Empty):
            known = self._given_back.get(timeout=wait_s)
            while True:
                for each in known:
                    self._note(each)
                known = self._given_back.get_nowait()
        if not self._new:  # else that is told before the error, which comes again
            self._require_running()
        if self.lines > before or self.behind_bytes > self._rest_bytes():
            self._latest_s = time.monotonic()
        return self.lines - before, self._new_ones()

    @property
    def behind_bytes(self) -> int:
        """How much of the file is not judged yet."""
        try:
            return max(0, self._given.path.stat().st_size - self._place)
        except FileNotFoundError:
            return 0  # what was read stays read

    def save(self, *, is_due: bool = False) -> None:
        """Keep what is watched; Spark keeps the rest at the end of each batch."""
        del is_due
        if min(self._place, SAMPLE_BYTES) > self._sampled:
            self._write_watched()

    def finish(self, *, is_whole: bool) -> list[Violation]:
        """Take the end; return what it shows. `is_whole`: the writer has ended, too.

        Raises:
            HarnessError: the query ended, or judges for too long.
        """
        token = secrets.token_hex(8)
        size = self._given.path.stat().st_size
        write_atomically(self._folder / ENDED, f"{token} {size}".encode())
        self._rest_is_missing = is_whole and self._rest_is_said()
        found: list[Violation] = []
        until_s = time.monotonic() + FINISH_TIMEOUT_S
        while not self._has_concluded(token):
            if time.monotonic() > until_s:
                raise HarnessError(
                    f"{self._given.path}: not judged to its end within {FINISH_TIMEOUT_S:g} s;"
                    " the same checkpoint goes on"
                )
            found += self.step(POLL_S)[1]
        return found

    def _start(self, say: Callable[[str], None]) -> None:
        (self._folder / ENDED).unlink(missing_ok=True)
        self._engine.wait(say)
        from shaketable.checkers.spark.streaming import StreamPlan  # noqa: PLC0415 - takes longer to load than most watches to start

        plan = StreamPlan(
            path=self._given.path.absolute(),
            model=self._given.model,
            initial=self._given.initial,
            splits_keys=self._given.partition_by == "key",
            checkpoint=(self._folder / "spark").absolute(),
            end_file=(self._folder / ENDED).absolute(),
        )
        self._query = self._engine.judge_stream(plan, self._take)

    def _take(self, known: list[Progress]) -> None:
        """Keep what a batch found, before Spark commits it; called in a thread of Spark's."""
        found = [
            violation
            for each in known
            for violation in each.violations
            if Found(violation.key, violation.op) not in self._seen
        ]
        _append(self._folder / FOUND, found)
        self._given_back.put(known)

    def _rest_bytes(self) -> int:
        """Return the size of a line that has no end yet; 0 if there is a whole one, too."""
        rest = self._rest()
        return 0 if b"\n" in rest else len(rest)

    def _rest_is_said(self) -> bool:
        rest = self._rest().rpartition(b"\n")[2]
        return bool(rest.strip())

    def _rest(self) -> bytes:
        try:
            with self._given.path.open("rb") as file:
                file.seek(self._place)
                return file.read(LINE_BYTES_MAX)
        except FileNotFoundError:
            return b""

    def tell(self, violation: Violation, sentence: str) -> None:
        """Take that a violation was shown; it is not shown again."""
        super().tell(violation, sentence)
        _append(self._folder / TOLD, [Found(violation.key, violation.op)])

    def _require_running(self) -> None:
        if self._query is not None and not self._query.isActive:
            raise HarnessError(f"{self._given.path}: {_why(self._query.exception())}")
        if self._given.path.exists() and _identity(self._given.path) != self._file:
            raise HarnessError(f"{self._given.path}: another file is in its place now")

    def _write_watched(self) -> None:
        given = self._given
        self._sampled = min(self._place, SAMPLE_BYTES)
        watched = CheckpointOf(
            format=FORMAT,
            model=given.model,
            initial=given.initial,
            partition_by=given.partition_by,
            place=self._sampled,
            sample=sample_of(given.path, self._sampled),
        )
        write_atomically(self._folder / WATCHED, msgspec.json.encode(watched))

    def _continue(self) -> bool:
        """Take what the checkpoint holds, if there is one; return whether there was.

        Raises:
            UsageError: it is of another watch, or none.
        """
        folder, given = self._folder, self._given
        try:
            if not (folder / WATCHED).exists():
                if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                    raise UsageError(f"{folder}: no checkpoint of a watch on Spark; delete it")
                folder.mkdir(exist_ok=True)
                self._write_watched()
                return False
            kept = msgspec.json.decode((folder / WATCHED).read_bytes(), type=CheckpointOf)
            found, told = _kept(folder / FOUND, Violation), _kept(folder / TOLD, Found)
            self.lines, self._place = _committed(folder / "spark")
        except OSError as error:
            raise UsageError(f"{error.filename or folder}: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError, LookupError) as error:
            raise UsageError(f"{folder}: damaged ({error}); delete it to start anew") from error
        require_same(folder, given, kept, FORMAT)
        if given.path.stat().st_size < self._place:
            raise UsageError(f"{folder}: not of {given.path}, which is shorter than what was read")
        shown = set(told)
        for violation in found:  # also those that a kill kept from being shown
            if (one := Found(violation.key, violation.op)) not in self._seen:
                self._seen.add(one)
                self._new += [] if one in shown else [violation]
        self.found = len(self._seen)
        self.told = min(self.found - len(self._new), TOLD_MAX)
        return True


Line = TypeVar("Line", Violation, Found)


def _append(path: Path, lines: Sequence[Violation] | Sequence[Found]) -> None:
    """Append lines so that they are there after a kill, and a loss of power."""
    if lines:
        with path.open("ab") as file:
            file.writelines(msgspec.json.encode(each) + b"\n" for each in lines)
            file.flush()
            os.fsync(file.fileno())


def _kept(path: Path, form: type[Line]) -> list[Line]:
    """Return the lines of a file; what a kill cut off is taken away."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return [msgspec.json.decode(each, type=form) for each in whole.splitlines()]


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells the file from others.

    Raises:
        UsageError: it is no file, or cannot be read; one line.
    """
    if path == STDIN:
        raise UsageError("--spark-master reads a file, not a pipe")
    try:
        here = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(here.st_mode):
        raise UsageError(f"{path}: no file; --spark-master reads one that grows")
    return here.st_dev, here.st_ino


def _committed(spark: Path) -> tuple[int, int]:
    """Return how many lines and bytes Spark has judged for good: of its latest commit."""
    numbers = [int(each.name) for each in spark.glob("commits/*") if each.name.isdigit()]
    if not numbers:
        return 0, 0
    text = (spark / "offsets" / str(max(numbers))).read_text(encoding="utf-8")
    offset = msgspec.json.decode(text.splitlines()[-1])
    return offset["line"], offset["byte"]


def _why(error: object) -> str:
    """Return what ended a query: the error of our code, if there is one."""
    raised = RAISED.findall(str(error))
    return str(raised[-1]) if raised else str(error).partition("\n")[0]
