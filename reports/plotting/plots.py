"""Draw the plots over time: who led, throughput, latency, errors, logs, clocks; one x axis.

The parts are in the other modules of `reports.plotting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.core.json_encoder import serialize_json
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool
from bokeh.resources import Resources

from shaketable.reports.plotting import client_plots, lanes
from shaketable.reports.plotting.frame import (
    DrawnPlot,
    Figure,
    PlotContext,
    end_s,
    fault_colours,
    legend,
    line_style,
    new_figure,
    plot_context,
    whole_numbers,
)
from shaketable.reports.plotting.node_samples import Floats, NodeSeries
from shaketable.reports.run_page.chosen_operations import inside_script
from shaketable.reports.run_view import RunView

__all__ = ["Plot", "Plots", "draw", "fault_colours"]


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: its id, title, caption, height, and Bokeh's JSON."""

    name: str
    title: str
    caption: str
    height_px: int
    item: str


@dataclass(frozen=True, slots=True)
class Plots:
    """What the page embeds: the library, and the plots that its script draws once visible."""

    library: str
    end_s: float
    each: tuple[Plot, ...]


def draw(view: RunView) -> Plots | None:
    """Draw the plots of a run; None if there is nothing to draw."""
    if view.operations.num_rows == 0 and not view.lanes and not view.faults:
        return None
    drawn = _figures(plot_context(view))
    drawn[-1].plot.xaxis.axis_label = "seconds since the run's start"
    library = Resources(mode="inline", components=["bokeh"], log_level="warn").render_js()
    return Plots(library, end_s(view), tuple(_plot(one) for one in drawn))


def _plot(one: DrawnPlot) -> Plot:
    item = inside_script(serialize_json(json_item(one.plot)))
    return Plot(one.name, one.title, one.caption, one.plot.height, item)


def _figures(context: PlotContext) -> list[DrawnPlot]:
    """Return the plots with anything to show, from the top."""
    view = context.view
    found: list[DrawnPlot | None] = [lanes.draw_lanes(context)]
    if view.operations.num_rows:
        found += [client_plots.draw_throughput(context), client_plots.draw_latency(context)]
        found += [client_plots.draw_errors(context), client_plots.draw_consumer_lag(context)]
    if view.sampled.nodes:
        if any(np.nanmax(one.committed, initial=-1) >= 0 for one in view.sampled.nodes):
            found += [draw_committed(context), draw_lag(context)]
        found.append(draw_clocks(context))
    return [one for one in found if one is not None]


# What nodes reported over time: their log positions and their clock errors.


def draw_committed(context: PlotContext) -> DrawnPlot:
    """Draw each node's committed index."""
    view = context.view
    plot = new_figure(context, 170)
    whole_numbers(plot)
    legend(plot, _node_lines(plot, view.sampled.nodes, lambda one: one.committed, ""))
    known = [(one.node, _last(one.committed)) for one in view.sampled.nodes]
    caption = "Last seen: " + ", ".join(f"{node} {value:,.0f}" for node, value in known) + "."
    return DrawnPlot("plot-committed", "Committed index of each node", caption, plot)


def draw_lag(context: PlotContext) -> DrawnPlot:
    """Draw how many entries each node was behind the most advanced one."""
    view = context.view
    plot = new_figure(context, 170)
    plot.y_range.start = 0
    whole_numbers(plot)
    legend(plot, _node_lines(plot, view.sampled.nodes, lambda one: one.lag, " entries"))
    most = [(one.node, _most(one.lag)) for one in view.sampled.nodes]
    caption = "At most: " + ", ".join(f"{node} {value:,.0f}" for node, value in most) + "."
    title = "Lag: committed entries that each node did not have committed yet"
    return DrawnPlot("plot-lag", title, caption, plot)


def draw_clocks(context: PlotContext) -> DrawnPlot | None:
    """Draw how far each node's clocks were ahead of the harness'; None if no node reports them."""
    view = context.view
    nodes = [one for one in view.sampled.nodes if one.has_clocks]
    if not nodes:
        return None
    plot = new_figure(context, 190)
    items = _node_lines(plot, nodes, lambda one: one.wall_ms, " ms", "wall")
    items += _node_lines(plot, nodes, lambda one: one.monotonic_ms, " ms", "monotonic", thin=True)
    legend(plot, items)
    most = [
        (one.node, _most(np.abs(one.wall_ms)), _most(np.abs(one.monotonic_ms))) for one in nodes
    ]
    offsets = ", ".join(f"{node} {wall:,.1f} and {mono:,.1f}" for node, wall, mono in most)
    caption = f"Farthest off in ms, wall and monotonic clock: {offsets}."
    title = "Clock offsets: ms ahead of the harness' clocks"
    return DrawnPlot("plot-clocks", title, caption, plot)


def _node_lines(
    plot: Figure,
    nodes: Sequence[NodeSeries],
    values: Callable[[NodeSeries], Floats],
    unit: str,
    clock: str = "",
    *,
    thin: bool = False,
) -> list[tuple[str, list[Any]]]:
    """Draw a line for each node; thin ones are a second series of the same nodes."""
    items = []
    for number, one in enumerate(nodes):
        colour, dash = line_style(number)
        name = f"{one.node} {clock}".strip()
        source = ColumnDataSource(
            {
                "x": one.times_s.astype(np.float32),
                "y": values(one),
                "name": [name] * len(one.times_s),
            }
        )
        line = plot.line(
            x="x", y="y", source=source, line_color=colour, line_dash=dash,
            line_width=0.9 if thin else 1.8, line_alpha=0.8 if thin else 1.0,
        )  # fmt: skip
        tips = [("", "@name"), ("at", "@x{0.0} s"), ("", f"@y{{0,0.[0]}}{unit}")]
        plot.add_tools(HoverTool(renderers=[line], tooltips=tips))
        items.append((name, [line]))
    return items


def _most(values: Floats) -> float:
    return 0.0 if np.isnan(values).all() else float(np.nanmax(values))


def _last(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else 0.0
