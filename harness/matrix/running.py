"""A matrix is run: which of its cells can be, the queue that runs them, and their results.

Checked first, before anything is run: a cell that its world or target does not support stays in the
plan with the reason. What no run could accept (an unknown name, an invalid number, no room for the
faults) is a mistake in the file, and refused.

Several cells run at a time, each in a process of its own. Everything happens in the main thread,
since a cell's process dies with it (`harness.guard`). One call of `Queue.end` stops the queue:
running cells are terminated and count as not run.

The outcome of a cell's run is read from its folder, or from its output if it failed. All of them
make the exit code, results.json and the table.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from shaketable.harness import discovery, guard
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import (
    Campaign,
    check_numbers,
    node_names,
    target_of,
    toml_value,
)
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.rng import new_seed
from shaketable.harness.contracts.verdict import ExitCode, worst_exit
from shaketable.harness.faults.victims import UnknownVictimError, is_victim
from shaketable.harness.history.run_folder import LATEST, RunFolder, UnreadableError, read_results
from shaketable.harness.matrix.folder import FaultCount, Journal, MatrixFolder, Outcome, code_of
from shaketable.harness.matrix.plan import Cell, CellSpec, Matrix, Plan, expand, read_matrix
from shaketable.harness.runtime import availability
from shaketable.reports.matrix_page import MatrixAttempt, MatrixCell, MatrixRow, MatrixView

# Which cells can be run, and why others cannot.

FAMILIES = ("process", "network", "clock", "disk", "rollback", "membership", "resources")
"""The order of the built-in fault families; others follow by name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the campaign of each cell that will be run, by cell id."""

    plan: Plan
    campaigns: dict[str, Campaign]


def load(path: Path, notify: Callable[[str], None]) -> Planned:
    """Read a matrix file and check its cells; `notify` is called before a slow step.

    Raises:
        UsageError: the file is invalid, or none of its cells can be run.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the matrix {path}: {why}") from error
    matrix = read_matrix(text, str(path), _by_family(), _seeds())
    if "netns" in (*matrix.axes.get("worlds", ()), matrix.campaign.get("world")):
        notify("looking at what network namespaces can do here")
    return check_cells(matrix, str(path))


def check_cells(matrix: Matrix, where: str) -> Planned:
    """Check each cell of a matrix. Raises as `load` does."""
    own_seed = new_seed()
    cells: list[Cell] = []
    resolved: dict[str, Campaign] = {}
    expanded = expand(matrix)
    each = [_campaign(spec, f"{where}: {spec.id}", own_seed) for spec in expanded]
    nodes = {node for campaign in each for node in node_names(campaign)}
    for spec, campaign in zip(expanded, each, strict=True):
        skipped = spec.excluded or _why_not(campaign, f"{where}: {spec.id}", nodes)
        if skipped is None:
            resolved[spec.id] = campaign
        cells.append(
            Cell(
                id=spec.id,
                target=campaign.target,
                workload=campaign.workload,
                faults=campaigns.faults_of(campaign),
                world=campaign.world,
                seed=campaign.seed or "",
                family=_family(campaign),
                skipped=skipped or "",
            )
        )
    if not resolved:
        raise UsageError(f"{where}: no cell can be run: {cells[0].id}: {cells[0].skipped}")
    return Planned(
        Plan(name=matrix.name, effects_min=matrix.effects_min, cells=tuple(cells)), resolved
    )


def _seeds() -> Iterator[str]:
    while True:
        yield new_seed()


def _by_family() -> list[str]:
    """Return the names of all faults, sorted by family."""

    def place(name: str) -> tuple[int, str, str]:
        family = family_of(known[name])
        known_family = family in FAMILIES
        return (FAMILIES.index(family) if known_family else len(FAMILIES)), family, name

    known = discovery.find("faults")
    return sorted(known, key=place)


def _family(campaign: Campaign) -> str:
    return " ".join(dict.fromkeys(availability.families(campaign).values()))


def _campaign(spec: CellSpec, where: str, seed: str) -> Campaign:
    """Return the campaign of a cell; refuse what no world and no target supports."""
    lines = [f"{key} = {toml_value(value)}" for key, value in spec.campaign.items()]
    campaign = campaigns.loads("\n".join(lines), where)
    campaign = msgspec.structs.replace(campaign, name=spec.id, seed=campaign.seed or seed)
    try:
        check_numbers(msgspec.to_builtins(campaign))
        campaign = campaigns.with_seed(campaign)
        campaigns.clients(campaign)
        workload = campaigns.workload_of(campaign, target_of(campaign))
        campaign = msgspec.structs.replace(campaign, workload=workload)
        names = [("workloads", workload)]
        names += [("faults", fault) for fault in campaigns.faults_of(campaign)]
        for kind, name in names:
            discovery.get(kind, name)
        _refuse_mistakes(campaign)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return campaign


def _refuse_mistakes(campaign: Campaign) -> None:
    """Refuse mistakes, as opposed to what a world or a target does not support.

    Raises:
        UsageError: a mutant of no target, a promise of no target, an invalid address.
    """
    if campaign.promise is not None:
        discovery.get("targets", campaign.promise)
    if campaign.mutant is not None:
        known = {name for target in discovery.find("targets").values() for name in target.mutants}
        if campaign.mutant not in known:
            raise UsageError(unknown_name("mutant", campaign.mutant, known))
    campaigns.require_remote(campaign.spark_remote)


def _why_not(campaign: Campaign, where: str, nodes: Collection[str]) -> str | None:
    """Return why the world or the target cannot run a cell; None if they can.

    `nodes` are those of all cells: a victim that only another cell has makes this one unavailable.

    Raises:
        UsageError: no schedule is possible, or it names victims that no cell has.
    """
    try:
        resolved = campaigns.resolve(campaign)
        if (why := _lacks_world(resolved)) is not None:
            return why
        choice = availability.look(resolved)
    except UnknownVictimError as error:
        if all(is_victim(victim, nodes) for victim in campaign.victims):
            return str(error)
        raise UsageError(f"{where}: {error}") from error
    except UsageError as error:
        return str(error)
    if choice.unavailable and not choice.faults:
        reasons = dict.fromkeys(choice.unavailable.values())
        return "; ".join(reasons)
    try:
        schedule(resolved, choice.faults)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return None


def _lacks_world(campaign: Campaign) -> str | None:
    if campaign.world == "netns":
        from shaketable.harness.network.probe import why_no_namespace  # noqa: PLC0415 - others need none

        why = why_no_namespace()
        return None if why is None else f"world netns: {why}"
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import groups_of  # noqa: PLC0415 - others need none

        groups_of(target_of(campaign))
    return None


# The queue.

POLL_S: Final = 0.1
TERM_EVERY_S: Final = 1.0
"""A run tears down at the second SIGTERM, and abandons its check at the third."""
END_TIMEOUT_S: Final = 90.0
"""After this a run that was asked to end is killed; what it started ends with it."""


class Process(Protocol):
    """A cell's process."""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process."""
        ...

    def wait(self) -> int:
        """Wait until it exits; return its exit status."""
        ...


class Watcher(Protocol):
    """Observes the progress of the queue."""

    def began(self, cell: str) -> None:
        """A cell's run begins."""
        ...

    def ended(self, cell: str, outcome: Outcome) -> None:
        """A cell's run ended."""
        ...

    def tick(self) -> None:
        """Time passed; called often."""
        ...


@dataclass(slots=True)
class _Running:
    cell: str
    attempt: int
    process: Process
    began_s: float


@dataclass(slots=True)
class Queue:
    """The queue of waiting and running cells.

    Attributes:
        journal: their attempts and outcomes on disk.
        launch: starts an attempt at a cell.
        read: returns the outcome of (cell, attempt, exit status, seconds).
        watcher: is notified of the progress.
        is_ending: set by `end`.
    """

    journal: Journal
    launch: Callable[[str, int], Process]
    read: Callable[[str, int, int, float], Outcome]
    watcher: Watcher
    is_ending: bool = False
    _running: list[_Running] = field(default_factory=list)

    def end(self) -> None:
        """Start no more cells and end the running ones. May be called from a signal handler."""
        self.is_ending = True

    def run(self, cells: Sequence[str], jobs: int) -> bool:
        """Run cells in this order, `jobs` at a time; return whether all were run.

        No process of a cell is left, however this returns.

        Raises:
            HarnessError: the journal cannot be written, or a process cannot be started.
        """
        waiting = list(reversed(cells))
        try:
            while (waiting or self._running) and not self.is_ending:
                while waiting and len(self._running) < jobs and not self.is_ending:
                    self._start(waiting.pop())
                self._collect()
                self.watcher.tick()
                time.sleep(POLL_S)
        finally:
            self._end_all()
        return not self.is_ending

    def _start(self, cell: str) -> None:
        attempt = self.journal.began(cell, _now())
        process = self.launch(cell, attempt)
        self._running.append(_Running(cell, attempt, process, time.monotonic()))
        self.watcher.began(cell)

    def _collect(self) -> None:
        """Record the outcomes of cells that have ended."""
        for one in list(self._running):
            code = one.process.poll()
            if code is None:
                continue
            self._running.remove(one)
            outcome = self.read(one.cell, one.attempt, code, time.monotonic() - one.began_s)
            self.journal.ended(one.cell, _now(), outcome)
            self.watcher.ended(one.cell, outcome)

    def _end_all(self) -> None:
        """End the running cells: by SIGTERM until the timeout, then by SIGKILL."""
        deadline_s = time.monotonic() + END_TIMEOUT_S
        next_s = 0.0
        while self._running and time.monotonic() < deadline_s:
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + TERM_EVERY_S
                for one in self._running:
                    _send(one.process, signal.SIGTERM)
            self._running = [one for one in self._running if one.process.poll() is None]
            self.watcher.tick()
            time.sleep(POLL_S)
        for one in self._running:
            _send(one.process, signal.SIGKILL)
            one.process.wait()
        self._running.clear()


def launcher(folder: MatrixFolder) -> Callable[[str, int], subprocess.Popen[bytes]]:
    """Return a function that starts `run` for a cell. It must be called in the main thread.

    Each process has a session of its own, so that Ctrl-C reaches only the queue; its output goes to
    a file; it dies with this process.
    """

    def launch(cell: str, attempt: int) -> subprocess.Popen[bytes]:
        run = ["run", str(folder.campaign(cell)), "--store", str(folder.runs)]
        argv = guard.command([sys.executable, "-P", "-m", "shaketable", *run], os.getpid())
        try:
            with folder.output(cell, attempt).open("wb") as output:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise HarnessError(f"cannot start the run of {cell}: {error.strerror}") from error

    return launch


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# The results: the exit code, results.json and the table.

FORMAT: Final = 1
NS_PER_S: Final = 1e9
VERDICTS: Final[Mapping[int, str]] = {
    ExitCode.VALID: "VALID",
    ExitCode.INVALID: "INVALID",
    ExitCode.UNKNOWN: "UNKNOWN",
}
ERROR: Final = "ERROR"
SKIPPED: Final = "SKIPPED"
OPEN: Final = "OPEN"
ORDER: Final = ("VALID", "INVALID", "UNKNOWN", ERROR, OPEN, SKIPPED)

Attempts = Mapping[str, Sequence[Outcome]]


def verdict_of(code: int | None) -> str:
    """Return the verdict of an exit code; None is a run that is still to do."""
    return OPEN if code is None else VERDICTS.get(code, ERROR)


def exit_code(plan: Plan, attempts: Attempts) -> int:
    """Return the worst exit code, 255 > 254 > 1 > 2 > 0; cells not run yet count as 255."""
    codes = [code_of(attempts.get(cell.id, ())) for cell in plan.cells if not cell.skipped]
    known = [code for code in codes if code is not None]
    if len(known) < len(codes):
        return worst_exit([*known, ExitCode.HARNESS])
    return worst_exit(known)


def verdict(plan: Plan, attempts: Attempts) -> str:
    """Return the worst verdict; OPEN while cells are to be run and none is INVALID or ERROR."""
    codes = [code_of(attempts.get(cell.id, ())) for cell in plan.cells if not cell.skipped]
    worst = worst_exit(code for code in codes if code is not None)
    is_open = None in codes and worst in (ExitCode.VALID, ExitCode.UNKNOWN)
    return OPEN if is_open else verdict_of(worst)


def to_json(plan: Plan, attempts: Attempts) -> dict[str, Any]:
    """Return the content of results.json."""
    code = exit_code(plan, attempts)
    return {
        "format": FORMAT,
        "name": plan.name,
        "verdict": verdict(plan, attempts),
        "exit_code": int(code),
        "effects_min": plan.effects_min,
        "counts": dict(_counts(plan, attempts)),
        "cells": [
            {
                **msgspec.to_builtins(cell),
                "verdict": _verdict(cell, attempts.get(cell.id, ())),
                "attempts": [
                    {"verdict": verdict_of(one.code), **msgspec.to_builtins(one)}
                    for one in attempts.get(cell.id, ())
                ],
            }
            for cell in plan.cells
        ],
    }


def view(plan: Plan, attempts: Attempts, resume: str) -> MatrixView:
    """Return the table: a column per world, a row per combination of the other axes."""
    worlds = tuple(dict.fromkeys(cell.world for cell in plan.cells))
    several = [
        name
        for name in ("target", "workload", "faults", "seed")
        if len({getattr(cell, name) for cell in plan.cells}) > 1
    ] or ["faults"]
    rows: dict[tuple[Any, ...], dict[str, Cell]] = {}
    for cell in plan.cells:
        place = tuple(getattr(cell, name) for name in several)
        rows.setdefault(place, {})[cell.world] = cell
    return MatrixView(
        name=plan.name,
        verdict=verdict(plan, attempts),
        counts=_counts(plan, attempts),
        row_head=", ".join("fault" if name == "faults" else name for name in several),
        columns=worlds,
        rows=tuple(
            MatrixRow(
                label=" ".join(_text(value) for value in place),
                family=next(iter(of_world.values())).family,
                cells=tuple(
                    _cell(of_world[world], attempts.get(of_world[world].id, ()))
                    if world in of_world
                    else None
                    for world in worlds
                ),
            )
            for place, of_world in rows.items()
        ),
        effects_min=plan.effects_min,
        resume=resume,
    )


def effects_text(outcome: Outcome) -> str:
    """Return how often the faults of a run took effect: "9/10"."""
    took_effect = sum(count.took_effect for count in outcome.faults.values())
    done = sum(count.done for count in outcome.faults.values())
    return f"{took_effect}/{done}" if outcome.faults else ""


def recovery_text(outcome: Outcome) -> str:
    """Return the median time until the group served again: "0.41 s"."""
    return "" if outcome.recovery_ns is None else f"{outcome.recovery_ns / NS_PER_S:.2f} s"


def _cell(cell: Cell, attempts: Sequence[Outcome]) -> MatrixCell:
    verdict = _verdict(cell, attempts)
    decisive = next((one for one in reversed(attempts) if verdict_of(one.code) == verdict), None)
    return MatrixCell(
        id=cell.id,
        verdict=verdict,
        took_effect=effects_text(decisive) if decisive else "",
        recovery=recovery_text(decisive) if decisive else "",
        why=cell.skipped or (decisive.why if decisive else ""),
        attempts=tuple(
            MatrixAttempt(
                verdict=verdict_of(one.code),
                why=one.why,
                report=f"{one.run}/report.html" if one.code in VERDICTS else "",
                output=f"output/{cell.id}.{one.attempt}.txt",
            )
            for one in attempts
        ),
        operations=decisive.operations if decisive else 0,
        lacking=tuple(decisive.lacking.items()) if decisive else (),
    )


def _verdict(cell: Cell, attempts: Sequence[Outcome]) -> str:
    return SKIPPED if cell.skipped else verdict_of(code_of(attempts))


def _counts(plan: Plan, attempts: Attempts) -> tuple[tuple[str, int], ...]:
    found = Counter(_verdict(cell, attempts.get(cell.id, ())) for cell in plan.cells)
    return tuple((name, found[name]) for name in ORDER if found[name])


def _text(value: Any) -> str:
    return "+".join(value) or "no faults" if isinstance(value, tuple) else str(value)


# The outcome of a cell's run.

ERROR_CHARS_MAX: Final = 400
OUTPUT_TAIL_BYTES: Final = 8 * 1024
CLOCK_DOUBT_S: Final = 1.0


def read_outcome(
    folder: MatrixFolder, cell: str, attempt: int, code: int, took_s: float, effects_min: int
) -> Outcome:
    """Return the outcome of an attempt whose process exited with `code`.

    It is unknown at best if a fault took effect less often than `effects_min`.
    """
    from shaketable.reports.availability import summarise  # noqa: PLC0415 - half a second, for others
    from shaketable.reports.run_page.view import build_view  # noqa: PLC0415 - as above

    run = _run(folder, cell, time.time() - took_s)
    if code not in VERDICTS or run is None:
        return Outcome(
            attempt=attempt,
            code=code if code not in VERDICTS else ExitCode.HARNESS,
            why=_last_line(folder.output(cell, attempt))
            or f"the run ended with exit status {code}",
            run="" if run is None else str(run.path.relative_to(folder.path)),
            took_s=round(took_s, 1),
        )
    view = build_view(run.path)
    recovery = summarise(row.recovery for row in view.faults)
    faults, lacking = _faults(run)
    why = view.why if code != ExitCode.VALID else ""
    too_seldom = [name for name, count in faults.items() if count.took_effect < effects_min]
    if code == ExitCode.VALID and too_seldom:
        counts = ", ".join(
            f"{name} {faults[name].took_effect} of {faults[name].done}" for name in too_seldom
        )
        code, why = (
            ExitCode.UNKNOWN,
            f"took effect too seldom, at least {effects_min} requested: {counts}",
        )
    return Outcome(
        attempt=attempt,
        code=code,
        why=why,
        run=str(run.path.relative_to(folder.path)),
        faults=faults,
        lacking=lacking,
        recovery_ns=recovery.median_ns,
        recovery_max_ns=recovery.max_ns,
        operations=sum(view.outcomes),
        took_s=round(took_s, 1),
    )


def _run(folder: MatrixFolder, cell: str, since_s: float) -> RunFolder | None:
    """Return a cell's run that was created since then; None if it did not get that far."""
    link = folder.runs / cell / LATEST
    if not link.exists() or link.lstat().st_mtime < since_s - CLOCK_DOUBT_S:
        return None  # from an earlier attempt
    return RunFolder(link.resolve())


def _faults(run: RunFolder) -> tuple[dict[str, FaultCount], dict[str, str]]:
    """Return how often each fault took effect, and why other requested ones were not injected."""
    try:
        results = read_results(run)
    except UnreadableError:
        return {}, {}
    done = {
        name: FaultCount(took_effect=of.took_effect, done=of.done)
        for name, of in results.faults.by_name.items()
        if name not in results.faults_unavailable
    }
    return done, results.faults_unavailable


def _last_line(output: Path) -> str:
    """Return the last line of a run's output, preferring the harness's own error line."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - OUTPUT_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    lines_printed = [line.strip() for line in lines if line.strip()]
    ours = [line for line in lines_printed if line.startswith("shaketable:")] or lines_printed
    return ours[-1].removeprefix("shaketable:").strip()[:ERROR_CHARS_MAX] if ours else ""
