"""A run that is judged while it goes on (ADR 53): what of it, by whom, and what is told.

A campaign's checkers that can judge while it runs are those with a model that is judged online. A
violation that is told during a run has to break a promise, whichever faults are still to come.

The judge is a process (`harness.judging.online`). The supervisor says how far the recordings are
complete, and is answered what they show. One message is under way at a time, so that a judge that
is busy, or hangs, holds up nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import multiprocess
import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, faults_of, promises_of, target_of
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.clients import topics_of
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime.clients.workers import bare_main

if TYPE_CHECKING:
    from shaketable.checkers.linearizability.linearizable import Linearizable
    from shaketable.harness.runtime.rig import Rig

OF_LOGS: Final = "linearizable-log"
"""The checker of which live sightings (ADR 35) find a part."""


@dataclass(frozen=True, slots=True)
class OnlinePlan:
    """What the process judges; picklable.

    Attributes:
        checker: the checker that judges the same at the end.
        model: what each key has to behave like.
        topics: the topics whose keys are judged; None: all.
        folder: the run's folder.
        parent_pid: the process that it ends with.
    """

    checker: str
    model: str
    topics: frozenset[str] | None
    folder: Path
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a campaign is judged while it runs.

    Attributes:
        checker, model, topics: see `OnlinePlan`; None if nothing is judged.
        at_end: the checkers that judge at the end: all.
        why_not: why nothing is judged; "" if something is.
    """

    at_end: tuple[str, ...]
    checker: str | None = None
    model: str | None = None
    topics: frozenset[str] | None = None
    why_not: str = ""

    @property
    def line(self) -> str:
        """What the user is told before the run."""
        at_end = f"at the end: {', '.join(self.at_end)}"
        watched = f"{OF_LOGS} is watched for contradictions"
        if self.checker is None and OF_LOGS in self.at_end:
            return f"online: {watched} as operations come; {at_end}"
        if self.checker is None:
            return f"online: nothing is judged before the end: {self.why_not}"
        beside = f", and {watched}," if OF_LOGS in self.at_end else ""
        return f"online: {self.checker} is judged{beside} as operations come; {at_end}"

    def plan(self, folder: RunFolder) -> OnlinePlan:
        """Return what the process is given; only if something is judged."""
        assert self.checker is not None, self.why_not
        assert self.model is not None, self.why_not
        return OnlinePlan(self.checker, self.model, self.topics, folder.path, os.getpid())


def coverage_of(campaign: Campaign) -> Coverage:
    """Return what of a resolved campaign can be judged while it runs, or why nothing can.

    Raises:
        UsageError: a plug-in that it names is unknown.
    """
    workload = discovery.get("workloads", campaign.workload)
    names = tuple(workload.checkers)
    if campaign.world == "sim":
        return Coverage(names, why_not="in world sim all is over before it could be told")
    checkers = ((name, discovery.get("checkers", name)) for name in names)
    for name, checker in checkers:
        if not _is_online(checker):
            continue
        observed = _why_observed(campaign, checker)
        if observed is not None:
            return Coverage(names, why_not=f"{name} can find no broken promise: {observed}")
        return Coverage(names, name, checker.model.name, topics_of(workload).get(name))
    why = f"{campaign.workload} is judged by {', '.join(names)} alone"
    return Coverage(names, why_not=why)


def _is_online(checker: Any) -> bool:
    """Return whether a checker has a model that is judged event by event, from its usual start."""
    from shaketable.checkers.linearizability.linearizable import Linearizable  # noqa: PLC0415 - takes time to load; most runs need it at their end
    from shaketable.checkers.online import MODELS  # noqa: PLC0415 - likewise

    return (
        isinstance(checker, Linearizable)
        and checker.model.name in MODELS
        and checker.initial == checker.model.initial(None)
    )


def _why_observed(campaign: Campaign, checker: Linearizable) -> str | None:
    """Return why what the checker finds may break no promise; None if it breaks one.

    What is told during a run has to be certain, whichever of its faults take effect.
    """
    target = target_of(campaign)
    faults = {name: discovery.get("faults", name) for name in faults_of(campaign)}
    as_if_all = CheckContext(
        nodes=(),
        committed={},
        promises=promises_of(campaign, target) or target.promises,
        windows=tuple(FaultWindow(n, name, "", 0, 0, True, "") for n, name in enumerate(faults)),
        families={name: family_of(fault) for name, fault in faults.items()},
    )
    return checker.why_observed(as_if_all)


# The judge's process, as the supervisor sees it.

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


# A run and its judge: what the user is told, and what run.json keeps.

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
