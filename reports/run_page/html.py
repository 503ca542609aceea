"""Render the view model as one self-contained HTML file that loads nothing from elsewhere."""  # noqa: A005 - `reports.run_page.html` is the name that the design gives; it is never run as a script

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from shaketable.reports import spacetime, templating
from shaketable.reports.availability import OUTAGE_MIN_NS, summarise
from shaketable.reports.plotting import plots
from shaketable.reports.plotting.series import slices
from shaketable.reports.run_page import chosen_operations
from shaketable.reports.run_page.chosen_operations import UNDIVIDED, Chosen, LimitDivisors, choose
from shaketable.reports.run_page.view import number_text
from shaketable.reports.run_view import FaultRow, RunView

FAULTS_MAX = 1_000
"""Faults in the page's table: of more, the most costly ones."""

PACKED_CHARACTERS_MAX = 1_500_000
"""Limit for the operations' table: the rest of a page takes 2.5 MB, and a page at most 5."""
DIVISORS = (
    UNDIVIDED,
    LimitDivisors(1, 4),
    LimitDivisors(1, 16),
    *(LimitDivisors(unsuccessful, 16) for unsuccessful in (2, 4, 8, 16)),
)
"""Divisors of the table's limits, tried until it is small enough."""

TEMPLATES = Path(__file__).parents[1] / "templates"

NOTHING = "-"
"""Shown in a table in place of a missing value."""


def render(view: RunView) -> str:
    """Render the report page."""
    drawn = plots.draw(view)
    chosen, packed = packed_table(view)
    leads = [
        (lane.node, lane.start_ns, lane.stop_ns) for lane in view.lanes if lane.role == "leader"
    ]
    windows = [row.window for row in view.faults]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            plots=drawn,
            plot_library=None if drawn is None else Markup(drawn.library),  # noqa: S704 - Bokeh's own
            plot_items=() if drawn is None else [Markup(one.item) for one in drawn.each],  # noqa: S704 - JSON that is escaped for it
            fault_colours=plots.fault_colours([window.name for window in windows]),
            chosen=chosen,
            packed=Markup(packed),  # noqa: S704 - JSON that is escaped for it
            slices=slices(view.operations, view.duration_ns, windows, leads, view.availability),
            outage_min_ns=OUTAGE_MIN_NS,
            recovery=summarise(row.recovery for row in view.faults),
            failover=view.failover,
            timeout=None if view.op_timeout_s is None else f"{view.op_timeout_s:g} s",
            listed_faults=listed_faults(view.faults),
            took_effect=sum(row.window.took_effect for row in view.faults),
        )
    )


def packed_table(view: RunView) -> tuple[Chosen, str]:
    """Choose and pack the operations of the page's table, few enough that the page stays small.

    Operations that findings name are always included; if errors have long distinct texts, fewer
    failed ones are.
    """
    for divisors in DIVISORS:
        chosen = choose(view.operations, view.named, divisors)
        packed = chosen_operations.pack(chosen)
        if len(packed) <= PACKED_CHARACTERS_MAX or chosen.is_whole:
            break
    return chosen, packed


def listed_faults(faults: Sequence[FaultRow]) -> Sequence[FaultRow]:
    """Return the faults of the page's table: all, or the most costly ones, in their order."""
    if len(faults) <= FAULTS_MAX:
        return faults

    def cost(place: int) -> tuple[float, ...]:
        row = faults[place]
        never = (
            row.window.took_effect and row.recovery.asked > 0 and row.recovery.recovery_ns is None
        )
        return (-row.losses, -never, -(row.lost_ns or 0), -(row.recovery.recovery_ns or 0), place)

    return [faults[place] for place in sorted(sorted(range(len(faults)), key=cost)[:FAULTS_MAX])]


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters.update(
        number=number_text, moment=moment, span=span, or_nothing=or_nothing, in_ms=in_ms
    )
    environment.globals.update(lay_out=spacetime.lay_out, describe=spacetime.describe)
    return environment


def moment(time_ns: int | None) -> str:
    """Print a time since the run's start, in seconds, to the millisecond."""
    return NOTHING if time_ns is None else f"{time_ns / 1e9:.3f} s"


def span(length_ns: int | None) -> str:
    """Print a length of time in a fitting unit: 412 ms, 3.25 s, 2 min 5 s."""
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


def in_ms(length_ms: float | None) -> str:
    """Print a length of time given in milliseconds."""
    return span(None if length_ms is None else round(length_ms * 1e6))


def or_nothing(value: object) -> object:
    """Print a dash for a missing value."""
    return NOTHING if value is None or value == "" else value
