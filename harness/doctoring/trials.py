"""Try every fault on one world, on a real group of three nodes with clients.

`python -m shaketable.harness.doctoring.trials PARENT_PID TASK` (for world netns from within a
namespace, `harness.namespaces`), with a `Task` as JSON, prints JSON lines: for each fault its
name before it is examined or tried ("" when none is), and then a `Finding` of
`harness.doctoring.findings`. All other output goes to stderr. The nemesis of campaigns plans,
applies, probes and undoes each fault, for a short time, and for longer if it took no effect. After
the undo nothing of the fault may be left in the world, and the group must recover; if it does not,
the trials end, and the caller starts new ones for the rest.

They create a run in the task's folder, and processes that end with this one.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import trio

from shaketable.harness import discovery, plugin_calls, run_markers
from shaketable.harness.campaigns import campaign
from shaketable.harness.campaigns.campaign import Campaign, node_names
from shaketable.harness.campaigns.schedule import Planned, min_duration_s, schedule
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.errors import HarnessError, UsageError, clearest
from shaketable.harness.contracts.plugins import Fault
from shaketable.harness.doctoring.findings import Finding, State
from shaketable.harness.error_output import one_line
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime import availability, phases
from shaketable.harness.runtime.availability import Choice
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes import children
from shaketable.harness.runtime.rig import Rig
from shaketable.harness.runtime.simulated import run as simulated
from shaketable.harness.runtime.supervisor import assemble
from shaketable.harness.untrusted_text import error_text

HOLD_S: Final = (0.5, 1.5, 3.0)
"""How long a fault is held in the first, second, ... attempt."""
ROOM_S: Final = 20.0
ATTEMPT_TIMEOUT_S: Final = 30.0
"""How long an attempt may take; then the fault is undone, even if it would last longer."""
RECOVERY_TIMEOUT_S: Final = 15.0
SHUTDOWN_TIMEOUT_S: Final = 30.0
STEADY_S: Final = 0.5
UNDO_ATTEMPTS_MAX: Final = 2
"""Fewer than in a campaign: a hanging undo must leave time for the other faults."""
TIME_LIMIT_S: Final = 600.0
"""Not used as a limit: the trials end when all faults were tried."""
SEED: Final = "doctor"
WHAT_CHARS_MAX: Final = 180
NOT_UNDONE: Final = "; it was not undone: "
LOG_LINE: Final = re.compile(r" \(\d{4}-\d\d-\d\dT.*")
"""A quoted line of a node's log: too long for a table."""

OnFinding = Callable[[Finding], None]
OnStart = Callable[[str], None]
"""Called with each fault that is about to be examined or tried; "" when none is."""


class Task(msgspec.Struct, frozen=True):
    """The faults to try on a world, on a target's group, with their files below `folder`.

    `without`: entry points of broken plug-ins, for `discovery.exclude_entry_points`.
    """

    world: str
    folder: str
    faults: tuple[str, ...]
    without: tuple[str, ...] = ()
    target: str = Campaign().target


class Notes(SilentObserver):
    """Keeps what the nemesis reports about the current fault."""

    def __init__(self) -> None:
        self.evidence = ""
        self.took_effect = False
        self.line = ""

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Keep the probe's result."""
        self.took_effect, self.evidence = took_effect, evidence

    def note(self, line: str) -> None:
        """Keep why the fault could not be injected."""
        self.line = line


def try_world(task: Task, on_finding: OnFinding, on_start: OnStart = lambda _name: None) -> None:
    """Try faults on one world; call `on_start` before and `on_finding` after each.

    Raises:
        UsageError: no group can be created there.
        HarnessError: the group does not start, or does not recover after a fault, or the harness
            failed.
    """
    world = task.world
    base = Campaign(
        name="doctor",
        target=task.target,
        world=world,  # type: ignore[arg-type]  # the campaign checks it
        rate_hz=100.0,
        concurrency="3",
        workers=1,
        steady_s=STEADY_S,
        time_limit_s=TIME_LIMIT_S,
        seed=SEED,
        store=task.folder,
        faults=(),
    )
    base = campaign.resolve(base)  # for the number of nodes
    choice, broken = partition_faults(task.faults, base, on_start)
    for name, why in broken.items():
        on_finding(Finding(name, world, "failed", why))
    for name, why in choice.unavailable.items():
        on_finding(Finding(name, world, "lacking", one_line(why)))
    if not choice.faults:
        return
    resolved = msgspec.structs.replace(base, faults=tuple(choice.faults))
    run = run_folder.create(Path(task.folder), f"{resolved.name}-{world}", datetime.now(UTC))
    with run_markers.working_in(run.path):
        trials = Trials(
            choice.faults, on_start, lambda finding: on_finding(_without(finding, run.path))
        )
        try:
            _run(resolved, run, trials)
        except BaseExceptionGroup as group:
            clear = clearest(group)
            if isinstance(clear, HarnessError | UsageError):
                raise clear from group
            raise


@dataclass(frozen=True, slots=True)
class Trials:
    """The faults to try, and the callbacks before and after each."""

    faults: Mapping[str, Fault]
    on_start: OnStart
    on_finding: OnFinding


def _run(resolved: Campaign, run: RunFolder, trials: Trials) -> None:
    """Run the group in its world while the trials last."""
    notes = Notes()
    if resolved.world == "sim":
        group = simulated.new_group(resolved)

        async def main() -> None:
            await _examine(simulated.build(resolved, group, run, notes), trials, notes)

        group.run(main)
        return

    async def in_real_time() -> None:
        await _examine(await assemble(resolved, run, notes), trials, notes)

    trio.run(in_real_time)


def _without(finding: Finding, path: Path) -> Finding:
    """Remove the scratch folder and quoted log lines from a finding's text, and shorten it.

    The evidence is shortened first: why a fault was not undone matters more.
    """
    evidence, not_undone, why = finding.what.replace(f"{path}/", "").partition(NOT_UNDONE)
    why = _shortened(not_undone + LOG_LINE.sub("", why), WHAT_CHARS_MAX)
    evidence = _shortened(LOG_LINE.sub("", evidence), max(0, WHAT_CHARS_MAX - len(why)))
    return replace(finding, what=evidence + why)


def _shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}..."


def partition_faults(
    names: Sequence[str], base: Campaign, on_start: OnStart = lambda _name: None
) -> tuple[Choice, dict[str, str]]:
    """Separate the faults that a campaign can schedule from those that it cannot.

    A rig configures all faults and schedules them together, so that one broken fault would fail
    it. Each fault has random streams of its own: trying it alone gives the same choices.

    Returns the available and unavailable faults, and why others cannot be configured or scheduled.
    """
    faults: dict[str, Fault] = {}
    unavailable: dict[str, str] = {}
    broken: dict[str, str] = {}
    for name in names:
        on_start(name)
        alone = msgspec.structs.replace(base, faults=(name,))
        try:
            choice = availability.look(alone)
            if choice.faults:
                schedule(alone, choice.faults)
        except (HarnessError, UsageError) as error:
            broken[name] = one_line(str(error).removeprefix(f"fault {name}: "))
        else:
            faults |= choice.faults
            unavailable |= choice.unavailable
    on_start("")
    return Choice(faults, unavailable), broken


async def _examine(rig: Rig, trials: Trials, notes: Notes) -> None:
    """Start the group and its clients, try the faults one after the other, tear down."""
    rig.nemesis.undo_attempts_max = UNDO_ATTEMPTS_MAX
    try:
        async with trio.open_nursery() as nursery:
            for service in rig.services:
                await nursery.start(service)
            try:
                if not await phases.set_up(rig):
                    why = rig.world.group_status.why_not_ready()
                    raise HarnessError(f"the group does not serve: {why}")
                await rig.workers.generate()
                await trio.sleep(STEADY_S)
                await _try_all(rig, trials, notes)
            finally:
                scope = trio.CancelScope(shield=True)
                scope.deadline = trio.current_time() + SHUTDOWN_TIMEOUT_S
                with scope:
                    try:
                        await phases.tear_down(rig)
                    finally:
                        await rig.workers.kill()
            nursery.cancel_scope.cancel()
    finally:
        rig.close()


async def _try_all(rig: Rig, trials: Trials, notes: Notes) -> None:
    """Try one fault after the other while the group is healthy.

    Raises:
        HarnessError: the group did not recover; the next fault must not be tried on it, as it would
            be held responsible.
    """
    before = ""
    for number, fault in enumerate(_in_order(trials.faults)):
        if before and (why := await _why_not_ready(rig)):
            raise HarnessError(f"{before} broke the group: {why}")
        trials.on_start(fault.name)
        trials.on_finding(await _try(rig, fault, number, notes))
        before = fault.name


def _in_order(faults: Mapping[str, Fault]) -> list[Fault]:
    """Return the faults with those that destroy a node's files last: they need long to recover."""
    late = ("disk", "rollback", "membership")
    return sorted(faults.values(), key=lambda fault: (family_of(fault) in late, fault.name))


async def _try(rig: Rig, fault: Fault, number: int, notes: Notes) -> Finding:
    """Try one fault until it takes effect, each time for longer, and wait for the group."""
    start = trio.current_time()
    finding = Finding(fault.name, rig.campaign.world, "no-effect", "")
    for attempt in range(len(HOLD_S)):
        try:
            with as_plugin_error(HarnessError):
                planned = _plan(rig, fault, number, attempt)
        except (HarnessError, PlugInError) as error:
            what = one_line(f"its plan fails: {str(error).removeprefix(f'fault {fault.name}: ')}")
            finding = replace(finding, state="failed", what=what)
            break
        finding = await _attempt(rig, planned, notes)
        left = await _repair_leftovers(rig)
        if left and finding.state != "failed":
            what = one_line(f"{finding.what}{NOT_UNDONE}{left}")
            finding = replace(finding, state="failed", what=what)
        if finding.works or finding.state == "failed":  # it would fail the same way again
            break
    return replace(finding, took_s=round(trio.current_time() - start, 2))


def _plan(rig: Rig, fault: Fault, number: int, attempt: int) -> Planned:
    """Plan a fault as a campaign does. Raises whatever the plug-in raises."""
    nodes = node_names(rig.campaign)
    plan = fault.plan(Random(f"{SEED} {fault.name} {attempt}"), nodes, attempt)
    return Planned(
        number=number * len(HOLD_S) + attempt,
        fault=fault.name,
        plan=plugin_calls.json_object(plan, "it returned"),
        start_s=0.0,
        duration_s=max(HOLD_S[attempt], min_duration_s(fault, nodes)),
    )


async def _attempt(rig: Rig, planned: Planned, notes: Notes) -> Finding:
    tally = rig.nemesis.tally
    before = asdict(tally)
    notes.took_effect, notes.evidence, notes.line = False, "", ""
    with trio.move_on_after(ATTEMPT_TIMEOUT_S) as scope:
        await rig.nemesis.run([planned], ROOM_S)
    has_failed = tally.failed > before["failed"] or tally.stuck > before["stuck"]
    what = one_line(notes.evidence or notes.line or "it did not start")
    if scope.cancelled_caught and not notes.took_effect:
        has_failed, what = True, f"it took longer than {ATTEMPT_TIMEOUT_S:g} s: {what}"
    state: State = "failed" if has_failed else "works" if notes.took_effect else "no-effect"
    return Finding(planned.fault, rig.campaign.world, state, what)


async def _repair_leftovers(rig: Rig) -> str:
    """Repair what the undo of a fault left, and wait for the group; return what was left, or "".

    A world knows its cuts, shaped links, disk faults, stopped and ended nodes; other leftovers show
    as a group that does not recover.
    """
    left = list(rig.world.restore())
    if rig.restore_late is not None:
        left += await rig.restore_late(RECOVERY_TIMEOUT_S)
    if why := await _why_not_ready(rig):
        left.append(why)
    return "; ".join(left)


async def _why_not_ready(rig: Rig) -> str:
    """Wait until the group is ready by new reports of its nodes; return why it is not, or ""."""
    since = trio.current_time()
    if await wait_until(lambda: rig.world.group_status.is_ready(since), RECOVERY_TIMEOUT_S):
        return ""
    why = rig.world.group_status.why_not_ready()
    return f"the group did not come back in {RECOVERY_TIMEOUT_S:g} s: {why}"


def main(arguments: Sequence[str]) -> int:
    """Run the task in the arguments; the last line on stderr is the error, if it fails."""
    parent_pid, encoded_task = arguments
    task = msgspec.json.decode(encoded_task, type=Task)
    with children.begin(parent_pid) as out:

        def emit(what: object) -> None:
            out.write(f"{json.dumps(what)}\n")

        discovery.exclude_entry_points(task.without)
        try:
            try_world(task, lambda finding: emit(asdict(finding)), emit)
        except (UsageError, HarnessError) as error:
            sys.stderr.write(f"{one_line(error)}\n")
            return 1
        except Exception as error:
            traceback.print_exception(error)
            sys.stderr.write(f"a fault of the harness: {one_line(error_text(error))}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
