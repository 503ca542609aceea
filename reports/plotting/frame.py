"""What all plots share: style, time axis, fault bands and phase markers in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d
from bokeh.models.annotations import Legend
from bokeh.models.glyphs import Line, Step, VSpan, VStrip
from bokeh.plotting import figure

from shaketable.reports.run_view import FaultRow, RunView

INK: Final = "#7b7b7b"
"""Axes and text: 4:1 or better on white and on near-black."""
TIME_NAME: Final = "time"
"""The name of each plot's x axis, by which the page's script finds and moves them together."""

OUTCOME_COLOURS: Final = {"ok": "#2f86d6", "fail": "#8a63c9", "info": "#d98a00"}
OUTCOME_DASHES: Final = {"ok": "solid", "fail": "dashed", "info": "dotted"}
FAULT_COLOURS: Final = ("#d1495b", "#a07800", "#138a8a", "#8a63c9", "#6b8e23", "#b0651d")
LINE_COLOURS: Final = (
    "#2f86d6", "#d1495b", "#138a8a", "#a07800", "#8a63c9", "#6b8e23", "#b0651d", INK,
)  # fmt: skip
LINE_DASHES: Final = ("solid", "dashed", "dotted", "dotdash", "dashdot")

FAULTS_MAX: Final = 2_000
"""Faults that the plots show; the page's table has more."""

Figure = Any


@dataclass(frozen=True, slots=True)
class PlotContext:
    """Shared by all plots of a run: its view, and the fault bands (columns by name)."""

    view: RunView
    bands: Mapping[str, Sequence[float | str]]


@dataclass(frozen=True, slots=True)
class DrawnPlot:
    """One plot: its anchor, its title, a caption, and the figure."""

    name: str
    title: str
    caption: str
    plot: Figure


def fault_colours(names: Sequence[str]) -> dict[str, str]:
    """Assign each kind of fault a colour, the same in plots, pictures and tables."""
    distinct = sorted(set(names))
    return {name: FAULT_COLOURS[n % len(FAULT_COLOURS)] for n, name in enumerate(distinct)}


def end_s(view: RunView) -> float:
    """Return the end of the x axis in seconds; never 0."""
    return max(view.duration_ns / 1e9, 0.1)


def plot_context(view: RunView) -> PlotContext:
    """Return the shared context of a run's plots; of many faults, the longest become bands."""
    colours = fault_colours([row.window.name for row in view.faults])
    shown = shown_faults(view)
    bands: dict[str, Sequence[float | str]] = {
        "start": [row.window.from_ns / 1e9 for row in shown],
        "stop": [row.window.stop_ns / 1e9 for row in shown],
        "colour": [colours[row.window.name] for row in shown],
    }
    return PlotContext(view, bands)


def shown_faults(view: RunView) -> Sequence[FaultRow]:
    """Return the faults that plots show: all, or the `FAULTS_MAX` longest, in their order."""
    if len(view.faults) <= FAULTS_MAX:
        return view.faults
    lengths = sorted((row.window.stop_ns - row.window.from_ns for row in view.faults), reverse=True)
    least = lengths[FAULTS_MAX]
    return [row for row in view.faults if row.window.stop_ns - row.window.from_ns > least]


def new_figure(context: PlotContext, height: int, **options: Any) -> Figure:
    """Make an empty figure in the page's style, with fault bands and phase markers.

    What is drawn is added by `add_glyph`: the figure's own methods (`line`, ...) make five glyphs
    of each, for selections that these plots lack, which takes most of the time of a report.
    """
    view = context.view
    plot = figure(
        height=height,
        x_range=Range1d(start=0, end=end_s(view), bounds="auto", name=TIME_NAME),
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_drag="xbox_zoom",
        active_scroll=None,
        toolbar_location="right",
        min_border_left=72,
        min_border_right=8,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=INK,
        outline_line_alpha=0.4,
        **options,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = INK
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = INK
        axis.axis_label_text_font_style = "normal"
    plot.grid.grid_line_color = INK
    plot.grid.grid_line_alpha = 0.18
    if view.faults:
        bands = VStrip(x0="start", x1="stop", fill_color="colour", fill_alpha=0.13, line_color=None)
        plot.add_glyph(ColumnDataSource(dict(context.bands)), bands)
    starts = [phase.start_ns / 1e9 for phase in view.phases if phase.start_ns > 0]
    if starts:
        span = VSpan(x="x", line_color=INK, line_dash="dashed", line_alpha=0.6)
        plot.add_glyph(ColumnDataSource({"x": starts}), span)
    return plot


def whole_numbers(plot: Figure) -> None:
    """Format the ticks of the y axis with thousands separators."""
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")


def lines(
    plot: Figure,
    x: Any,
    series: Sequence[tuple[str, Any]],
    *,
    steps: bool = False,
    unit: str = "",
    styles: Sequence[tuple[str, str]] | None = None,
) -> list[tuple[str, list[Any]]]:
    """Draw lines over one x; return the legend's items. `styles` are (colour, dash), one each.

    Hovering shows the values of all lines at that moment.
    """
    columns = {f"y{n}": values for n, (_, values) in enumerate(series)}
    source = ColumnDataSource({"x": x, **columns})
    items = []
    for n, (name, _) in enumerate(series):
        colour, dash = styles[n] if styles else line_style(n)
        options: dict[str, Any] = {
            "x": "x", "y": f"y{n}", "line_width": 1.8, "line_color": colour, "line_dash": dash,
        }  # fmt: skip
        line = Step(mode="after", **options) if steps else Line(**options)
        items.append((name, [plot.add_glyph(source, line)]))
    tips = [
        ("at", "@x{0.0} s"),
        *((name, f"@y{n}{{0,0.[0]}}{unit}") for n, (name, _) in enumerate(series)),
    ]
    plot.add_tools(HoverTool(renderers=items[0][1], tooltips=tips, mode="vline"))
    return items


def line_style(number: int) -> tuple[str, str]:
    """Return colour and dash of the n-th line: two lines share at most one of them."""
    return LINE_COLOURS[number % len(LINE_COLOURS)], LINE_DASHES[number % len(LINE_DASHES)]


def legend(plot: Figure, items: list[tuple[str, list[Any]]]) -> None:
    """Put a legend above the plot; a click on a name hides its line."""
    shown = Legend(
        items=items, orientation="horizontal", location="left", click_policy="hide",
        background_fill_alpha=0, border_line_color=None, label_text_color=INK,
        label_text_font_size="11px", spacing=8, margin=2, ncols="auto",
    )  # fmt: skip
    plot.add_layout(shown, "above")
