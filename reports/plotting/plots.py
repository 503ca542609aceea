"""The plots over time: who led, throughput, latency, errors, logs, clocks; one x axis for all.

What each is made of stands in `reports.plotting`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bokeh.core.json_encoder import serialize_json
from bokeh.embed import json_item
from bokeh.resources import Resources

from shaketable.reports.model import RunView
from shaketable.reports.plotting import clients, lanes, nodes
from shaketable.reports.plotting.frame import Drawn, Stage, end_s, fault_colours, stage_of
from shaketable.reports.run_page.packed_operations import inside_script

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
        found += [clients.draw_throughput(stage), clients.draw_latency(stage)]
        found += [clients.draw_errors(stage), clients.draw_consumer_lag(stage)]
    if view.sampled.nodes:
        found += [
            nodes.draw_committed(stage),
            nodes.draw_lag(stage),
            nodes.draw_clocks(stage),
        ]
    return [one for one in found if one is not None]
