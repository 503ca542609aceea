"""View model -> ONE self-contained HTML file: nothing in it is fetched from anywhere."""  # noqa: A005 - `reports.html` is the name that the design gives; it is never run as a script

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from reports import plots, spacetime, templating
from reports.failover import GOAL_MEDIAN_NS, GOAL_P99_NS
from reports.model import RunView
from reports.recovery import summarise
from reports.view import number_text

TEMPLATES = Path(__file__).parent / "templates"

NOTHING = "-"
"""What stands in a table where there is no value."""


def render(view: RunView) -> str:
    """Render the report page."""
    drawn = plots.draw(view)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            plots=drawn,
            plot_markup=None
            if drawn is None
            else Markup("\n").join(Markup(part) for part in (drawn.library, drawn.script)),  # noqa: S704 - Bokeh's own output, which escapes the data that it carries
            plot_div=None if drawn is None else Markup(drawn.div),  # noqa: S704 - likewise
            fault_colours=plots.fault_colours([row.window.name for row in view.faults]),
            recovery=summarise(row.recovery for row in view.faults),
            failover=view.failover,
            goals=(GOAL_MEDIAN_NS, GOAL_P99_NS),
            timeout=None if view.op_timeout_s is None else f"{view.op_timeout_s:g} s",
            bitten=sum(row.window.bit for row in view.faults),
        )
    )


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters.update(number=number_text, moment=moment, span=span, or_nothing=or_nothing)
    environment.globals.update(lay_out=spacetime.lay_out, describe=spacetime.describe)
    return environment


def moment(time_ns: int | None) -> str:
    """Print a time since the run's start, in seconds, to the millisecond."""
    return NOTHING if time_ns is None else f"{time_ns / 1e9:.3f} s"


def span(length_ns: int | None) -> str:
    """Print a length of time in the unit that suits it: 412 ms, 3.25 s, 2 min 5 s."""
    if length_ns is None:
        return NOTHING
    if length_ns < 10_000_000:
        return f"{length_ns / 1e6:.2f} ms"
    if length_ns < 1_000_000_000:
        return f"{length_ns / 1e6:.0f} ms"
    if length_ns < 120_000_000_000:
        return f"{length_ns / 1e9:.2f} s"
    minutes, seconds = divmod(round(length_ns / 1e9), 60)
    return f"{minutes} min {seconds} s"


def or_nothing(value: object) -> object:
    """Print a dash for what is not there."""
    return NOTHING if value is None or value == "" else value
