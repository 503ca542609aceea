"""Assert that a history is valid; a failed test shows the failing part as text or a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from shaketable.checkers.api import NotLinearizableError, Recorded, check, to_operations
from shaketable.checkers.models.model import Model
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.reports.check_page.checked_history import (
    CheckedHistory,
    failing_part,
    shown_findings,
)
from shaketable.reports.check_page.pictures import text_lines

WIDTH: Final = 96


def assert_linearizable(
    history: Recorded, model: str | Model | None = None, *, page: Path | None = None, **how: Any
) -> Verdict:
    """Return the verdict of `checkers.api.check` if it is VALID and rests on an answer.

    Args:
        history: as for `check`; an iterator is read into a list.
        model: as for `check`.
        page: path of a page that shows the failing part.
        how: other arguments of `check`.

    Raises:
        NotLinearizableError: it is not; its notes show the failing part as text.
        UsageError: as for `check`.
    """
    __tracebackhide__ = True  # pytest shows the test's own line, not this
    if isinstance(history, Iterator):
        history = list(history)
    verdict = check(history, model, **how)
    if verdict.outcome is Outcome.VALID and verdict.counts.get("operations"):
        return verdict
    error = NotLinearizableError(verdict)
    for finding in shown_findings(verdict)[:1]:
        part = failing_part(finding, {})
        if part is not None:
            error.add_note("\n".join(text_lines(part, WIDTH)))
    if page is not None:
        _write_page(page, history, model, verdict)
        error.add_note(f"page: {page}")
    raise error


def _write_page(page: Path, history: Recorded, model: str | Model | None, verdict: Verdict) -> None:
    """Write the page that `check --html` writes for such a history."""
    from shaketable.reports.check_page.page import render_page  # noqa: PLC0415 - only where it is asked for

    operations = to_operations(history)
    counted = {
        outcome: pc.sum(pc.equal(operations["outcome"], outcome)).as_py() or 0
        for outcome in ("ok", "fail", "info")
    }
    shown = CheckedHistory(
        path=page.stem,
        format="recorded by a test",
        model=model if model is None or isinstance(model, str) else model.name,
        engine="local",
        seconds=0.0,
        outcomes=counted,
        keys=len(pc.unique(operations["key"])),
        clients=len(pc.unique(operations["process"])),
        verdicts=(verdict,),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_page([shown]), encoding="utf-8")
