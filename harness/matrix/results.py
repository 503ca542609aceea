"""The results of a matrix: each run's outcome, the exit code, results.json and the table.

The outcome of a cell's run is read from its folder, or from its output if it failed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from shaketable.harness.contracts.verdict import ExitCode, worst_exit
from shaketable.harness.history.results_file import UnreadableError, read_results
from shaketable.harness.history.run_folder import LATEST, RunFolder
from shaketable.harness.matrix.folder import FaultCount, MatrixFolder, Outcome, code_of
from shaketable.harness.matrix.plan import Cell, Plan
from shaketable.reports.matrix_page import MatrixAttempt, MatrixCell, MatrixRow, MatrixView

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
    bit = sum(count.bit for count in outcome.faults.values())
    done = sum(count.done for count in outcome.faults.values())
    return f"{bit}/{done}" if outcome.faults else ""


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
        results = read_results(run)
    except UnreadableError:
        return {}, {}
    done = {
        name: FaultCount(bit=of.bit, done=of.done)
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
