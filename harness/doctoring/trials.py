"""Tries every fault on one world, on a real group of three nodes with clients, and tells what came.

`python -m harness.doctoring.trials WORLD FOLDER PARENT_PID` (for world netns from within a
namespace, `harness.network.enter`) prints one JSON line for each fault, a `Finding` of
`harness.doctoring.findings`, and ends with that process. Each fault is planned, done, probed and
undone by the nemesis that does so in campaigns, for a short while, and for a longer one if it took
no effect. The group has to stand again before the next.

What is made is a run in FOLDER, and processes that end with this one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import trio

from harness import availability, campaign, discovery, marks
from harness.campaign import Campaign, node_names
from harness.doctoring.findings import WORLDS, Finding, State, World
from harness.errors import HarnessError, UsageError
from harness.history import run_folder
from harness.history.run_folder import RunFolder
from harness.plugins import Fault, Target
from harness.runtime import guard, phases, simulated
from harness.runtime.observer import SilentObserver
from harness.runtime.rig import Rig, build, node_options
from harness.schedule import Planned
from harness.telling import sentence
from harness.words import Acts, family_of

HOLD_S: Final = (0.5, 1.5, 3.0)
"""How long a fault holds, attempt after attempt."""
ROOM_S: Final = 20.0
RECOVERY_TIMEOUT_S: Final = 15.0
SHUTDOWN_TIMEOUT_S: Final = 30.0
STEADY_S: Final = 0.5
TIME_LIMIT_S: Final = 3_600.0
"""Nothing goes by it: a trial ends when all was tried."""
SEED: Final = "doctor"
WHAT_CHARS_MAX: Final = 180
LOG_LINE: Final = re.compile(r" \(\d{4}-\d\d-\d\dT.*")
"""What a node wrote into its log, quoted: too long for a table."""

Tell = Callable[[Finding], None]


class Notes(SilentObserver):
    """What the nemesis said of the fault that is tried."""

    def __init__(self) -> None:
        self.evidence = ""
        self.bit = False
        self.line = ""

    def fault_stopped(self, fault: int, name: str, bit: bool, evidence: str, at_ns: int) -> None:
        """Keep what was measured."""
        self.bit, self.evidence = bit, evidence

    def note(self, line: str) -> None:
        """Keep why it could not be done."""
        self.line = line


def try_world(world: World, folder: Path, tell: Tell) -> None:
    """Try all faults on one world; tell each as it was tried.

    Raises:
        UsageError: no group can be made there.
        HarnessError: the group does not start, or what ran it failed.
    """
    names = tuple(discovery.find("faults"))
    plans, broken = plans_of(names)
    for name, why in broken.items():
        tell(Finding(name, world, "failed", why))
    wanted = Campaign(
        name="doctor",
        world=world,
        faults=tuple(plans),
        rate_hz=100.0,
        concurrency="3",
        workers=1,
        steady_s=STEADY_S,
        time_limit_s=TIME_LIMIT_S,
        seed=SEED,
        store=str(folder),
    )
    resolved = campaign.resolve(wanted)
    choice = availability.choose(resolved)
    for name, why in choice.unavailable.items():
        tell(Finding(name, world, "lacking", sentence(why)))
    run = run_folder.create(folder, f"{resolved.name}-{world}", datetime.now(UTC))
    with marks.occupied(run.path):
        _run(resolved, run, choice.faults, lambda finding: tell(_without(finding, run.path)))


def _run(resolved: Campaign, run: RunFolder, faults: Mapping[str, Fault], tell: Tell) -> None:
    """Run the group in its world for as long as the trials take."""
    notes = Notes()
    if resolved.world == "sim":
        target: Target = discovery.get("targets", resolved.target)
        group = simulated.groups_of(target).group(node_names(resolved), node_options(resolved))

        async def main() -> None:
            await _examine(simulated.build(resolved, group, run, notes), faults, notes, tell)

        group.run(main)
        return
    trio.run(_examine, build(resolved, run, notes), faults, notes, tell)


def _without(finding: Finding, path: Path) -> Finding:
    """Leave the scratch folder out of what is told: it will be gone."""
    what = LOG_LINE.sub("", finding.what.replace(f"{path}/", ""))
    if len(what) > WHAT_CHARS_MAX:
        what = f"{what[:WHAT_CHARS_MAX]}..."
    return replace(finding, what=what)


def plans_of(names: Sequence[str]) -> tuple[dict[str, Fault], dict[str, str]]:
    """Part the faults that can draw a plan from those that cannot, with the reason."""
    plans: dict[str, Fault] = {}
    broken: dict[str, str] = {}
    nodes = node_names(Campaign())
    for name in names:
        fault: Fault = discovery.get("faults", name)
        try:
            json.dumps(fault.plan(Random(SEED), nodes, 0))
        except Exception as error:  # somebody's plug-in
            broken[name] = sentence(f"its plan fails: {type(error).__name__}: {error}")
        else:
            plans[name] = fault
    return plans, broken


async def _examine(rig: Rig, faults: Mapping[str, Fault], notes: Notes, tell: Tell) -> None:
    """Start the group and its clients, try the faults one after the other, end everything."""
    try:
        async with trio.open_nursery() as nursery:
            for service in rig.services:
                await nursery.start(service)
            try:
                await phases.set_up(rig)
                await rig.workers.generate()
                await trio.sleep(STEADY_S)
                for number, fault in enumerate(_in_order(faults)):
                    tell(await _try(rig, fault, number, notes))
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


def _in_order(faults: Mapping[str, Fault]) -> list[Fault]:
    """Those that take a node's files last: the group needs longest to stand again after them."""
    late = ("disk", "rollback", "membership")
    return sorted(faults.values(), key=lambda fault: (family_of(fault) in late, fault.name))


async def _try(rig: Rig, fault: Fault, number: int, notes: Notes) -> Finding:
    """Do one fault until it takes effect, each time for longer, and wait for the group."""
    began = trio.current_time()
    finding = Finding(fault.name, rig.campaign.world, "no-effect", "")
    nodes = node_names(rig.campaign)
    for turn, hold_s in enumerate(HOLD_S):
        least_s = fault.least_s(nodes) if isinstance(fault, Acts) else 0.0
        planned = Planned(
            number=number * len(HOLD_S) + turn,
            fault=fault.name,
            plan=fault.plan(Random(f"{SEED} {fault.name} {turn}"), nodes, turn),
            start_s=0.0,
            duration_s=max(hold_s, least_s),
        )
        finding = await _attempt(rig, planned, notes)
        is_back = await rig.world.standing.until_ready(RECOVERY_TIMEOUT_S)
        if not is_back:
            rig.world.restore()
        if finding.works:
            break
    took_s = round(trio.current_time() - began, 2)
    return Finding(finding.fault, finding.world, finding.state, finding.what, took_s)


async def _attempt(rig: Rig, planned: Planned, notes: Notes) -> Finding:
    tally = rig.nemesis.tally
    before = asdict(tally)
    notes.bit, notes.evidence, notes.line = False, "", ""
    await rig.nemesis.run([planned], ROOM_S)
    has_failed = tally.failed > before["failed"] or tally.stuck > before["stuck"]
    what = sentence(notes.evidence or notes.line or "it did not begin")
    state: State = "failed" if has_failed else "works" if notes.bit else "no-effect"
    return Finding(planned.fault, rig.campaign.world, state, what)


def main(arguments: Sequence[str]) -> int:
    """Try the world that the arguments name."""
    asked, folder, parent_pid = arguments
    (world,) = [name for name in WORLDS if name == asked]
    guard.die_with_parent(int(parent_pid))

    def tell(finding: Finding) -> None:
        sys.stdout.write(f"{json.dumps(asdict(finding))}\n")
        sys.stdout.flush()

    try:
        try_world(world, Path(folder), tell)
    except (UsageError, HarnessError) as error:
        sys.stderr.write(f"{sentence(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
