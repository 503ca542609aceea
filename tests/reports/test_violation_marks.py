"""Violations in the first plot: when each was seen, and the page that it leads to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bokeh.models import TapTool

from shaketable.reports.plotting.frame import plot_context
from shaketable.reports.plotting.plots import VIOLATIONS_ROW, draw_lanes, moments
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_view import RunView


def with_pages(view: RunView) -> RunView:
    """Return the view as it is once each violation shown has its page."""
    checkers = tuple(
        replace(
            checker,
            groups=tuple(
                replace(
                    group,
                    shown=tuple(
                        replace(each, page=f"violations/{number:03}.html")
                        for number, each in enumerate(group.shown)
                    ),
                )
                for group in checker.groups
            ),
        )
        for checker in view.checkers
    )
    return replace(view, checkers=checkers)


def test_each_is_marked_when_it_was_seen_and_leads_to_its_page(invalid_run: Any) -> None:
    view = with_pages(build_view(invalid_run.folder))
    (first, at_ns), *_ = moments(view)
    assert at_ns == first.acknowledged_ns
    plot = draw_lanes(plot_context(view)).plot
    assert VIOLATIONS_ROW in plot.y_range.factors
    (marks,) = [each for each in plot.renderers if "page" in each.data_source.column_names]
    data = marks.data_source.data
    assert len(data["x"]) == len(moments(view)) > 1
    assert data["x"][0] == at_ns / 1e9
    assert data["page"][0] == first.page == "violations/000.html"
    (tap,) = plot.select(TapTool)  # of two one would not be active
    assert marks in tap.renderers


def test_without_violations_there_is_no_row(clean_run: Any) -> None:
    view = build_view(clean_run.folder)
    assert moments(view) == ()
    drawn = draw_lanes(plot_context(view))
    assert VIOLATIONS_ROW not in drawn.plot.y_range.factors
    assert drawn.caption == ""
