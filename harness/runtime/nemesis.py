"""The nemesis: does the faults of a schedule, proves that they bit, and undoes each of them.

Each fault has a task of its own, so that faults of a schedule may overlap. Whatever ends a
fault (its time, a cancelled run, an error), it is probed and undone, shielded but bounded.

Source: jepsen.nemesis and jepsen.generator.interpreter (the nemesis is a process of the
history whose operations are `info` twice); DESIGN.md decisions 10 to 12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from harness.plugins import Evidence, Fault, Json, World
from harness.runtime.ledger import Ledger
from harness.runtime.observer import Observer
from harness.schedule import Planned

LEADER_WAIT_S = 2.0
"""How long a fault waits for somebody to lead before it aims at whoever was drawn first."""
LEADER_POLL_S = 0.05
APPLY_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 5.0
UNDO_TIMEOUT_S = 15.0
UNDO_ATTEMPTS_MAX = 3
HELD_SHARE_MIN = 0.5
"""A fault that began late still holds for this share of its duration."""


@dataclass(slots=True)
class Tally:
    """What became of the faults so far."""

    applied: int = 0
    bit: int = 0
    failed: int = 0
    stuck: int = 0


class Nemesis:
    """Runs schedules of faults against one world.

    Args:
        faults: the plug-ins by name.
        world: what they act on.
        ledger: what is to be undone, written ahead.
        record: takes a nemesis event (f, value) into the history.
        observer: who is told.
        now_ns: the time since the run's start.
    """

    def __init__(
        self,
        faults: Mapping[str, Fault],
        world: World,
        ledger: Ledger,
        record: Callable[[str, Json], None],
        observer: Observer,
        now_ns: Callable[[], int],
    ) -> None:
        self.tally = Tally()
        self._faults = faults
        self._world = world
        self._ledger = ledger
        self._record = record
        self._observer = observer
        self._now_ns = now_ns

    async def run(self, schedule: Sequence[Planned]) -> None:
        """Do all faults of a schedule, whose times count from now; return when all are undone."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for planned in schedule:
                nursery.start_soon(self._perform, planned, began)

    async def _perform(self, planned: Planned, began: float) -> None:
        """One fault from its time on: aim, apply, hold, probe, undo."""
        fault = self._faults[planned.fault]
        await trio.sleep_until(began + planned.start_s)
        plan = fault.aim(
            planned.plan,
            self._world.nodes,
            await self._find_leader(planned.plan.get("order", ())),
        )
        event: Json = {
            "fault": planned.number,
            "plan": plan,
            "description": fault.describe(plan),
        }
        self._ledger.applying(planned.number, fault.name, plan)
        event["began_ns"] = self._now_ns()
        undo = await self._apply(fault, planned.number, plan, event)
        if undo is None:
            return
        stop = max(
            began + planned.start_s + planned.duration_s,
            trio.current_time() + planned.duration_s * HELD_SHARE_MIN,
        )
        try:
            self._begin(fault, planned.number, undo, event)
            await trio.sleep_until(stop)
        finally:
            await self._end(fault, planned.number, undo, event)

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
                return await fault.apply(plan, self._world)
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
        self._observer.fault_started(number, fault.name, event["description"], self._now_ns())

    async def _end(self, fault: Fault, number: int, undo: Json, event: Json) -> None:
        evidence = await self._probe(fault, event["plan"], undo)
        error = await self._undo(fault, undo)
        what = evidence.what
        if error is None:
            self._ledger.undone(number)
        else:
            self.tally.stuck += 1
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
