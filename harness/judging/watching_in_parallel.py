"""Watches a history as `judging.watching` does, with several processes: each judges its keys.

This process reads the file or the pipe and deals out the lines; it knows no more of them than whose
they are. A checkpoint has the states of all judges.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Final, Self

import msgspec
import multiprocess

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
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.guard import die_with_parent
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.judging.watching import (
    CHECKPOINT_EVERY_S,
    CHECKPOINT_SHARE,
    SETTLED_AFTER_S,
    STDIN,
    TOLD_MAX,
    CheckpointOf,
    Found,
    GrowingFile,
    SharedWatch,
    WatchSettings,
    read_checkpoint,
    require_same,
)

FORMAT: Final = 1
POLL_S: Final = 0.1
EXIT_TIMEOUT_S: Final = 3.0
ENDED: Final = "ended"


class Checkpoint(CheckpointOf, frozen=True, kw_only=True):
    """What a watch has to know to go on: the state of each judge, what was found, and shown."""

    lines: int
    judges: list[dict[str, Any]]
    found: list[Found]
    untold: list[Violation]


@dataclass(slots=True)
class _Judge:
    """A process that judges, and this end of its pipe."""

    process: Any
    pipe: Any
    is_busy: bool = False


class ParallelWatch(SharedWatch):
    """One watch by several processes, from its start, or from its checkpoint.

    Raises:
        UsageError: the history cannot be read, or the checkpoint is of another watch; one line.
    """

    def __init__(self, given: WatchSettings, jobs: int) -> None:
        super().__init__()
        # Each judge makes one of its own; what is wrong with what is given is told here.
        HistoryJudge(model_named(given.model), given.initial, splits_keys=False)
        self._given = given
        kept = self._kept(jobs)
        self._file = GrowingFile(given.path, 0 if kept is None else kept.place)
        self._file.require_kept(given.checkpoint)
        self._read = self._settled = 0
        self._saved_s = time.monotonic()
        self._save_took_s = 0.0
        if kept is not None:
            self.was_continued = True
            self.lines = self._read = kept.lines
            self._place = kept.place
            self._seen = set(kept.found)
            self.found = len(kept.found)
            self._new = list(kept.untold)
            self.told = min(self.found - len(self._new), TOLD_MAX)
        states = [None] * jobs if kept is None else kept.judges
        self._judges = [self._started(bucket, state) for bucket, state in enumerate(states)]

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes and close the file."""
        for judge in self._judges:
            judge.process.kill()
        for judge in self._judges:
            judge.process.join(EXIT_TIMEOUT_S)
            judge.pipe.close()
        self._file.__exit__(None, None, None)

    @property
    def is_pipe(self) -> bool:  # type: ignore[override]
        """It reads a pipe, which it waits for."""
        return self._file.is_pipe

    @property
    def is_ended(self) -> bool:  # type: ignore[override]
        """There will be no more: the other end of the pipe is closed."""
        return self._file.is_ended

    @property
    def behind_bytes(self) -> int:
        """How much of a file was not read yet."""
        return self._file.behind_bytes

    def step(self, wait_s: float) -> tuple[int, list[Violation]]:
        """Read what is there, and take what was judged; see `judging.watching.Watch`.

        Raises:
            HarnessError: the file was cut or replaced, or cannot be read; a judge has ended.
        """
        try:
            lines = self._file.lines(wait_s)
        except HarnessError:
            self._drain()
            if self._new:  # told before the error, which comes again
                return 0, self._new_ones()
            raise
        if lines:
            self._latest_s = time.monotonic()
            self._deal(
                sliced(
                    lines, self._read, len(self._judges),
                    splits_keys=self._given.partition_by == "key",
                )
            )  # fmt: skip
            self._read += len(lines)
        elif self.quiet_s >= SETTLED_AFTER_S and self._settled < self._read:
            self._settled = self._read
            self._deal(self._nothing(is_settled=True))
        self._listen(0 if lines else min(wait_s, POLL_S))
        return len(lines), self._new_ones()

    def finish(self, *, is_whole: bool) -> list[Violation]:
        """Take the end; return what it shows. `is_whole`: the writer has ended, too."""
        self._rest_is_missing = is_whole and bool(self._file.rest.strip())
        self._deal(self._nothing(ended=ENDED))
        self._drain()
        assert self._has_concluded(ENDED)
        return self._new_ones()

    def save(self, *, is_due: bool = False) -> None:
        """Write the checkpoint, if there is to be one and it is time (`is_due`: in any case).

        Raises:
            HarnessError: it cannot be written.
        """
        path, now_s = self._given.checkpoint, time.monotonic()
        every_s = max(CHECKPOINT_EVERY_S, self._save_took_s / CHECKPOINT_SHARE)
        if path is None or not (is_due or now_s - self._saved_s >= every_s):
            return
        self._drain()
        states = [self._state(judge) for judge in self._judges]
        place = self._file.place
        kept = Checkpoint(
            format=FORMAT,
            model=self._given.model,
            initial=self._given.initial,
            partition_by=self._given.partition_by,
            place=place,
            sample=self._file.sample(),
            lines=self._read,
            judges=[msgspec.json.decode(state) for state in states],
            found=sorted(self._seen, key=lambda each: each.op),
            untold=self._new,
        )
        write_atomically(path, msgspec.json.encode(kept))
        self._saved_s = time.monotonic()
        self._save_took_s = self._saved_s - now_s

    def _started(self, bucket: int, state: dict[str, Any] | None) -> _Judge:
        context = multiprocess.get_context("spawn")
        ours, theirs = context.Pipe()
        stored = None if state is None else msgspec.json.encode(state)
        arguments = (theirs, os.getpid(), bucket, self._given, stored)
        process = context.Process(target=judge_slices, args=arguments, daemon=True)
        # Ctrl-C is for this process; a judge must not get it before it can say so.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        return _Judge(process, ours)

    def _nothing(self, *, is_settled: bool = False, ended: str | None = None) -> list[Slice]:
        one = Slice(numbers=[], lines=[], through=self._read, is_settled=is_settled, ended=ended)
        return [one] * len(self._judges)

    def _deal(self, slices: Sequence[Slice]) -> None:
        """Send each judge its slice, once it has answered the one before.

        With two messages under way, one to it and one from it, each end could wait for the other.
        """
        for judge, each in zip(self._judges, slices, strict=True):
            each.byte = self._file.place
            while judge.is_busy:
                self._listen(None)
            self._send(judge, msgspec.msgpack.encode(each))
            judge.is_busy = True

    def _drain(self) -> None:
        while any(judge.is_busy for judge in self._judges):
            self._listen(None)

    def _listen(self, wait_s: float | None) -> None:
        """Take what judges say, within a time; None: until one says something."""
        busy = [judge for judge in self._judges if judge.is_busy]
        if not busy:
            return
        heard = wait([judge.pipe for judge in busy], wait_s)
        for judge in busy:
            if judge.pipe in heard:
                self._note(msgspec.json.decode(self._received(judge), type=Progress))
                judge.is_busy = False

    def _state(self, judge: _Judge) -> bytes:
        self._send(judge, b"")
        return self._received(judge)

    def _send(self, judge: _Judge, message: bytes) -> None:
        try:
            judge.pipe.send_bytes(message)
        except OSError as error:
            raise HarnessError(_ended(judge)) from error

    def _received(self, judge: _Judge) -> bytes:
        try:
            return bytes(judge.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise HarnessError(_ended(judge)) from error

    def _kept(self, jobs: int) -> Checkpoint | None:
        """Return the checkpoint, if there is one. Raises UsageError: it is no good here."""
        path, given = self._given.checkpoint, self._given
        if path is None:
            return None
        if given.path == STDIN:
            raise UsageError("--checkpoint is for a file: a pipe cannot be continued")
        kept = read_checkpoint(path, Checkpoint)
        if kept is not None:
            require_same(path, given, kept, FORMAT)
            if len(kept.judges) != jobs:
                raise UsageError(f"{path}: of a watch with --jobs {len(kept.judges)}; go on so")
        return kept


def _ended(judge: _Judge) -> str:
    judge.process.join(EXIT_TIMEOUT_S)
    return f"a process that judges ended by itself (exit code {judge.process.exitcode})"


def judge_slices(
    pipe: Any, parent_pid: int, bucket: int, given: WatchSettings, stored: bytes | None
) -> None:
    """Judge what comes: the entry point of a process.

    It gets slices, and answers each with its progress; an empty message asks for its state.
    """
    die_with_parent(parent_pid)
    splits_keys = given.partition_by == "key"
    judge = HistoryJudge(model_named(given.model), given.initial, splits_keys=splits_keys)
    if stored is not None:
        plain = msgspec.json.decode(stored)
        judge.restore(plain, lambda each: msgspec.convert(each, EventLine))
    decode = msgspec.json.Decoder(EventLine).decode
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        if not message:
            pipe.send_bytes(msgspec.json.encode(judge.to_plain()))
            continue
        each = msgspec.msgpack.decode(message, type=Slice)
        known = progress_of(judge, bucket, each, take_slice(judge, each, decode))
        if each.ended is not None:
            conclude(judge, known, each.ended)
        pipe.send_bytes(msgspec.json.encode(known))
