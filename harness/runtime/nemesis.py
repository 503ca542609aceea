"""The nemesis: does the faults of a schedule, proves that they bit, and undoes each of them.

Each fault has a task of its own, so that faults of a schedule may overlap. Whatever ends a
fault (its time, a cancelled run, an error), it is probed and undone, shielded but bounded.

Source: jepsen.nemesis and jepsen.generator.interpreter (the nemesis is a process of the
history whose operations are `info` twice); DESIGN.md decisions 10 to 12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from harness.plugins import Evidence, Fault, Json, World
from harness.runtime.budget import Budget
from harness.runtime.happenings import Happenings
from harness.runtime.ledger import Ledger
from harness.runtime.observer import Observer
from harness.schedule import Planned
from harness.scripts import counted
from harness.words import Acts, CountsEffects

LEADER_WAIT_S = 2.0
"""How long a fault waits for somebody to lead before it aims at whoever was drawn first."""
LEADER_POLL_S = 0.05
APPLY_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 5.0
UNDO_TIMEOUT_S = 15.0
UNDO_ATTEMPTS_MAX = 8
"""Two minutes in all: so long may a node without its disk take to have a large log again."""
HELD_SHARE_MIN = 0.5
"""A fault that began late still holds for this share of its duration."""


@dataclass(slots=True)
class Tally:
    """What became of the faults so far."""

    applied: int = 0
    bit: int = 0
    failed: int = 0
    stuck: int = 0
    left_out: int = 0


class Nemesis:
    """Runs schedules of faults against one world.

    Args:
        faults: the plug-ins by name.
        world: what they act on.
        ledger: what is to be undone, written ahead.
        record: takes a nemesis event (f, value) into the history.
        observer: who is told.
        now_ns: the time since the run's start.
        budget: what faults may take out of the group together; None: anything.

    Attributes:
        tally: what became of the faults so far.
        happenings: told of elections, so that faults of a script can wait for them.
    """

    def __init__(
        self,
        faults: Mapping[str, Fault],
        world: World,
        ledger: Ledger,
        record: Callable[[str, Json], None],
        observer: Observer,
        now_ns: Callable[[], int],
        budget: Budget | None = None,
    ) -> None:
        self.tally = Tally()
        self.happenings = Happenings()
        self._budget = budget or Budget(world.nodes, keeps_quorum=False)
        self._faults = faults
        self._world = world
        self._ledger = ledger
        self._record = record
        self._observer = observer
        self._now_ns = now_ns
        self._stuck: set[int] = set()

    async def run(self, schedule: Sequence[Planned], room_s: float = math.inf) -> None:
        """Do all faults of a schedule, whose times count from now; return when all are undone.

        A fault that waits for an event, or for its turn under the budget, begins within `room_s`
        or not at all.
        """
        began = trio.current_time()
        since = self.happenings.mark(self._world)
        async with trio.open_nursery() as nursery:
            for planned in schedule:
                nursery.start_soon(self._perform, planned, began, began + room_s, since)

    async def _perform(
        self, planned: Planned, began: float, end: float, since: Mapping[str, int]
    ) -> None:
        """One fault from its time on: wait, aim, apply, hold, probe, undo."""
        fault = self._faults[planned.fault]
        if planned.on is None:
            await trio.sleep_until(min(began + planned.start_s, end))
        elif not await self._await_event(planned, planned.on, end, since):
            needed_s = planned.after_s + planned.duration_s
            why = f"{planned.on} did not happen in time, {needed_s:g} s before the end"
            await self._leave_out(fault, planned, why)
            return
        start = trio.current_time() if planned.on is not None else began + planned.start_s
        if start > end:
            await self._leave_out(fault, planned, "its time is behind that of the run")
            return
        try:
            try:
                plan = await self._aim(fault, planned, min(end, start + planned.duration_s))
                if plan is not None:
                    fault.describe(plan)
            except Exception as failure:  # somebody's plug-in, or a plan of somebody's
                await self._fail(fault, planned, f"{type(failure).__name__}: {failure}")
                return
            if plan is None:
                why = f"the budget keeps a quorum, and {self._budget}"
                await self._leave_out(fault, planned, why)
                return
            await self._strike(fault, planned, plan, start + planned.duration_s)
        finally:
            if planned.number not in self._stuck:  # who is still down is still out
                self._budget.give_back(planned.number)

    async def _await_event(
        self, planned: Planned, event: str, end: float, since: Mapping[str, int]
    ) -> bool:
        """Wait for the event of a fault, and what passes after it; False if it does not come."""
        if counted(event) is not None and not isinstance(self._world, CountsEffects):
            self._observer.note(f"fault {planned.number}: nobody counts {event} in this world")
            return False
        latest = end - planned.after_s - planned.duration_s
        with trio.move_on_at(max(latest, trio.current_time())) as waited:
            await self.happenings.wait(event, planned.nth, since, self._world)
        if waited.cancelled_caught:
            return False
        await trio.sleep(planned.after_s)
        return True

    async def _aim(self, fault: Fault, planned: Planned, latest: float) -> Json | None:
        """Name the victims, as many as the budget has room for; None if it has none in time."""
        while True:
            leader = await self._find_leader(planned.plan.get("order", ()))
            aimed = fault.aim(planned.plan, self._world.nodes, leader)
            plan = self._budget.take(planned.number, fault, aimed)
            if plan is not None:
                return plan
            with trio.move_on_at(latest) as waited:
                await self._budget.changed()
            if waited.cancelled_caught:
                return None

    async def _strike(self, fault: Fault, planned: Planned, plan: Json, stop: float) -> None:
        number = planned.number
        event: Json = {"fault": number, "plan": plan, "description": fault.describe(plan)}
        self._ledger.applying(number, fault.name, plan)
        event["began_ns"] = self._now_ns()
        undo = await self._apply(fault, number, plan, event)
        if undo is None:
            return
        stop = max(stop, trio.current_time() + planned.duration_s * HELD_SHARE_MIN)
        try:
            self._begin(fault, number, undo, event)
            await self._hold(fault, number, plan, undo, stop)
        finally:
            await self._end(fault, number, undo, event)

    async def _hold(self, fault: Fault, number: int, plan: Json, undo: Json, stop: float) -> None:
        """Let the fault be in force; one that acts is over when it has done what it wanted."""
        with trio.move_on_at(stop):
            if not isinstance(fault, Acts):
                await trio.sleep_forever()
            try:
                await fault.act(plan, undo, self._world, partial(self._ledger.applied, number))
            except Exception as failure:
                what = f"{fault.describe(plan)}: {type(failure).__name__}: {failure}"
                self._observer.note(f"fault {number}, {what}")
                undo["failure"] = what

    async def _fail(self, fault: Fault, planned: Planned, error: str) -> None:
        """Tell of a fault whose plan it cannot even aim or describe."""
        self.tally.failed += 1
        await self._tell_unbegun(fault, planned, f"its plan cannot be done: {error}")

    async def _leave_out(self, fault: Fault, planned: Planned, why: str) -> None:
        """Tell of a fault that did not begin, in the history too."""
        self.tally.left_out += 1
        await self._tell_unbegun(fault, planned, why)

    async def _tell_unbegun(self, fault: Fault, planned: Planned, why: str) -> None:
        try:
            what = fault.describe(planned.plan)
        except Exception:
            what = fault.name
        event: Json = {"fault": planned.number, "plan": planned.plan, "description": what}
        self._record(fault.name, {**event, "phase": "start"})
        stopped = {"bit": False, "evidence": f"not begun: {why}", "measures": {}}
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.note(f"fault {planned.number}, {what}, did not begin: {why}")

    async def _find_leader(self, order: Sequence[str]) -> str | None:
        """Who leads; waits a little for somebody to. Of several, the first in `order`."""
        with trio.move_on_after(LEADER_WAIT_S):
            while (leader := await self._world.leader(order)) is None:  # noqa: ASYNC110 - a question, no event
                await trio.sleep(LEADER_POLL_S)
            return leader
        return None

    async def _apply(self, fault: Fault, number: int, plan: Json, event: Json) -> Json | None:
        """Apply; None (and a window of its own in the history, not bitten) if that failed."""
        error = f"not applied within {APPLY_TIMEOUT_S:g} s"
        with _shielded(APPLY_TIMEOUT_S):
            try:
                undo = await fault.apply(plan, self._world)
                if isinstance(undo, dict):
                    return undo
                error = f"its apply returned {undo!r} in place of what undoes it"
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
        self.tally.failed += 1
        self._ledger.failed(number, error)
        what = f"could not be applied: {error}"
        self._record(fault.name, {**event, "phase": "start"})
        stopped = {"bit": False, "evidence": what, "measures": {}}
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.note(f"fault {number}, {event['description']}, {what}")
        return None

    def _begin(self, fault: Fault, number: int, undo: Json, event: Json) -> None:
        self._ledger.applied(number, undo)
        self._record(fault.name, {**event, "phase": "start"})
        self.tally.applied += 1
        self.happenings.fault_began(fault.name)
        self._observer.fault_started(number, fault.name, event["description"], self._now_ns())

    async def _end(self, fault: Fault, number: int, undo: Json, event: Json) -> None:
        evidence = await self._probe(fault, event["plan"], undo)
        error = await self._undo(fault, undo)
        what = evidence.what
        if error is None:
            self._ledger.undone(number)
            self.happenings.fault_healed(fault.name)
        else:
            self.tally.stuck += 1
            self._stuck.add(number)
            self._ledger.stuck(number, error)
            what = f"{what}; could not be undone: {error}"
            self._observer.note(f"fault {number}, {event['description']}: undo failed: {error}")
        self.tally.bit += evidence.bit
        stopped = {"bit": evidence.bit, "evidence": what, "measures": evidence.measures}
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.fault_stopped(number, fault.name, evidence.bit, what, self._now_ns())

    async def _probe(self, fault: Fault, plan: Json, undo: Json) -> Evidence:
        with _shielded(PROBE_TIMEOUT_S):
            try:
                return await fault.probe(plan, undo, self._world)
            except Exception as error:
                return Evidence(False, f"probe failed: {type(error).__name__}: {error}")
        return Evidence(False, f"probe gave no answer within {PROBE_TIMEOUT_S:g} s")

    async def _undo(self, fault: Fault, undo: Json) -> str | None:
        """Undo, trying again if it fails; return the last error, None when it is undone."""
        error: str | None = None
        for _ in range(UNDO_ATTEMPTS_MAX):
            error = f"not undone within {UNDO_TIMEOUT_S:g} s"
            with _shielded(UNDO_TIMEOUT_S):
                try:
                    await fault.undo(undo, self._world)
                except Exception as failure:
                    error = f"{type(failure).__name__}: {failure}"
                else:
                    return None
        return error


def _shielded(timeout_s: float) -> trio.CancelScope:
    return trio.CancelScope(shield=True, deadline=trio.current_time() + timeout_s)
