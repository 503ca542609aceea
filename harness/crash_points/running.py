"""Tries crash points: counts the calls, chooses points, runs them in several groups, judges each.

All groups are of this process, beside each other: a group mostly waits, for elections and for
programs that start. Each run is judged as soon as its nodes have ended, one at a time, in a thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
import trio

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.verdict import Outcome, join
from shaketable.harness.crash_points.group import Ending, Group, Plan
from shaketable.harness.crash_points.points import Point, choose
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import judge
from shaketable.harness.judging.engines import LOCAL, Engine
from shaketable.harness.judging.judge import Results
from shaketable.reports.crash_points_page import (
    BROKEN,
    INVALID,
    NO_SERVICE,
    NO_START,
    NOT_REACHED,
    UNKNOWN,
    VALID,
    Tried,
)

GROUPS: Final = "groups"
"""The folder of the groups' folders, each of which has the last run of one."""
POINTS: Final = "points"
"""The folder of the runs that are kept, by point."""
KEPT_MAX: Final = 20
"""So many runs are kept; of further points there is what is on the page, and how to repeat them."""
REACH_TRIES_MAX: Final = 3
"""How often a point is tried that is not reached: clients and elections differ from run to run."""
VACUITY: Final = "vacuity"
"""The checker that wants dozens of operations during and after faults (`checkers/vacuity.py`)."""
FAILURES_MAX: Final = 5
"""After so many failures of the harness in a row it gives up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be tried.

    Attributes:
        plan: what all points share.
        folder: where all is kept; exists.
        calls: the kinds of calls.
        count: how many points, if none is named.
        points: those that are named; () to choose.
        groups: how many groups there are beside each other.
        repeat: returns the command that tries a point alone.
    """

    plan: Plan
    folder: Path
    calls: tuple[str, ...]
    count: int
    points: tuple[Point, ...]
    groups: int
    repeat: Callable[[Point], str]


@dataclass(slots=True)
class Trying:
    """Tries the points of a command, and has what came of them.

    Attributes:
        calls: how many calls of each kind there are; {} until they are counted.
        planned: the points to try; () likewise.
        tried: what came of each, in the order in which they ended.
        took_s: how long the points took, in seconds.
        on_tried: called with each.
    """

    wanted: Wanted
    on_tried: Callable[[Tried], None]
    on_planned: Callable[[], None]
    calls: Mapping[str, int] = field(default_factory=dict)
    planned: tuple[Point, ...] = ()
    tried: list[Tried] = field(default_factory=list)
    took_s: float = 0.0
    _engine: Engine = field(default_factory=lambda: Engine(LOCAL, ""))
    _judging: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    _todo: deque[tuple[Point, int]] = field(default_factory=deque)
    _failures: int = 0
    _kept: int = 0

    async def run(self) -> None:
        """Try all of them; when cancelled, what was tried until then is there.

        Raises:
            HarnessError: the group does not serve without a crash; the harness failed.
        """
        self._engine.warm_up()
        try:
            with self._groups() as groups:
                async with trio.open_nursery() as nursery:
                    for group in groups:
                        await nursery.start(group.network)
                    await self._plan(groups[0])
                    began = monotonic()
                    try:
                        async with trio.open_nursery() as lanes:
                            for group in groups:
                                lanes.start_soon(self._work, group)
                    finally:
                        self.took_s = monotonic() - began
                    nursery.cancel_scope.cancel()
        finally:
            self._engine.stop()

    @contextmanager
    def _groups(self) -> Iterator[Sequence[Group]]:
        """Open the groups: as many as there are to be, and not more than points."""
        wanted = self.wanted
        count = min(wanted.groups, len(wanted.points) or wanted.count)
        with ExitStack() as opened:
            groups = []
            for number in range(count):
                folder = RunFolder(wanted.folder / GROUPS / str(number))
                groups.append(Group(wanted.plan, folder))
                opened.callback(groups[-1].close)
                groups[-1].open()
            yield groups

    async def _plan(self, group: Group) -> None:
        """Count the calls without a crash, and choose the points.

        Raises:
            HarnessError: the workload alone is not VALID; or there is no such call.
        """
        wanted = self.wanted
        ending = await group.run(None)
        if not ending.serves:
            last = "".join(f": {line}" for line in ending.last_lines[-1:])
            raise HarnessError(f"the group does not serve, without any power loss{last}")
        undisturbed = msgspec.structs.replace(wanted.plan.campaign, faults=())
        results = await self._judged(group, undisturbed)
        if (outcome := _outcome(results)) is not Outcome.VALID:
            name, why = outcome.name, _why(results)
            raise HarnessError(f"without any power loss the workload is {name} already: {why}")
        self.calls = {call: n for call, n in ending.calls.items() if call in wanted.calls}
        seed = wanted.plan.campaign.seed
        assert seed is not None, "it is drawn when a campaign is resolved"
        self.planned = wanted.points or choose(self.calls, wanted.count, seed)
        if not self.planned:
            asked, there_are = ", ".join(wanted.calls), ", ".join(ending.calls) or "none at all"
            name = wanted.plan.campaign.target
            raise HarnessError(f"{name} makes none of these calls: {asked}; it makes: {there_are}")
        self._todo.extend((point, 1) for point in self.planned)
        self.on_planned()

    async def _work(self, group: Group) -> None:
        """Try points until none is left."""
        while self._todo:
            point, number = self._todo.popleft()
            try:
                one = await self._try(group, point)
            except HarnessError as error:
                self._failures += 1
                if self._failures >= FAILURES_MAX:
                    raise
                log.warning("event=point_failed point=%s why=%s", point, error)
                one = self._tried(point, Ending(), UNKNOWN, f"the harness failed: {error}")
            else:
                self._failures = 0
            if one.result == NOT_REACHED and number < REACH_TRIES_MAX:
                self._todo.append((point, number + 1))
                continue
            self.tried.append(one)
            self.on_tried(one)

    async def _try(self, group: Group, point: Point) -> Tried:
        began = monotonic()
        ending = await group.run(point, self.wanted.repeat(point))
        if not ending.node:
            why = "there were fewer such calls this time"
            return self._tried(point, ending, NOT_REACHED, why, monotonic() - began)
        results = await self._judged(group, self.wanted.plan.campaign)
        result, why = _result(ending, results)
        folder = page = ""
        if result in BROKEN and self._kept < KEPT_MAX:
            self._kept += 1
            folder, page = await trio.to_thread.run_sync(
                self._keep, group, point, result == INVALID, limiter=self._judging
            )
        kinds = {found.kind for verdict in results.verdicts for found in verdict.observed}
        one = self._tried(point, ending, result, why, monotonic() - began)
        return msgspec.structs.replace(one, observed=tuple(sorted(kinds)), folder=folder, page=page)

    async def _judged(self, group: Group, campaign: Campaign) -> Results:
        def judged() -> Results:
            return judge.judge(group.folder, campaign, self._engine, _ignore)

        return await trio.to_thread.run_sync(judged, limiter=self._judging)

    def _keep(self, group: Group, point: Point, is_shown: bool) -> tuple[str, str]:
        """Keep the run of a point; return its folder and its page, from the command's folder."""
        name = f"{POINTS}/{point.call}-{point.nth}"
        folder = self.wanted.folder / name
        try:
            group.keep(folder)
        except OSError as error:
            raise HarnessError(f"cannot keep {folder}: {error.strerror}") from error
        if not is_shown:
            return name, ""
        return name, f"{name}/{judge.render(RunFolder(folder)).view.first_page or 'report.html'}"

    def _tried(
        self, point: Point, ending: Ending, result: str, why: str, took_s: float = 0.0
    ) -> Tried:
        return Tried(
            call=point.call,
            nth=point.nth,
            path=ending.path,
            node=ending.node,
            result=result,
            why=why,
            observed=(),
            lost_bytes=ending.lost_bytes,
            lost_entries=ending.lost_entries,
            last_lines=ending.last_lines,
            took_s=round(took_s, 2),
            folder="",
            page="",
            repeat=self.wanted.repeat(point),
        )


def _result(ending: Ending, results: Results) -> tuple[str, str]:
    """Return the result of a point that was reached, and why."""
    outcome = _outcome(results)
    if outcome is Outcome.INVALID:
        return INVALID, _why(results)
    if ending.ended:
        last = ending.last_lines[-1] if ending.last_lines else "it printed nothing"
        return NO_START, f"{', '.join(ending.ended)} ended by itself: {last}"
    if not ending.serves:
        return NO_SERVICE, "its nodes run, and do not agree on a leader or do not answer"
    if outcome is Outcome.UNKNOWN:
        return UNKNOWN, _why(results)
    return VALID, ""


def _outcome(results: Results) -> Outcome:
    """Return the worst of all verdicts but one, which wants more operations than there are to be.

    That those after the power loss succeeded is known by other means: the group was drained.
    """
    return join(one for one in results.verdicts if one.checker != VACUITY)


def _why(results: Results) -> str:
    """Return what the first of the worst verdicts found first, or its summary."""
    outcome = _outcome(results)
    counted = (one for one in results.verdicts if one.checker != VACUITY)
    worst = next((one for one in counted if one.outcome is outcome), None)
    if worst is None:
        return ""
    return worst.findings[0].message if worst.findings else worst.summary


def _ignore(_what: str) -> None:
    """Show no progress: a run is judged within a second."""
