"""Render a gate's result as annotations of GitHub's runner, with its escapes.

Source: the runner's workflow commands; the escapes are those of its toolkit.
"""

from __future__ import annotations

from typing import Final

from shaketable.harness.untrusted_text import printable
from shaketable.reports.gating.rulings import GateResult

SHOWN_MAX: Final = 10
"""GitHub shows at most this many errors, and this many warnings, of a step."""
MESSAGE_CHARS_MAX: Final = 1_000


def render(result: GateResult) -> list[str]:
    """Return the lines: an error for each breach, a warning for each one that was allowed."""
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
