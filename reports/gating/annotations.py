"""What a gate came to -> lines that GitHub's runner takes for annotations, escaped as it wants it.

Source: the runner's workflow commands; escapes are those of its toolkit.
"""

from __future__ import annotations

from typing import Final

from shaketable.harness.printable import printable
from shaketable.reports.gating.rulings import GateResult

SHOWN_MAX: Final = 10
"""GitHub shows so many errors of a step, and so many warnings."""
MESSAGE_CHARS_MAX: Final = 1_000


def render(result: GateResult) -> list[str]:
    """Return the lines: an error for each breach, a warning for each that was let pass."""
    errors = [
        _line("error", f"{run or 'all runs'}: {ruling.rule}", ruling.message)
        for run, ruling in result.breaches
    ]
    warnings = [
        _line(
            "warning",
            f"{run.facts.name}: {ruling.rule} was let pass",
            f"{ruling.message}; allowed until {ruling.allowed.until}: {ruling.allowed.reason}",
        )
        for run in result.runs
        for ruling in run.rulings
        if ruling.allowed is not None
    ]
    return [*_bounded("error", errors), *_bounded("warning", warnings)]


def _bounded(level: str, lines: list[str]) -> list[str]:
    if len(lines) <= SHOWN_MAX:
        return lines
    more = len(lines) - SHOWN_MAX + 1
    return [*lines[: SHOWN_MAX - 1], _line(level, "gate", f"and {more} more; see the summary")]


def _line(level: str, title: str, message: str) -> str:
    title = _data(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message[:MESSAGE_CHARS_MAX])}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
