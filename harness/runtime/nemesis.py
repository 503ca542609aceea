"""The nemesis: applies the faults of a schedule, proves that they took effect, and undoes them.

Each fault has its own task, so faults may overlap. Whatever ends a fault (its time, a cancelled
run, an error), it is probed and undone, shielded but bounded.

The budget of faults is how many nodes they may take out of a group together. Under the budget
"quorum", faults in force never stop or cut off more than (n - 1) / 2 nodes, so a quorum is left. A
fault that would exceed that strikes fewer nodes, or waits until others are undone.

Source: jepsen.nemesis and jepsen.generator.interpreter (the nemesis is a process of the history
whose operations are `info` twice); DESIGN.md decisions 10 to 12; for the budget, Chaos Mesh and
TigerBeetle's liveness mode (a core that is always left to work).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import trio

from shaketable.harness import discovery, plugin_calls
from shaketable.harness.campaigns.scenarios import Cast
from shaketable.harness.campaigns.schedule import SCRIPT, Planned
from shaketable.harness.campaigns.scripts import FAULT_BEGAN, FAULT_HEALED, LEADER_ELECTED, counted
from shaketable.harness.contracts.capabilities import (
    Acts,
    CountsEffects,
    TakesOut,
    TellsWhatIsLeft,
    UndoesAhead,
)
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, World
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime.ledger import Ledger
from shaketable.harness.runtime.observer import Observer

LEADER_WAIT_S = 2.0
"""How long a fault waits for a leader before it falls back to the first node drawn."""
LEADER_POLL_S = 0.05
APPLY_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 5.0
UNDO_TIMEOUT_S = 15.0
UNDO_ATTEMPTS_MAX = 8
"""Two minutes in all: a node without its disk may take that long to catch up with a large log."""
RETRY_DURATION_MAX_S = 5.0
HELD_SHARE_MIN = 0.5
"""A fault that started late is still held for this share of its duration."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the faults so far."""

    applied: int = 0
    took_effect: int = 0
    failed: int = 0
    stuck: int = 0
    left_out: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the counts, as run.json has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Aimed:
    """A fault about to be applied: its plan, its description, its undo if known ahead."""

    plan: Json
    what: str
    ahead: Json | None


class Nemesis:
    """Runs schedules of faults against one world.

    Args:
        faults: the plug-ins by name.
        world: the world to act on.
        ledger: the write-ahead log of undos.
        record: appends a nemesis event (f, value) to the history.
        observer: is notified of faults.
        now_ns: returns the time since the run's start.
        budget: how many nodes faults may take out together; None: any number.

    Attributes:
        tally: the outcomes of the faults so far.
        events: counts elections and faults, so that faults of a script can wait for them.
        left: the names of faults that could not be undone and may still be in force.
        is_hopeless: returns whether a node ended because of its own bug: an undo that then fails is
            not retried.
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
        self.events = RunEvents()
        self.undo_attempts_max = UNDO_ATTEMPTS_MAX
        self.is_hopeless: Callable[[], bool] = lambda: False
        self._budget = budget or Budget(world.nodes, keeps_quorum=False)
        self._faults = faults
        self._world = world
        self._ledger = ledger
        self._record = record
        self._observer = observer
        self._now_ns = now_ns
        self.left: list[str] = []
        self._stuck: set[int] = set()
        self._casts: dict[str, Cast] = {}
        self._effective: set[str] = set()
        self._next_number = 0

    async def run(self, schedule: Sequence[Planned], room_s: float = math.inf) -> None:
        """Run all faults of a schedule, with times counted from now; return when all are undone.

        A fault that waits for an event, or for the budget, starts within `room_s` or not at all.
        """
        began = trio.current_time()
        since = self.events.mark(self._world)
        self._next_number = max([self._next_number, *(one.number + 1 for one in schedule)])
        async with trio.open_nursery() as nursery:
            for planned in schedule:
                nursery.start_soon(self._perform, planned, began, began + room_s, since)

    def without_effect(self, schedule: Sequence[Planned]) -> list[Planned]:
        """Return, for each kind of fault of which none took effect, the last one in the schedule.

        Scenario steps count if a kind has no fault outside scenarios; those of a script never
        count.
        """
        drawn = [one for one in schedule if one.scenario != SCRIPT]
        drawn.sort(key=lambda one: not one.scenario)
        return list({one.fault: one for one in drawn if one.fault not in self._effective}.values())

    async def retry(self, planned: Planned) -> None:
        """Run a fault again, alone and now, unless its kind has taken effect meanwhile."""
        if planned.fault in self._effective:
            return
        again = Planned(
            number=self._next_number,
            fault=planned.fault,
            plan=planned.plan,
            start_s=0.0,
            duration_s=min(planned.duration_s, RETRY_DURATION_MAX_S),
        )
        await self.run([again])

    async def _perform(
        self, planned: Planned, began: float, end: float, since: Mapping[str, int]
    ) -> None:
        """Run one fault: wait, aim, apply, hold, probe, undo."""
        fault = self._faults[planned.fault]
        if planned.on is None or planned.start_s > 0:
            await trio.sleep_until(min(began + planned.start_s, end))
        if planned.on is not None and planned.start_s > 0:
            since = self.events.mark(self._world)  # events count from now on
        latest = math.inf if planned.until_s is None else began + planned.until_s
        if planned.on is not None and not await self._await_event(
            planned, planned.on, end, latest, since
        ):
            needed_s = planned.after_s + planned.duration_s
            why = f"{planned.on} did not happen in time, {needed_s:g} s before the end"
            await self._leave_out(fault, planned, why)
            return
        start = trio.current_time() if planned.on is not None else began + planned.start_s
        if start > end:
            await self._leave_out(fault, planned, "its time is after the end of the run")
            return
        try:
            try:
                aimed = await self._aim(fault, planned, min(end, start + planned.duration_s))
            except PlugInError as failure:
                await self._fail(fault, planned, str(failure))
                return
            if isinstance(aimed, str):
                await self._leave_out(fault, planned, aimed)
                return
            await self._strike(fault, planned, aimed, start + planned.duration_s)
        finally:
            if planned.number not in self._stuck:  # a node that is still down still counts
                self._budget.give_back(planned.number)

    async def _await_event(
        self, planned: Planned, event: str, end: float, latest: float, since: Mapping[str, int]
    ) -> bool:
        """Wait for the event of a fault and the delay after it; False if it does not come in time.

        The fault starts by `latest` and ends by `end`.
        """
        if counted(event) is not None and not isinstance(self._world, CountsEffects):
            self._observer.note(f"fault {planned.number}: no one counts {event} in this world")
            return False
        latest = min(latest, end - planned.duration_s) - planned.after_s
        with trio.move_on_at(max(latest, trio.current_time())) as waited:
            await self.events.wait(event, planned.nth, since, self._world)
        if waited.cancelled_caught:
            return False
        await trio.sleep(planned.after_s)
        return True

    async def _aim(self, fault: Fault, planned: Planned, latest: float) -> _Aimed | str:
        """Choose the victims within the budget; return the reason if there are none in time.

        Raises:
            PlugInError: the plug-in failed. Failures of our own code are not attributed to it.
        """
        while True:
            leader = await self._find_leader(_order(planned.plan))
            drawn = self._play(planned, leader)
            if drawn is None:
                return f"no node plays {planned.roles}"
            with as_plugin_error():
                aimed = fault.aim(drawn, self._world.nodes, leader)
                aimed = plugin_calls.json_object(aimed, "its aim returned")
            plan = self._budget.take(planned.number, fault, aimed)
            if plan is not None:
                self._remember(planned, plan)
                with as_plugin_error():
                    what = plugin_calls.text(fault.describe(plan), "its describe returned")
                    return _Aimed(plan, _of_scenario(planned, what), undo_ahead(fault, plan))
            with trio.move_on_at(latest) as waited:
                await self._budget.changed()
            if waited.cancelled_caught:
                return f"the budget keeps a quorum, and {self._budget}"

    def _play(self, planned: Planned, leader: str | None) -> Json | None:
        """Return a step's plan, aimed at the nodes with its roles; None if no node has one.

        The roles of a scenario are assigned when its first step is aimed.
        """
        if not planned.scenario:
            return planned.plan
        nodes = self._world.nodes
        order = [node for node in _order(planned.plan) if node in nodes] or list(nodes)
        cast = self._casts.setdefault(planned.scenario, Cast(leader, order))
        return cast.aimed(planned.plan, planned.roles) if planned.roles else planned.plan

    def _remember(self, planned: Planned, plan: Json) -> None:
        """Store the victims of a step for later steps of its scenario."""
        if planned.remember:
            struck = plan.get("victims")
            nodes = [node for node in struck if isinstance(node, str)] if struck else []
            self._casts[planned.scenario].remember(planned.remember, nodes)

    async def _strike(self, fault: Fault, planned: Planned, aimed: _Aimed, stop: float) -> None:
        number, plan = planned.number, aimed.plan
        event: Json = {"fault": number, "plan": plan, "description": aimed.what}
        # Write-ahead: a harness that is killed from here on leaves an entry for `heal`.
        self._ledger.applying(number, fault.name, plan, aimed.ahead)
        event["began_ns"] = self._now_ns()
        undo = await self._apply(fault, number, aimed, event)
        if undo is None:
            return
        stop = max(stop, trio.current_time() + planned.duration_s * HELD_SHARE_MIN)
        try:
            self._begin(fault, number, undo, event)
            await self._hold(fault, number, aimed, undo, stop)
        finally:
            await self._end(fault, number, undo, event)

    async def _hold(
        self, fault: Fault, number: int, aimed: _Aimed, undo: Json, stop: float
    ) -> None:
        """Keep the fault in force for its duration, or until its `act` returns."""
        note = partial(self._ledger.applied, number)
        try:
            with as_plugin_error(), trio.move_on_at(stop):
                if not isinstance(fault, Acts):
                    await trio.sleep_forever()
                await fault.act(aimed.plan, undo, self._world, note)
        except PlugInError as failure:
            what = f"{aimed.what}: {failure}"
            self._observer.note(f"fault {number}, {what}")
            undo["failure"] = what

    async def _fail(self, fault: Fault, planned: Planned, error: str) -> None:
        """Report a fault whose plan it cannot aim or describe."""
        self.tally.failed += 1
        await self._report_not_started(fault, planned, f"its plan cannot be done: {error}")

    async def _leave_out(self, fault: Fault, planned: Planned, why: str) -> None:
        """Report a fault that was not started, in the history too."""
        self.tally.left_out += 1
        await self._report_not_started(fault, planned, why)

    async def _report_not_started(self, fault: Fault, planned: Planned, why: str) -> None:
        try:
            with as_plugin_error():
                what = plugin_calls.text(fault.describe(planned.plan), "its describe returned")
        except PlugInError:
            what = fault.name
        what = _of_scenario(planned, what)
        event: Json = {"fault": planned.number, "plan": planned.plan, "description": what}
        self._record(fault.name, {**event, "phase": "start"})
        stopped = {"took_effect": False, "evidence": f"not begun: {why}", "measures": {}}
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.note(f"fault {planned.number}, {what}, did not start: {why}")

    async def _find_leader(self, order: Sequence[str]) -> str | None:
        """Return the leader, waiting a little for one; of several, the first in `order`."""
        with trio.move_on_after(LEADER_WAIT_S):
            while (leader := await self._world.leader(order)) is None:  # noqa: ASYNC110 - polled: no event
                await trio.sleep(LEADER_POLL_S)
            return leader
        return None

    async def _apply(self, fault: Fault, number: int, aimed: _Aimed, event: Json) -> Json | None:
        """Apply the fault; None if that failed, with a window in the history without effect."""
        known = aimed.ahead
        try:
            with as_plugin_error(), _in_time(APPLY_TIMEOUT_S, "not applied"):
                undo = await fault.apply(aimed.plan, self._world)
                known = undo if isinstance(undo, dict) else known
                return plugin_calls.json_object(undo, "its apply returned", "what undoes it")
        except PlugInError as failure:
            error = str(failure)
        self.tally.failed += 1
        what = f"could not be applied: {error}"
        if (left := await self._take_back(fault, known)) is None:  # before anything that may fail
            self._ledger.failed(number, error)
        else:
            self._keep_open(fault, number, f"{error}; {left}")
            what = f"{what}; {left}"
        self._record(fault.name, {**event, "phase": "start"})
        stopped = {"took_effect": False, "evidence": what, "measures": {}}
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.note(f"fault {number}, {event['description']}, {what}")
        return None

    async def _take_back(self, fault: Fault, known: Json | None) -> str | None:
        """Undo what a failed `apply` did; return what may be left, None if nothing."""
        if known is not None:
            error = await self._undo(fault, known)
            return None if error is None else f"could not be undone: {error}"
        if discovery.is_built_in("faults", fault):
            # Built-in faults undo a failed apply themselves, as far as that can be done.
            left = self._world.left_over() if isinstance(self._world, TellsWhatIsLeft) else None
            return None if left is None else f"not undone: {left}"
        return "it gave no undo ahead, and so it is not known what it did: look after it (heal)"

    def _keep_open(self, fault: Fault, number: int, error: str) -> None:
        self.tally.stuck += 1
        self.left.append(fault.name)
        self._stuck.add(number)
        self._ledger.stuck(number, error)

    def _begin(self, fault: Fault, number: int, undo: Json, event: Json) -> None:
        self._ledger.applied(number, undo)
        self._record(fault.name, {**event, "phase": "start"})
        self.tally.applied += 1
        self.events.fault_began(fault.name)
        self._observer.fault_started(number, fault.name, event["description"], self._now_ns())

    async def _end(self, fault: Fault, number: int, undo: Json, event: Json) -> None:
        evidence = await self._probe(fault, event["plan"], undo)
        error = await self._undo(fault, undo)
        what = evidence.what
        if error is None:
            self._ledger.undone(number)
            self.events.fault_healed(fault.name)
        else:
            self._keep_open(fault, number, error)
            what = f"{what}; could not be undone: {error}"
            self._observer.note(f"fault {number}, {event['description']}: undo failed: {error}")
        self.tally.took_effect += evidence.took_effect
        if evidence.took_effect:
            self._effective.add(fault.name)
        stopped = {
            "took_effect": evidence.took_effect,
            "evidence": what,
            "measures": evidence.measures,
        }
        self._record(fault.name, {**event, "phase": "stop", **stopped})
        self._observer.fault_stopped(number, fault.name, evidence.took_effect, what, self._now_ns())

    async def _probe(self, fault: Fault, plan: Json, undo: Json) -> Evidence:
        try:
            with as_plugin_error(), _in_time(PROBE_TIMEOUT_S, "no answer"):
                return plugin_calls.evidence(await fault.probe(plan, undo, self._world))
        except PlugInError as failure:
            return Evidence(False, f"probe failed: {failure}")

    async def _undo(self, fault: Fault, undo: Json) -> str | None:
        """Undo with retries; return the last error, None if undone."""
        error: str | None = None
        for _ in range(self.undo_attempts_max):
            try:
                with as_plugin_error(), _in_time(UNDO_TIMEOUT_S, "not undone"):
                    await fault.undo(undo, self._world)
            except PlugInError as failure:
                error = str(failure)
                if self.is_hopeless():
                    return error
            else:
                return None
        return error


def undo_ahead(fault: Fault, plan: Json) -> Json | None:
    """Return the undo that a fault declares before `apply`; None if it declares none.

    Raises:
        PlugInError: the undo is malformed. Also whatever the plug-in raises.
    """
    if not isinstance(fault, UndoesAhead):
        return None
    return plugin_calls.json_object(fault.undo_ahead(plan), "its undo_ahead returned")


def _of_scenario(planned: Planned, what: str) -> str:
    """Prefix a step's description with its scenario: "figure-8: isolate n1"."""
    if planned.scenario in ("", SCRIPT):
        return what
    return f"{planned.scenario.partition(' ')[0]}: {what}"


def _order(plan: Json) -> list[str]:
    """Return the nodes in a plan's order; third-party plans may use that key for anything."""
    order = plan.get("order")
    if not isinstance(order, list | tuple):
        return []
    return [node for node in order if isinstance(node, str)]


@contextmanager
def _in_time(timeout_s: float, not_done: str) -> Iterator[None]:
    """Shield the body from cancellation, but bound it.

    Raises:
        PlugInError: it was not done in time.
    """
    scope = trio.CancelScope(shield=True, deadline=trio.current_time() + timeout_s)
    with scope:
        yield
    if scope.cancelled_caught:
        raise PlugInError(f"{not_done} within {timeout_s:g} s")


# Events that faults of a script wait for: an election, another fault, a node's N-th fsync.
#
# Source: harness.campaigns.scripts, which names the events.

COUNTS_POLL_S = 0.02
"""How often the nodes' counts are polled: the maximum delay of an event."""


class RunEvents:
    """Counts events, and lets faults wait for the next one."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._more = trio.Event()

    def leader_elected(self) -> None:
        """Count an election: a node leads a new term."""
        self._tell(LEADER_ELECTED)

    def fault_began(self, name: str) -> None:
        """Count the start of a fault of that name."""
        self._tell(f"{FAULT_BEGAN}:{name}")

    def fault_healed(self, name: str) -> None:
        """Count the end of a fault of that name."""
        self._tell(f"{FAULT_HEALED}:{name}")

    def _tell(self, event: str) -> None:
        self._seen[event] += 1
        self._more.set()
        self._more = trio.Event()

    async def wait(self, event: str, nth: int, since: Mapping[str, int], world: World) -> None:
        """Wait until the event has happened for the `nth` time since `since`.

        Args:
            event: as a script names it; "sync:100" is each 100th of one node.
            nth: counted from 1.
            since: what `mark` returned.
            world: provides the nodes' counts.
        """
        of_nodes = counted(event)
        if of_nodes is None:
            while self._seen[event] - since.get(event, 0) < nth:
                await self._more.wait()
            return
        kind, every = of_nodes
        assert isinstance(world, CountsEffects), "looked at before"
        while not any(  # noqa: ASYNC110 - nodes count in files, without events
            world.effects(node).get(kind, 0) - since.get(f"{node}/{kind}", 0) >= every * nth
            for node in world.nodes
        ):
            await trio.sleep(COUNTS_POLL_S)

    def mark(self, world: World) -> Mapping[str, int]:
        """Return the counts of all events so far, for `wait`."""
        of_nodes: dict[str, int] = {}
        if isinstance(world, CountsEffects):
            for node in world.nodes:
                of_nodes |= {f"{node}/{kind}": n for kind, n in world.effects(node).items()}
        return {**self._seen, **of_nodes}


# The budget of faults.


class Budget:
    """The budget of one run.

    Args:
        nodes: the nodes of the group.
        keeps_quorum: False: grant every request.
    """

    def __init__(self, nodes: Sequence[str], keeps_quorum: bool) -> None:
        self._nodes = tuple(nodes)
        self._keeps_quorum = keeps_quorum
        self._out: dict[int, frozenset[str]] = {}
        self._changed = trio.Event()

    @property
    def out(self) -> frozenset[str]:
        """Return the nodes that faults in force have taken out."""
        return frozenset().union(*self._out.values())

    def take(self, number: int, fault: Fault, plan: Json) -> Json | None:
        """Reserve the nodes that an aimed plan takes out, for fault `number`.

        Returns the plan to apply (with fewer victims, if all would be too many); None if there is
        no room for any of it now.

        Raises:
            PlugInError: the fault's `taken_out` or `narrowed` failed, or it narrowed too little.
        """
        taken = self._taken_out(fault, plan)
        if taken is None:
            return plan
        asked = [node for node in taken if node not in self.out]
        # Without at most (n - 1) // 2 nodes, a majority of all n is left.
        room = (len(self._nodes) - 1) // 2 - len(self.out)
        if self._keeps_quorum and len(asked) > room:
            narrowed = self._narrowed(fault, plan, (*self.out, *asked[max(room, 0) :]))
            if room <= 0 or narrowed is None:
                return None
            plan, taken = narrowed, self._taken_out(fault, narrowed) or ()
            if len(set(taken) - self.out) > room:
                raise PlugInError(
                    f"its narrowed returned a plan that takes out {', '.join(taken)}:"
                    f" {room} more can be out"
                )
        self._out[number] = frozenset(taken)
        return plan

    def give_back(self, number: int) -> None:
        """Release the nodes of fault `number` (idempotent)."""
        if self._out.pop(number, None) is not None:
            self._changed.set()
            self._changed = trio.Event()

    async def changed(self) -> None:
        """Wait until nodes were released."""
        await self._changed.wait()

    def __str__(self) -> str:
        return f"{', '.join(sorted(self.out)) or 'none'} of {len(self._nodes)} is out"

    def _taken_out(self, fault: Fault, plan: Json) -> tuple[str, ...] | None:
        """Return the nodes that a plan takes out; None for a fault that takes out none."""
        with as_plugin_error():
            if not isinstance(fault, TakesOut):
                return None
            return tuple(
                plugin_calls.text(node, "its taken_out returned")
                for node in fault.taken_out(plan, self._nodes)
            )

    def _narrowed(self, fault: Fault, plan: Json, spare: Sequence[str]) -> Json | None:
        with as_plugin_error():
            assert isinstance(fault, TakesOut), "it was asked which nodes it takes"
            narrowed = fault.narrowed(plan, self._nodes, spare)
            if narrowed is None:
                return None
            return plugin_calls.json_object(narrowed, "its narrowed returned")
