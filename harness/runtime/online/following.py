"""Follows a run with its judge: what the user is told, and what run.json keeps of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Final, Self

import trio

from shaketable.harness.runtime.online.coverage import coverage_of
from shaketable.harness.runtime.online.judge_process import (
    POLL_S,
    JudgeProgram,
    OnlineJudge,
    Told,
)
from shaketable.harness.runtime.rig import Rig

REPORTED_MAX: Final = 5
"""The first violations are shown in full; then one line says that there are more."""
KEPT_MAX: Final = 100
"""The first violations are kept in run.json; online.jsonl has all."""
NEMESIS_SEGMENT: Final = "nemesis.seg"


@dataclass(slots=True)
class OnlineRun:
    """A run and its judge, if it has one.

    Attributes:
        has_clients: clients were started, so all recordings are there.
        told_ns: when each violation was told to the user, since the run's start.
        on_first: is called with the first violation, in a few words; None: the run goes on.
    """

    rig: Rig
    judge: OnlineJudge | None
    has_clients: bool = False
    on_first: Callable[[str], None] | None = None
    told_ns: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, rig: Rig, program: JudgeProgram | None) -> Self:
        """Return the run with a judge, not started; without if nothing of it can be judged."""
        coverage = None if program is None else coverage_of(rig.campaign)
        if program is None or coverage is None or coverage.checker is None:
            return cls(rig, None)
        return cls(rig, OnlineJudge(program, coverage.plan(rig.folder), rig.ledger.process))

    @property
    def is_judged(self) -> bool:
        """Whether the run has a judge."""
        return self.judge is not None

    @property
    def pids(self) -> Mapping[str, int]:
        """The judge's process id by its name; empty without one."""
        return {} if self.judge is None else self.judge.pids

    async def ready(self) -> None:
        """Wait, within a limit, until what the judge finds will be told at once."""
        if self.judge is not None:
            await self.judge.ready()

    @asynccontextmanager
    async def judged(self) -> AsyncIterator[None]:
        """Judge what clients record while the body runs, and what is left of it after."""
        judge = self.judge
        if judge is None:
            yield
            return
        judge.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, judge)
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
            if self.has_clients:
                self._show(await judge.finish(self._recorded(is_over=True)))
                self.rig.observer.note(_conclusion(judge))
        finally:
            await judge.kill()

    def facts(self) -> dict[str, object]:
        """Return what was judged while the run went on, for run.json."""
        assert self.judge is not None, "only of a run with a judge"
        return {
            "checker": self.judge.plan.checker,
            "operations": self.judge.operations,
            "outcome": self.judge.outcome,
            "left": self.judge.why_left,
            "violations": [
                {**asdict(told), "told_ns": told_ns}
                for told, told_ns in zip(self.judge.told[:KEPT_MAX], self.told_ns, strict=False)
            ],
        }

    async def _follow(self, judge: OnlineJudge) -> None:
        """Tell the judge how far clients have recorded, and the user what it finds."""
        while not judge.is_over:
            if self.has_clients:
                self._show(judge.look(self._recorded(is_over=False)))
            await trio.sleep(POLL_S)
        if judge.why_left is not None:
            self.rig.observer.note(f"online: the judge has stopped: {judge.why_left}")

    def _recorded(self, *, is_over: bool) -> dict[str, int | None]:
        """Return how far each segment is complete; see `GrowingSegments.note`."""
        own = None if is_over else self.rig.recorder.recorded_ns()
        return {**self.rig.workers.recorded(), NEMESIS_SEGMENT: own}

    def _show(self, told: Sequence[Told]) -> None:
        """Show the violations that are new; the first one may end the run."""
        assert self.judge is not None, "told by the judge"
        if self.judge.first_seen is not None and self.on_first is not None:
            self.on_first(self.judge.first_seen)
        note = self.rig.observer.note
        before = len(self.judge.told) - len(told)
        for number, violation in enumerate(told, before + 1):
            self.told_ns.append(self.rig.facts.now_ns())
            if number <= REPORTED_MAX:
                note(f"violation: key {violation.key}: {violation.sentence}")
            elif number == REPORTED_MAX + 1:
                note("more violations are found, and no more of them are shown; the check has all")
            if number == 1:
                note(f"page: {self.rig.folder.online_html}")


def _conclusion(judge: OnlineJudge) -> str:
    """Return what is said when the run and its judge have ended."""
    count = len(judge.told)
    found = {0: "no violation", 1: "1 violation"}.get(count, f"{count} violations")
    operations = "1 operation" if judge.operations == 1 else f"{judge.operations:,} operations"
    left = "" if judge.why_left is None else f"; the rest is left to the check: {judge.why_left}"
    return f"online: {operations} judged as they came: {found}{left}"
