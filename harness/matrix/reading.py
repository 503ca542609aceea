"""Read the outcome of a cell's run: from its folder, or from its output if it failed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import LATEST, RunFolder
from shaketable.harness.matrix.folder import FaultCount, MatrixFolder, Outcome
from shaketable.reports.availability import summarise
from shaketable.reports.run_page.view import build_view

VERDICTS: Final = (ExitCode.VALID, ExitCode.INVALID, ExitCode.UNKNOWN)
ERROR_CHARS_MAX: Final = 400
OUTPUT_TAIL_BYTES: Final = 8 * 1024
CLOCK_DOUBT_S: Final = 1.0


def read_outcome(
    folder: MatrixFolder, cell: str, attempt: int, code: int, took_s: float, effects_min: int
) -> Outcome:
    """Return the outcome of an attempt whose process exited with `code`.

    It is unknown at best if a fault took effect less often than `effects_min`.
    """
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
    too_seldom = [name for name, count in faults.items() if count.bit < effects_min]
    if code == ExitCode.VALID and too_seldom:
        counts = ", ".join(
            f"{name} {faults[name].bit} of {faults[name].done}" for name in too_seldom
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
        results: dict[str, Any] = json.loads(run.results_json.read_bytes())
    except (OSError, ValueError):
        return {}, {}
    lacking = {
        str(name): str(why) for name, why in (results.get("faults_unavailable") or {}).items()
    }
    done = {
        name: FaultCount(bit=int(of["bit"]), done=int(of["done"]))
        for name, of in results["faults"]["by_name"].items()
        if name not in lacking
    }
    return done, lacking


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
