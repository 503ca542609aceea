"""Mark violations over time: each is a diamond that leads to its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bokeh.models import ColumnDataSource, HoverTool, OpenURL, TapTool

from shaketable.reports.finding_texts import title
from shaketable.reports.plotting.frame import INK, Figure
from shaketable.reports.run_view import RunView, Violation

ROW: Final = "violations"
COLOUR: Final = "#b3202c"
MESSAGE_CHARACTERS_MAX: Final = 160
MARKS_MAX: Final = 500
"""Violations that are marked: the first of each checker, as they are listed."""


def moments(view: RunView) -> tuple[tuple[Violation, int], ...]:
    """Return the violations with a page and a place in time: in ns since the start of the run."""
    found = ((violation, at_ns) for violation in _shown(view) for at_ns in _moment(violation))
    return tuple(pair for pair, _ in zip(found, range(MARKS_MAX), strict=False))


def mark_violations(plot: Figure, view: RunView) -> None:
    """Draw them in their row; a click opens the page."""
    marked = moments(view)
    if not marked:
        return
    source = ColumnDataSource(
        {
            "x": [at_ns / 1e9 for _, at_ns in marked],
            "row": [ROW] * len(marked),
            "title": [title(violation.kind) for violation, _ in marked],
            "message": [_cut(violation.message) for violation, _ in marked],
            "page": [violation.page for violation, _ in marked],
        }
    )
    style: dict[str, Any] = {"fill_color": COLOUR, "line_color": INK, "line_width": 0.7}
    drawn = plot.scatter(
        x="x", y="row", source=source, marker="diamond", size=14, nonselection_fill_alpha=1.0,
        nonselection_line_alpha=1.0, **style,
    )  # fmt: skip
    told = [("", "@title"), ("at", "@x{0.000} s"), ("", "@message"), ("page", "@page")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=told))
    opening = OpenURL(url="@page", same_tab=True)
    plot.add_tools(TapTool(renderers=[drawn], callback=opening))


def _shown(view: RunView) -> Iterator[Violation]:
    for checker in view.checkers:
        for group in checker.groups:
            yield from (violation for violation in group.shown if violation.page)


def _moment(violation: Violation) -> Iterator[int]:
    """Yield when a violation was seen, if that is known: the first answer that it names."""
    if violation.acknowledged_ns is not None:
        yield violation.acknowledged_ns
        return
    answers = [
        row.return_ns for row in violation.around if row.marked and row.return_ns is not None
    ]
    if answers:
        yield min(answers)


def _cut(message: str) -> str:
    return (
        message
        if len(message) <= MESSAGE_CHARACTERS_MAX
        else message[:MESSAGE_CHARACTERS_MAX] + "…"
    )
