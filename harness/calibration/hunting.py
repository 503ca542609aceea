"""Hunts one planted bug, in a process of its own: campaigns or seeds until one is INVALID.

Each campaign is `shaketable run` in a child process, as a person or CI would run it: what is
measured is the product, report included.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from harness import discovery
from harness.calibration.plan import CLEAN, Effort, Hunt
from harness.history.run_folder import LATEST, write_atomically
from harness.runtime import guard
from harness.simulation import VIRTUAL_S_DEFAULT, Ask, Simulated
from harness.verdict import ExitCode
from reports.calibration_page.model import Found

FAMILY_TIME_LIMIT_S: Final = 30.0
"""How long clients work in a family's campaign."""
SINCE_NS: Final = 5_000_000_000
"""A fault counts as the one that a finding is under until so long after its end."""


class HuntOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a hunt.

    Attributes:
        hunt: which.
        found: the violation, None if there was none.
        runs: campaigns, or seeds, until then.
        took_s: real seconds until then.
        virtual_s: virtual seconds until then; 0 of campaigns on processes.
        unknown: campaigns that ended as UNKNOWN, each with its reason.
        failed: campaigns or seeds that the harness could not run, each with what it said.
    """

    hunt: Hunt
    found: Found | None
    runs: int
    took_s: float
    virtual_s: float = 0.0
    unknown: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def outcome_file(folder: Path, hunt: Hunt) -> Path:
    """Return where the outcome of a hunt is kept."""
    return folder / "hunts" / f"{hunt.id}.json"


def read_outcome(folder: Path, hunt: Hunt) -> HuntOutcome | None:
    """Return what came of a hunt, None if it has not ended (or of another plan)."""
    try:
        read = msgspec.json.decode(outcome_file(folder, hunt).read_bytes(), type=HuntOutcome)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return read if read.hunt == hunt else None


def hunt_down(folder: Path, effort: Effort, hunt: Hunt) -> HuntOutcome:
    """Hunt, and keep the outcome in a file of its own as soon as it is known."""
    began_s = time.monotonic()
    if hunt.method == "sim":
        outcome = _by_seeds(effort, hunt, began_s)
        # Seeds do not do all that clients can, and some targets have none.
        if outcome.found is None and (hunt.bug != CLEAN or not outcome.runs):
            seeds = outcome
            outcome = _by_campaigns(folder, effort, hunt, began_s)
            outcome = msgspec.structs.replace(
                outcome,
                runs=seeds.runs + outcome.runs,
                virtual_s=seeds.virtual_s,
                failed=(*seeds.failed, *outcome.failed),
            )
    else:
        outcome = _by_campaigns(folder, effort, hunt, began_s)
    file = outcome_file(folder, hunt)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(outcome).decode() + "\n")
    return outcome


# ---- seeds of the simulated worlds ----------------------------------------------------------


def _by_seeds(effort: Effort, hunt: Hunt, began_s: float) -> HuntOutcome:
    """Run seeds of each simulated world of the target; nothing where the bug cannot be there."""
    target = discovery.get("targets", hunt.target)
    runs, virtual_s = 0, 0.0
    if not (hunt.is_simulated and isinstance(target, Simulated)):
        return HuntOutcome(hunt=hunt, found=None, runs=0, took_s=0.0)
    found = None
    failed: list[str] = []
    for ask in _asks(effort, hunt, tuple(target.simulator.worlds)):
        runs += 1
        try:
            run = target.simulator.run(ask)
        except Exception as error:  # hours of other hunts are not lost for one
            failed.append(f"seed {ask.seed} of world {ask.world}: {error!r}")
            continue
        virtual_s += run.virtual_ms / 1e3
        if run.violation is not None:
            found = Found(
                by=(run.violation.invariant,),
                world=ask.world,
                kinds=(run.violation.invariant,),
                says=run.violation.message,
                faults=(),
                seed=str(ask.seed),
            )
            break
    return HuntOutcome(
        hunt=hunt,
        found=found,
        runs=runs,
        took_s=round(time.monotonic() - began_s, 1),
        virtual_s=round(virtual_s, 1),
        failed=tuple(failed),
    )


def _asks(effort: Effort, hunt: Hunt, worlds: tuple[str, ...]) -> Iterator[Ask]:
    for world in worlds:
        for number in range(int(effort.virtual_s_max / VIRTUAL_S_DEFAULT)):
            yield Ask(seed=hunt.seed + number, world=world, mutant=hunt.bug or None)


# ---- campaigns ------------------------------------------------------------------------------


def _by_campaigns(folder: Path, effort: Effort, hunt: Hunt, began_s: float) -> HuntOutcome:
    found = None
    unknown: list[str] = []
    failed: list[str] = []
    runs = 0
    for number in range(effort.runs_max if hunt.bug != CLEAN else 1):
        runs += 1
        seed = f"{hunt.seed + number:x}"
        store = folder / "runs" / hunt.id / f"{number}"
        code, said = _run(hunt, seed, store)
        if code == ExitCode.INVALID:
            found = _read_found(folder, store / hunt.id / LATEST, hunt, seed)
            break
        if code == ExitCode.UNKNOWN:
            unknown.append(_summary(store / hunt.id / LATEST) or said)
        elif code != ExitCode.VALID:
            failed.append(said)
        shutil.rmtree(store, ignore_errors=True)
    return HuntOutcome(
        hunt=hunt,
        found=found,
        runs=runs,
        took_s=round(time.monotonic() - began_s, 1),
        unknown=tuple(unknown),
        failed=tuple(failed),
    )


def _run(hunt: Hunt, seed: str, store: Path) -> tuple[int, str]:
    """Run one campaign; return its exit code, and the last line that it printed."""
    argv = [sys.executable, "-P", "-m", "harness.cli", "run", *_arguments(hunt, seed)]
    store.mkdir(parents=True, exist_ok=True)
    output = store / "output.txt"
    with output.open("wb") as file:
        done = subprocess.run(
            guard.command([*argv, "--store", str(store)], os.getpid()),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = [line for line in output.read_text("utf-8", "replace").splitlines() if line.strip()]
    return done.returncode, lines[-1].strip() if lines else f"exit status {done.returncode}"


def _arguments(hunt: Hunt, seed: str) -> list[str]:
    # A bug is there or not, whoever checks; a JVM for each run would take longer than most.
    arguments = ["--target", hunt.target, "--name", hunt.id, "--seed", seed, "--engine", "local"]
    if hunt.bug != CLEAN:
        arguments += ["--mutant", hunt.bug]
    if hunt.method == "sim":
        arguments += ["--world", "sim"]
    if hunt.method != "default":
        if hunt.workload:
            arguments += ["--workload", hunt.workload]
        if hunt.faults:
            arguments += ["--faults", ",".join(hunt.faults)]
        arguments += ["--time-limit", f"{FAMILY_TIME_LIMIT_S:g}"]
    return arguments


def _summary(run: Path) -> str:
    """Return why a run is UNKNOWN, in the words of its first checker that says so."""
    for verdict in _checkers(run).values():
        if verdict.get("valid") == "unknown":
            return str(verdict.get("summary", ""))
    return ""


def _checkers(run: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads((run / "results.json").read_bytes())["checkers"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _read_found(folder: Path, run: Path, hunt: Hunt, seed: str) -> Found:
    """Read of an INVALID run what a person reads of it first."""
    from reports.run_page.view import build_view  # noqa: PLC0415 - half a second, for campaigns

    view = build_view(run)
    decisive = [checker for checker in view.checkers if checker.verdict == "INVALID"]
    shown = [one for checker in decisive for group in checker.groups for one in group.shown]
    moment_ns = next((ns for one in shown if (ns := _moment_ns(one)) is not None), None)
    faults = {
        row.window.name
        for row in view.faults
        if moment_ns is not None
        and row.window.from_ns <= moment_ns <= row.window.stop_ns + SINCE_NS
    }
    page = run.resolve() / (view.first_page or "report.html")
    return Found(
        by=tuple(checker.name for checker in decisive),
        world="sim" if hunt.method == "sim" else "process",
        kinds=tuple(dict.fromkeys(one.kind for one in shown)),
        says=view.why,
        faults=tuple(sorted(faults)),
        seed=seed,
        report=os.path.relpath(page, folder),
    )


def _moment_ns(violation: Any) -> int | None:
    """Return when what is accused took place, as far as the finding says."""
    if violation.acknowledged_ns is not None:
        return int(violation.acknowledged_ns)
    marked = [row for row in violation.around if row.marked]
    return marked[0].call_ns if marked else None
