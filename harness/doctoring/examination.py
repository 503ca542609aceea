"""Try the faults on all worlds concurrently, each in a process of its own.

A fault that hangs, breaks the group or ends Python ends the trials of its world: it is reported,
and new trials start for the rest, a few times. Nothing is left behind: trials die with this
process, and their scratch folder is removed (by the next `heal`, if this process is killed).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio

from shaketable.harness import guard, namespaces, run_markers
from shaketable.harness.campaigns.campaign import default_faults
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Target
from shaketable.harness.doctoring import machine_checks
from shaketable.harness.doctoring import survey as surveys
from shaketable.harness.doctoring.findings import Examination, Finding, untried
from shaketable.harness.doctoring.survey import Survey
from shaketable.harness.doctoring.trials import Task
from shaketable.harness.network.probe import why_no_namespace
from shaketable.harness.runtime.processes import children

FAULT_TIMEOUT_S: Final = 60.0
"""How long a fault may take with the recovery of the group; most take less than 5 s."""
START_TIMEOUT_S: Final = 120.0
"""How long a group may take to start or to end."""
WORLD_TIMEOUT_S: Final = 360.0
"""A world takes less than a minute, but longer on a busy machine or when faults hang."""
TRIALS_MAX: Final = 6
"""How often trials are started for a world: each fault that hangs or ends them costs one."""

OnFinding = Callable[[Finding], None]
"""Called with each fault's finding."""
OnSurvey = Callable[[Survey, Sequence[str]], OnFinding]
"""Called with the survey and the worlds before the trials; returns the callback for findings."""


def examine(on_survey: OnSurvey, target: Target, worlds: Sequence[str]) -> Examination:
    """Try all faults on a target's group on these worlds, and check the machine.

    Must be called in the main thread.

    Raises:
        HarnessError: a built-in fault cannot be imported, or no file can be written.
    """
    findings: list[Finding] = []
    try:
        scratch = Path(tempfile.mkdtemp(prefix=run_markers.scratch_prefix("doctor")))
    except OSError as error:
        raise HarnessError(f"cannot write any temporary file: {error.strerror}") from error
    try:
        survey = surveys.find_faults(scratch)
        on_finding = on_survey(survey, worlds)

        def note(finding: Finding) -> None:
            findings.append(finding)
            on_finding(finding)

        facts = machine_checks.run_checks(scratch)
        trio.run(_try_all, _Trials(target.name, scratch, survey, note), worlds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    setting = machine_checks.setting()
    return Examination(findings, facts, setting, default_faults(target), target.name, worlds)


@dataclass(frozen=True, slots=True)
class _Trials:
    """What all worlds' trials have in common."""

    target: str
    scratch: Path
    survey: Survey
    note: OnFinding


async def _try_all(trials: _Trials, worlds: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for world in worlds:
            for name, why in sorted(trials.survey.broken.items()):
                trials.note(Finding(name, world, "failed", why))
            nursery.start_soon(_try_world, trials, world)


async def _try_world(trials: _Trials, world: str) -> None:
    """Try one world; report what it did not get to as untried, with the reason."""
    left = set(trials.survey.names)
    why = why_no_namespace() if world == "netns" else None
    if why is None:
        with trio.move_on_after(WORLD_TIMEOUT_S) as scope:
            why = await _try_until_done(trials, world, left)
        if scope.cancelled_caught:
            why = f"the trials took longer than {WORLD_TIMEOUT_S:g} s"
    for finding in untried(sorted(left), world, why or "the trials ended before it"):
        trials.note(finding)


async def _try_until_done(trials: _Trials, world: str, left: set[str]) -> str:
    """Run trials until nothing is `left`; return why the rest stays untried."""
    why = ""

    def on_finding(finding: Finding) -> None:
        left.discard(finding.fault)
        trials.note(finding)

    for number in range(TRIALS_MAX):
        if not left:
            break
        output, before = TrialOutput(on_finding), len(left)
        without, faults = tuple(trials.survey.without), tuple(sorted(left))
        task = Task(world, str(trials.scratch), faults, without, trials.target)
        why = await _run(task, trials.scratch / f"{world}-{number}.log", output)
        if output.trying:
            on_finding(Finding(output.trying, world, "failed", why))
        elif len(left) == before:  # no progress: it would fail the same way again
            break
    return why


@dataclass(slots=True)
class TrialOutput:
    """Parses the output of trials: forwards findings, keeps which fault is being tried."""

    on_finding: OnFinding
    trying: str = field(default="")

    def take(self, line: bytes) -> float:
        """Handle a line; return within how many seconds the next one must follow."""
        message = msgspec.json.decode(line, type=Finding | str)
        if isinstance(message, str):
            self.trying = message
        else:
            self.trying = ""
            self.on_finding(message)
        return FAULT_TIMEOUT_S if self.trying else START_TIMEOUT_S


async def _run(task: Task, log: Path, output: TrialOutput) -> str:
    """Run trials until they end; return why they ended, in case something was not tried."""
    program = [sys.executable, "-P", "-m", "shaketable.harness.doctoring.trials"]
    argv = [*program, str(os.getpid()), msgspec.json.encode(task).decode()]
    argv = guard.command(namespaces.new(argv) if task.world == "netns" else argv, os.getpid())
    ended = await children.run(argv, log, output.take, START_TIMEOUT_S)
    if ended.is_late and output.trying:
        return f"it hangs: it was under way for longer than {FAULT_TIMEOUT_S:g} s"
    if ended.is_late:
        return f"the trials printed nothing for {START_TIMEOUT_S:g} s"
    last_line = children.last_line(log)
    if output.trying:
        return f"it ended the trials (exit status {ended.status}): {last_line}"
    return last_line if ended.status else "the trials ended before it"
