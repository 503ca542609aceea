"""The process that judges a run while it goes on, as the supervisor (trio) sees it.

The supervisor says how far the recordings are complete, and is answered what they show. One message
is under way at a time, so that a judge that is busy, or hangs, holds up nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import multiprocess
import trio

from shaketable.harness.runtime.clients.workers import bare_main
from shaketable.harness.runtime.online.coverage import OnlinePlan

NAME: Final = "online-judge"
POLL_S: Final = 0.1
"""How often the judge is told how far the recordings are, and asked what it has found."""
READY_TIMEOUT_S: Final = 60.0
"""How long clients wait for the judge to be ready; then they begin without."""
FINISH_TIMEOUT_S: Final = 30.0
"""How long the judge may take for what is left when the run is over; then it is left to the check.
"""
EXIT_TIMEOUT_S: Final = 3.0
TEXT_MAX: Final = 1_000
"""Characters of what is told of a violation: a message arrives whole, so that no read waits."""


@dataclass(frozen=True, slots=True)
class Told:
    """A violation that the judge found: the key, the sentence, the time of what shows it."""

    key: str | None
    sentence: str
    at_ns: int | None


JudgeProgram = Callable[[OnlinePlan, Any], None]
"""What the process runs: it takes the plan, and its end of a pipe."""


@dataclass(slots=True)
class OnlineJudge:
    """The process that judges. Methods are for one trio task at a time; none blocks.

    Attributes:
        program: what it runs.
        plan: what is judged.
        on_start: is called with its name and pid.
        first_seen: the first violation in a few words, as soon as it is known; None if none is.
        told: the violations that it explained.
        outcome: the verdict, once it has finished.
        operations: how many were judged.
        why_left: why it judges no further; None while it does.
    """

    program: JudgeProgram
    plan: OnlinePlan
    on_start: Callable[[str, int], None]
    first_seen: str | None = None
    told: list[Told] = field(default_factory=list)
    outcome: str | None = None
    operations: int = 0
    why_left: str | None = None
    _process: Any = None
    _pipe: Any = None
    _is_asked: bool = True  # until it says that it is ready

    def start(self) -> None:
        """Start the process. In the main thread: it dies with the thread that started it."""
        context = multiprocess.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (self.plan, theirs)
        self._process = context.Process(target=self.program, args=arguments, name=NAME, daemon=True)
        with bare_main():
            self._process.start()
        theirs.close()
        self.on_start(NAME, self._process.pid)

    @property
    def pids(self) -> Mapping[str, int]:
        """The process id by name; empty before the start."""
        return {} if self._process is None else {NAME: self._process.pid}

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.outcome is not None or self.why_left is not None

    async def ready(self) -> None:
        """Wait, within a limit, until what it finds will be told at once."""
        with trio.move_on_after(READY_TIMEOUT_S):
            while self._is_asked and not self.is_over:
                self._listen()
                await trio.sleep(POLL_S)

    def look(self, recorded: Mapping[str, int | None]) -> list[Told]:
        """Say how far the recordings are complete (`GrowingSegments.note`); return what is new."""
        before = len(self.told)
        self._listen()
        if not self._is_asked and not self.is_over:
            self._is_asked = True
            try:
                self._pipe.send(("recorded", dict(recorded)))
            except OSError as error:
                self._leave(f"it ended by itself ({error})")
        return self.told[before:]

    async def finish(self, recorded: Mapping[str, int | None]) -> list[Told]:
        """Wait until it has judged all that was recorded, within a limit; return what is new."""
        before = len(self.told)
        with trio.move_on_after(FINISH_TIMEOUT_S):
            while not self.is_over:
                self.look(recorded)
                await trio.sleep(POLL_S)
        self._leave(f"it was not through within {FINISH_TIMEOUT_S:g} s after the run")
        return self.told[before:]

    async def kill(self) -> None:
        """End the process and reap it. Idempotent."""
        if self._process is None:
            return
        with trio.CancelScope(shield=True):
            self._process.kill()
            with trio.move_on_after(EXIT_TIMEOUT_S):
                while self._process.is_alive():  # noqa: ASYNC110 - another process sets no Event of ours
                    await trio.sleep(POLL_S)
        self._pipe.close()
        self._leave("it was ended")

    def _listen(self) -> None:
        try:
            while not self.is_over and self._pipe.poll():
                word, *arguments = self._pipe.recv()
                self._take(word, arguments)
        except (EOFError, OSError):
            self._leave("it ended by itself; see shaketable.log")

    def _take(self, word: str, arguments: list[Any]) -> None:
        if word == "ready":
            self._is_asked = False
        elif word == "judged":
            self._is_asked = False
            self.operations = arguments[0]
        elif word == "seen":
            key, op = arguments
            self.first_seen = self.first_seen or f"key {key}: no order explains operation {op}"
        elif word == "violation":
            self.told.append(Told(*arguments))
        elif word == "left":
            self._leave(arguments[0])
        else:
            assert word == "finished", f"unknown message {word!r}"
            self.operations, self.outcome = arguments

    def _leave(self, why: str) -> None:
        """Note why it judges no further, unless it is over already."""
        if not self.is_over:
            self.why_left = why
