"""What `check` prints and writes: one line for the verdict, the checkers, the failing part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.printable import printable
from shaketable.harness.terminal import failing_text
from shaketable.harness.terminal.grid import INDENT, show_rows
from shaketable.harness.terminal.output import Output
from shaketable.harness.verdict import Outcome, Verdict, join
from shaketable.reports.check_page.model import CheckedHistory, failing_part, shown_findings

FORMAT: Final = 1
"""Of the JSON; raised when a reader of older files would misread newer ones."""
STYLES: Final = {"VALID": "bold green", "INVALID": "bold red", "UNKNOWN": "bold yellow"}
WIDTH_WITHOUT_TERMINAL: Final = 100
FINDINGS_SHOWN_MAX: Final = 3
"""Findings that the text tells, each of another kind or key; page and JSON have them all."""
TRACE_LINES: Final = 4
"""Last lines of a crashed checker's traceback that the text shows."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A history that was not checked, and why."""

    path: str
    why: str


def show(out: Console, one: CheckedHistory, *, is_alone: bool, has_page: bool) -> None:
    """Print the verdict on one history; the failing part only where it stands alone."""
    verdict = one.outcome.name
    line = Text(verdict, style=STYLES[verdict])
    line.append(printable(f"  {one.path}: {_why(one)}"), style="not bold default")
    out.print(line, soft_wrap=not out.is_terminal)
    if not is_alone:
        return
    out.print()
    show_rows(out, _rows(one), "dim")
    _show_findings(out, one)
    if verdict != "VALID" and not has_page:
        out.print()
        out.print(Text("  page: add --html FILE", style="dim"))


def show_all(out: Console, checked: Sequence[CheckedHistory], refused: int) -> None:
    """Print how many histories of a call had which verdict, and how many had none."""
    counts = {name: sum(one.outcome.name == name for one in checked) for name in STYLES}
    said = ", ".join(f"{count} {name.lower()}" for name, count in counts.items() if count)
    worst = join(verdict for one in checked for verdict in one.verdicts).name
    line = Text(worst, style=STYLES[worst])
    more = f"; {refused} could not be checked" if refused else ""
    line.append(f"  {len(checked)} histories: {said}{more}", style="not bold default")
    out.print()
    out.print(line)


def write_json(
    out: Output, checked: Sequence[CheckedHistory], refused: Sequence[Refused], path: Path | None
) -> None:
    """Write the verdicts as JSON, to stdout where `path` is None.

    Raises:
        HarnessError: they cannot be written.
    """
    text = json.dumps(to_json(checked, refused), indent=2, default=str) + "\n"
    if path is None:
        out.write(text)
    else:
        write_atomically(path, text)


def write_page(out: Console, checked: Sequence[CheckedHistory], path: Path) -> None:
    """Write the page and say where it is.

    Raises:
        HarnessError: it cannot be written.
    """
    from shaketable.reports.check_page.page import render_page  # noqa: PLC0415 - its templates take time to load

    write_atomically(path, render_page(checked))
    out.print()
    shown = Text("  page: ", style="dim").append(printable(str(path)), "not dim")
    out.print(shown, soft_wrap=True)


def to_json(checked: Sequence[CheckedHistory], refused: Sequence[Refused] = ()) -> dict[str, Any]:
    """Return what --json writes; of histories that were not checked nothing is known."""
    outcome = join(verdict for one in checked for verdict in one.verdicts)
    if refused:
        outcome = max(outcome, Outcome.UNKNOWN)
    return {
        "format": FORMAT,
        "valid": outcome.json_value,
        "histories": [_history_json(one) for one in checked],
        "refused": [asdict(one) for one in refused],
    }


def _history_json(one: CheckedHistory) -> dict[str, Any]:
    return {
        "path": one.path,
        "valid": one.outcome.json_value,
        "recognised": one.format,
        "model": one.model,
        "engine": one.engine,
        "seconds": round(one.seconds, 3),
        "operations": dict(one.outcomes),
        "keys": one.keys,
        "clients": one.clients,
        "incomplete": one.incomplete,
        "notes": list(one.notes),
        "checkers": {verdict.checker: _verdict_json(verdict) for verdict in one.verdicts},
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "valid": verdict.outcome.json_value,
        "summary": verdict.summary,
        "counts": verdict.counts,
        "findings_total": max(verdict.findings_total, len(verdict.findings)),
        "findings": [asdict(finding) for finding in verdict.findings],
        "observed": [asdict(finding) for finding in verdict.observed],
        "data": verdict.data,
    }


def _why(one: CheckedHistory) -> str:
    """Say in one line why the verdict is what it is."""
    worst = max(one.verdicts, key=lambda verdict: verdict.outcome)
    if worst.findings:
        more = max(worst.findings_total, len(worst.findings)) - 1
        return worst.findings[0].message + (f" ({more} more like it)" if more else "")
    return worst.summary


def _rows(one: CheckedHistory) -> list[tuple[str, str | Text]]:
    counts = one.outcomes
    ended = ", ".join(f"{counts[name]:,} {name}" for name in ("ok", "fail", "info"))
    clients = "1 client" if one.clients == 1 else f"{one.clients:,} clients"
    keys = "" if one.keys <= 1 else f", {one.keys:,} keys"
    rows: list[tuple[str, str | Text]] = [
        ("recognised", one.format + (f", model {one.model}" if one.model else "")),
        ("operations", f"{one.operations:,}: {ended}; {clients}{keys}"),
    ]
    for verdict in one.verdicts:
        text = Text(verdict.outcome.name.lower(), style=STYLES[verdict.outcome.name])
        text.append(printable(f"  {verdict.summary}"), "not bold default")
        rows.append((verdict.checker, text))
        if trace := verdict.data.get("traceback"):
            last = str(trace).strip().splitlines()[-TRACE_LINES:]
            rows.append(("", Text("\n".join(map(printable, last)), style="dim")))
    if one.incomplete:
        rows.append(("incomplete", printable(one.incomplete)))
    rows += [("note", printable(note)) for note in one.notes]
    rows.append(("took", f"{one.seconds:.2f} s, engine {one.engine}"))
    return rows


def _show_findings(out: Console, one: CheckedHistory) -> None:
    width = (out.width if out.is_terminal else WIDTH_WITHOUT_TERMINAL) - 2 * INDENT
    shown = 0
    told: set[tuple[str, str | None]] = set()
    for verdict in one.verdicts:
        for finding in shown_findings(verdict):
            if (finding.kind, finding.key) in told or shown >= FINDINGS_SHOWN_MAX:
                continue
            part = failing_part(finding, one.rows)
            if part is None:
                continue
            told.add((finding.kind, finding.key))
            shown += 1
            out.print()
            title = Text(f"{'':{INDENT}}{finding.kind}", style="bold")
            title.append(printable(f"  {finding.message}"), "not bold")
            out.print(title, soft_wrap=not out.is_terminal)
            out.print()
            for line in failing_text.lines(part, width):
                text = printable(f"{'':{2 * INDENT}}{line}").rstrip()
                out.print(Text(text), soft_wrap=True)
