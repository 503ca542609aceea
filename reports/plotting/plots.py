"""The plots over time: who led, throughput, latency, errors, logs, clocks; one x axis for all.

What each is made of stands in `reports.plotting`.
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
    Drawn,
    Figure,
    Stage,
    end_s,
    fault_colours,
    legend,
    look,
    new_figure,
    stage_of,
    whole_numbers,
)
from shaketable.reports.plotting.node_samples import Floats, NodeSeries
from shaketable.reports.run_page.chosen_operations import inside_script
from shaketable.reports.run_view import RunView

__all__ = ["Plot", "Plots", "draw", "fault_colours"]


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: its id, title, what it shows in words, its height, and itself as Bokeh's JSON."""

    name: str
    title: str
    says: str
    height_px: int
    item: str


@dataclass(frozen=True, slots=True)
class Plots:
    """What the page embeds: the library, and plots that its script draws when they are seen."""

    library: str
    end_s: float
    each: tuple[Plot, ...]


def draw(view: RunView) -> Plots | None:
    """Draw the plots of a run; None if there is nothing to draw."""
    if view.operations.num_rows == 0 and not view.lanes and not view.faults:
        return None
    drawn = _figures(stage_of(view))
    drawn[-1].plot.xaxis.axis_label = "seconds since the run's start"
    library = Resources(mode="inline", components=["bokeh"], log_level="warn").render_js()
    return Plots(library, end_s(view), tuple(_plot(one) for one in drawn))


def _plot(one: Drawn) -> Plot:
    item = inside_script(serialize_json(json_item(one.plot)))
    return Plot(one.name, one.title, one.says, one.plot.height, item)


def _figures(stage: Stage) -> list[Drawn]:
    """Return the plots for which there is anything to show, from the top."""
    view = stage.view
    found: list[Drawn | None] = [lanes.draw_lanes(stage)]
    if view.operations.num_rows:
        found += [client_plots.draw_throughput(stage), client_plots.draw_latency(stage)]
        found += [client_plots.draw_errors(stage), client_plots.draw_consumer_lag(stage)]
    if view.sampled.nodes:
        found += [
            draw_committed(stage),
            draw_lag(stage),
            draw_clocks(stage),
        ]
    return [one for one in found if one is not None]


# What nodes said of themselves over time: how far their logs were, and how wrong their clocks.


def draw_committed(stage: Stage) -> Drawn:
    """Draw each node's committed index."""
    view = stage.view
    plot = new_figure(stage, 170)
    whole_numbers(plot)
    legend(plot, _node_lines(plot, view.sampled.nodes, lambda one: one.committed, ""))
    known = [(one.node, _last(one.committed)) for one in view.sampled.nodes]
    says = "Last seen: " + ", ".join(f"{node} {value:,.0f}" for node, value in known) + "."
    return Drawn("plot-committed", "Committed index of each node", says, plot)


def draw_lag(stage: Stage) -> Drawn:
    """Draw how many entries each node was behind the furthest one."""
    view = stage.view
    plot = new_figure(stage, 170)
    plot.y_range.start = 0
    whole_numbers(plot)
    legend(plot, _node_lines(plot, view.sampled.nodes, lambda one: one.lag, " entries"))
    most = [(one.node, _most(one.lag)) for one in view.sampled.nodes]
    says = "At most: " + ", ".join(f"{node} {value:,.0f}" for node, value in most) + "."
    title = "Lag: committed entries that each node did not have committed yet"
    return Drawn("plot-lag", title, says, plot)


def draw_clocks(stage: Stage) -> Drawn | None:
    """Draw how far each node's clocks were ahead of the harness'; None if no node tells."""
    view = stage.view
    nodes = [one for one in view.sampled.nodes if one.tells_clocks]
    if not nodes:
        return None
    plot = new_figure(stage, 190)
    items = _node_lines(plot, nodes, lambda one: one.wall_ms, " ms", "wall")
    items += _node_lines(plot, nodes, lambda one: one.monotonic_ms, " ms", "monotonic", thin=True)
    legend(plot, items)
    most = [
        (one.node, _most(np.abs(one.wall_ms)), _most(np.abs(one.monotonic_ms))) for one in nodes
    ]
    told = ", ".join(f"{node} {wall:,.1f} and {mono:,.1f}" for node, wall, mono in most)
    says = f"Farthest off in ms, wall and monotonic clock: {told}."
    title = "Clock offsets: ms ahead of the harness' clocks"
    return Drawn("plot-clocks", title, says, plot)


def _node_lines(
    plot: Figure,
    nodes: Sequence[NodeSeries],
    values: Callable[[NodeSeries], Floats],
    unit: str,
    clock: str = "",
    *,
    thin: bool = False,
) -> list[tuple[str, list[Any]]]:
    """Draw a line a node; thin ones stand beside others of the same nodes."""
    items = []
    for number, one in enumerate(nodes):
        colour, dash = look(number)
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
