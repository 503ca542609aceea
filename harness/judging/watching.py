"""Judges a history of JSON lines while another program appends to its file, or to a pipe.

What was judged is kept in a checkpoint, if one is wanted: a watch that was killed is started again
with it, and goes on there.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge, Progress, Violation, doubt_lines
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.history.foreign.read import PartitionBy
from shaketable.harness.history.run_folder import write_atomically

FORMAT: Final = 3
CHECKPOINT_EVERY_S: Final = 5.0
CHECKPOINT_SHARE: Final = 0.05
"""At most this share of the time goes into checkpoints: large ones are written less often."""
SAMPLE_BYTES: Final = 64 << 10
"""By so much of its start a history is known again."""
SETTLED_AFTER_S: Final = 1.0
"""After so long without an event no further one has the time of the latest: clocks have gone on."""
TOLD_MAX: Final = 20
"""Violations that are shown, and kept in the checkpoint; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What is watched, and against what it is judged; see `judging.checking.CheckSettings`."""

    path: Path
    model: str
    initial: str | None = None
    partition_by: PartitionBy | None = None
    checkpoint: Path | None = None


class CheckpointOf(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is of; `sample` is that of the history up to `place` (`sample_of`)."""

    format: int
    model: str
    initial: str | None
    partition_by: str | None
    place: int
    sample: str


class Checkpoint(CheckpointOf, frozen=True, kw_only=True):
    """What a watch has to know to go on. `told` has a sentence for each violation shown."""

    lines: int
    told: list[str]
    found: int
    judge: dict[str, Any]


class Watch:
    """One watch, from its start, or from its checkpoint.

    Attributes:
        judge: what is known.
        lines: how many were read.
        found: how many violations there are.
        was_continued: it goes on from a checkpoint.

    Raises:
        UsageError: the history cannot be read, or the checkpoint is of another one; one line.
    """

    def __init__(self, given: WatchSettings) -> None:
        self._given = given
        model = model_named(given.model)
        self.judge = HistoryJudge(model, given.initial, splits_keys=given.partition_by == "key")
        self.lines = self.found = 0
        self._sentences: list[str] = []
        self.was_continued = False
        self._decode = msgspec.json.Decoder(EventLine).decode
        self._saved_s = self._latest_s = time.monotonic()
        self._save_took_s = 0.0
        kept = self._kept()
        self.file = GrowingFile(given.path, 0 if kept is None else kept.place)
        self.file.require_kept(given.checkpoint)
        if kept is not None:
            self._continue(kept)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the file."""
        self.file.__exit__(None, None, None)

    def step(self, wait_s: float) -> tuple[int, list[Violation]]:
        """Judge what is there; return how many lines that was, and what they show.

        Raises:
            HarnessError: the file was cut or replaced, or cannot be read.
        """
        found: list[Violation] = []
        lines = self.file.lines(wait_s)
        for line in lines:
            self.lines += 1
            if not line.strip():
                continue
            try:
                found += self.judge.take(self._decode(line))
            except (msgspec.DecodeError, ValueError) as error:
                found += self.judge.miss(f"line {self.lines:,} cannot be judged: {error}")
        if lines:
            self._latest_s = time.monotonic()
        elif self.quiet_s >= SETTLED_AFTER_S:
            found += self.judge.settle()
        self.found += len(found)
        return len(lines), found

    @property
    def told(self) -> int:
        """How many violations were shown."""
        return len(self._sentences)

    @property
    def operations(self) -> int:
        """How many were called."""
        return self.judge.operations

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.judge.keys

    @property
    def open(self) -> int:
        """How many operations have no end as yet."""
        return self.judge.open

    @property
    def is_pipe(self) -> bool:
        """It reads a pipe, which it waits for."""
        return self.file.is_pipe

    @property
    def is_ended(self) -> bool:
        """There will be no more: the other end of the pipe is closed."""
        return self.file.is_ended

    @property
    def behind_bytes(self) -> int:
        """How much of a file is not judged yet."""
        return self.file.behind_bytes

    def doubts(self) -> list[str]:
        """Return why keys are unknown, each reason once."""
        return self.judge.doubts()

    @property
    def quiet_s(self) -> float:
        """For how long there was nothing new."""
        return time.monotonic() - self._latest_s

    def tell(self, _violation: Violation, sentence: str) -> None:
        """Keep what was said of a violation."""
        if self.told < TOLD_MAX:
            self._sentences.append(sentence)

    def finish(self, *, is_whole: bool) -> list[Violation]:
        """Take the end; return what it shows. `is_whole`: the writer has ended, too.

        A line without an end is a sign that the history was cut, unless it is still being written.
        """
        found = []
        if is_whole and self.file.rest.strip():
            found += self.judge.miss(f"line {self.lines + 1:,} has no end")
        found += self.judge.finish()
        self.found += len(found)
        return found

    @property
    def outcome(self) -> Outcome:
        """The verdict so far."""
        return self.judge.outcome()

    def save(self, *, is_due: bool = False) -> None:
        """Write the checkpoint, if there is to be one and it is time (`is_due`: in any case).

        Raises:
            HarnessError: it cannot be written.
        """
        now_s = time.monotonic()
        every_s = max(CHECKPOINT_EVERY_S, self._save_took_s / CHECKPOINT_SHARE)
        if self._given.checkpoint is None or not (is_due or now_s - self._saved_s >= every_s):
            return
        kept = Checkpoint(
            format=FORMAT,
            model=self._given.model,
            initial=self._given.initial,
            partition_by=self._given.partition_by,
            place=self.file.place,
            lines=self.lines,
            sample=self.file.sample(),
            told=self._sentences,
            found=self.found,
            judge=self.judge.to_plain(),
        )
        write_atomically(self._given.checkpoint, msgspec.json.encode(kept))
        self._saved_s = time.monotonic()
        self._save_took_s = self._saved_s - now_s

    def _kept(self) -> Checkpoint | None:
        """Return the checkpoint, if there is one. Raises UsageError: it is no good here."""
        path, given = self._given.checkpoint, self._given
        if path is None:
            return None
        if given.path == STDIN:
            raise UsageError("--checkpoint is for a file: a pipe cannot be continued")
        kept = read_checkpoint(path, Checkpoint)
        if kept is not None:
            require_same(path, given, kept, FORMAT)
        return kept

    def _continue(self, kept: Checkpoint) -> None:
        self.judge.restore(kept.judge, lambda each: msgspec.convert(each, EventLine))
        self.lines, self.found, self._sentences = kept.lines, kept.found, list(kept.told)
        self.was_continued = True


AnyCheckpoint = TypeVar("AnyCheckpoint", bound=CheckpointOf)


def read_checkpoint(path: Path, form: type[AnyCheckpoint]) -> AnyCheckpoint | None:
    """Return a checkpoint; None if there is none.

    Raises:
        UsageError: it cannot be read, or is none of this form; one line.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: no checkpoint of such a watch ({error}); delete it") from error


def require_same(checkpoint: Path, given: WatchSettings, kept: CheckpointOf, version: int) -> None:
    """Check that a checkpoint is of this watch.

    Raises:
        UsageError: it is of another one; one line.
    """
    if kept.format != version:
        raise UsageError(f"{checkpoint}: of another version of shaketable; delete it to start anew")
    if (kept.model, kept.initial, kept.partition_by) != (
        given.model, given.initial, given.partition_by,
    ):  # fmt: skip
        raise UsageError(f"{checkpoint}: of a watch with other options; delete it to start anew")
    if kept.sample != sample_of(given.path, kept.place):
        raise UsageError(f"{checkpoint}: not of {given.path}; delete it to start anew")


def sample_of(path: Path, place: int) -> str:
    """Return a digest of a history's start; of what was read of it, at most."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(min(place, SAMPLE_BYTES))).hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


# The lines of a file that grows, or of a pipe.

STEP_BYTES: Final = 1 << 20
"""How much is read at once."""
LINE_BYTES_MAX: Final = 16 << 20
STDIN: Final = Path("-")


class GrowingFile:
    """Reads whole lines, from some place on.

    Attributes:
        place: the byte after the last whole line that was read.
        is_ended: there will be no more: the other end of the pipe is closed.

    Raises:
        UsageError: there is no such file, or it cannot be read; one line.
    """

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.place = place
        self.is_ended = False
        self._rest = b""
        try:
            self._fd = 0 if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            mode = os.fstat(self._fd).st_mode
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        self.is_pipe = not stat.S_ISREG(mode)
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: a folder; give the file that grows")
        if self.is_pipe and place:
            raise UsageError(f"{path}: a pipe cannot be continued from a checkpoint")

    def __enter__(self) -> Self:
        """Return it, open."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close it."""
        if self._fd:
            os.close(self._fd)

    def require_kept(self, checkpoint: Path | None) -> None:
        """Check that it can be gone on from, if it is to be.

        Raises:
            UsageError: it is a pipe.
        """
        if checkpoint is not None and self.is_pipe:
            raise UsageError("--checkpoint is for a file: a pipe cannot be continued")

    def sample(self) -> str:
        """Return a digest of its start, of what was read of it, at most (see `sample_of`)."""
        return hashlib.sha256(os.pread(self._fd, min(self.place, SAMPLE_BYTES), 0)).hexdigest()

    @property
    def rest(self) -> bytes:
        """What there is of a line that has no end yet."""
        return self._rest

    @property
    def behind_bytes(self) -> int:
        """How much of a file is not read yet; 0 for a pipe."""
        if self.is_pipe:
            return 0
        return max(0, os.fstat(self._fd).st_size - self.place - len(self._rest))

    def lines(self, wait_s: float) -> list[bytes]:
        """Return the next whole lines, without their ends; none if there is nothing new.

        Args:
            wait_s: how long to wait for a pipe to have something; a file is not waited for.

        Raises:
            HarnessError: the file was cut or replaced, a line is too long, or it cannot be read.
        """
        try:
            data = self._from_pipe(wait_s) if self.is_pipe else self._from_file()
        except OSError as error:
            raise HarnessError(f"{self.path}: {error.strerror}") from error
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise HarnessError(f"{self.path}: a line of more than {LINE_BYTES_MAX:,} bytes")
        self.place += sum(len(line) + 1 for line in whole)
        return whole

    def _from_pipe(self, wait_s: float) -> bytes:
        if self.is_ended or not select.select([self._fd], [], [], wait_s)[0]:
            return b""
        data = os.read(self._fd, STEP_BYTES)
        self.is_ended = not data
        return data

    def _from_file(self) -> bytes:
        here = os.fstat(self._fd)
        at = self.place + len(self._rest)
        if here.st_size < at:
            raise HarnessError(
                f"{self.path}: it was cut: it has {here.st_size:,} bytes, and {at:,} were read"
            )
        data = os.pread(self._fd, STEP_BYTES, at)
        if not data and not _is_still(self.path, here):
            raise HarnessError(f"{self.path}: another file is in its place now")
        return data


def _is_still(path: Path, opened: os.stat_result) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return True  # what was read stays read
    return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)


# A watch whose history is shared among several judges: what they know together.


class Found(msgspec.Struct, frozen=True):
    """A violation that was found."""

    key: str | None
    op: int


class SharedWatch:
    """What the judges of a watch have said so far; see `judging.watching.Watch`.

    Attributes:
        lines: how many were judged.
        found: how many violations there are.
        told: how many of them were shown.
        was_continued: it goes on from a checkpoint.
    """

    is_pipe = False
    is_ended = False

    def __init__(self) -> None:
        self.lines = self.found = self.told = 0
        self.was_continued = False
        self._place = 0
        self._seen: set[Found] = set()
        self._of_buckets: dict[int, Progress] = {}
        self._new: list[Violation] = []
        self._latest_s = time.monotonic()
        self._rest_is_missing = False

    @property
    def quiet_s(self) -> float:
        """For how long there was nothing new."""
        return time.monotonic() - self._latest_s

    @property
    def operations(self) -> int:
        """How many were called."""
        return sum(each.operations for each in self._of_buckets.values())

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return sum(each.keys for each in self._of_buckets.values())

    @property
    def open(self) -> int:
        """How many operations have no end as yet."""
        return sum(each.open for each in self._of_buckets.values())

    @property
    def outcome(self) -> Outcome:
        """The verdict so far."""
        outcomes = [
            Outcome(each.outcome)
            for each in self._of_buckets.values()
            if each.outcome is not None and (each.operations or each.lacks)
        ]
        if self.found or Outcome.INVALID in outcomes:
            return Outcome.INVALID
        lacks = Outcome.UNKNOWN in outcomes or self._rest_is_missing or not self.operations
        lacks = lacks or any(each.lacks for each in self._of_buckets.values())
        return Outcome.UNKNOWN if lacks else Outcome.VALID

    def doubts(self) -> list[str]:
        """Return why keys are unknown, each reason once."""
        keys: Counter[str] = Counter()
        lacks: dict[str, None] = {}
        for each in self._of_buckets.values():
            keys.update(each.doubts)
            lacks |= dict.fromkeys(each.lacks)
        if self._rest_is_missing:
            lacks[f"line {self.lines + 1:,} has no end"] = None
        return [*doubt_lines(keys), *lacks]

    def tell(self, _violation: Violation, _sentence: str) -> None:
        """Take that a violation was shown."""
        self.told += 1

    def _note(self, each: Progress) -> None:
        """Take what a judge says."""
        self._of_buckets[each.bucket] = each
        self.lines = max(self.lines, each.through)
        self._place = max(self._place, each.byte)
        for violation in each.violations:
            found = Found(violation.key, violation.op)
            if found not in self._seen:
                self._seen.add(found)
                self.found += 1
                self._new.append(violation)

    def _new_ones(self) -> list[Violation]:
        """Return the violations that were not returned before."""
        found, self._new = self._new, []
        return found

    def _has_concluded(self, token: str) -> bool:
        ended = [each.ended == token for each in self._of_buckets.values()]
        return bool(ended) and all(ended)
