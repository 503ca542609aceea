"""Draw the plots over time: who led, throughput, latency, errors, logs, clocks; one x axis.

The parts are in the other modules of `reports.plotting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bokeh import __version__
from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS, FactorRange, HoverTool, TapTool
from bokeh.models.glyphs import Line, Text
from bokeh.resources import Resources

from shaketable.harness.contracts.plugins import NO_ROLE
from shaketable.reports.elections import NO_ANSWER
from shaketable.reports.finding_texts import title
from shaketable.reports.plotting import client_plots
from shaketable.reports.plotting.frame import (
    INK,
    DrawnPlot,
    Figure,
    PlotContext,
    end_s,
    fault_colours,
    legend,
    line_style,
    new_figure,
    plot_context,
    shown_faults,
    whole_numbers,
)
from shaketable.reports.plotting.series import Floats, NodeSeries
from shaketable.reports.run_page.chosen_operations import inside_script
from shaketable.reports.run_view import RunView, Violation

# Draw lanes over time: phases, outages, violations, each kind of fault, each node with its role.
#
# A violation is a diamond that leads to its page.

ROLE_COLOURS: Final = {
    "leader": "#2f86d6", "candidate": "#d98a00", "follower": "#9fb4c7", NO_ROLE: "#9fb4c7",
}  # fmt: skip
OUTAGE_COLOUR: Final = "#c2353f"
OUTAGE_ROW: Final = "outage"

LABEL_SHARE_MIN: Final = 0.10
"""A phase's name is printed if the phase is at least this share of the run."""
NUMBER_SHARE_MIN: Final = 0.025
"""Fault numbers (and terms) are printed if they are at least this share of the run apart."""
ROWS_ROOMY_MAX: Final = 14
"""More rows than this are drawn closer together."""
STRETCHES_MAX: Final = 4_000
"""Role spans that are drawn: the longest ones."""
OUTAGES_MAX: Final = 2_000
"""Outages that are drawn: the longest ones."""
EVIDENCE_CHARACTERS_MAX: Final = 160

_NOTIFY_JS: Final = """
const chosen = source.selected.indices;
if (chosen.length) {
  const fault = source.data.fault[chosen[0]];
  document.dispatchEvent(new CustomEvent("fault-chosen", {detail: fault}));
}
"""
"""Runs in the page on a click on a fault: templates/report.js shows its evidence."""

_OPEN_JS: Final = """
const chosen = source.selected.indices;
if (chosen.length) {
  source.selected.indices = [];  // it can be clicked again after "back"
  location.href = source.data.page[chosen[0]];
}
"""
"""Runs in the page on a click on a violation."""


def draw_lanes(context: PlotContext) -> DrawnPlot:
    """Draw the lanes from the top."""
    view = context.view
    colours = fault_colours([row.window.name for row in view.faults])
    rows = ["phase"] if view.phases else []
    rows += [OUTAGE_ROW] if view.availability is not None else []
    rows += [VIOLATIONS_ROW] if moments(view) else []
    nodes = sorted({lane.node for lane in view.lanes} | set(view.nodes))
    kinds = sorted({row.window.name for row in shown_faults(view)})
    factors = list(dict.fromkeys(reversed([*rows, *kinds, *nodes]))) or ["run"]  # unique
    row_height = 27 if len(factors) <= ROWS_ROOMY_MAX else 19
    plot = new_figure(context, 40 + row_height * len(factors), y_range=FactorRange(factors=factors))
    plot.ygrid.grid_line_color = None
    whole_s = end_s(view)
    _bars(plot, [_phase_bar(phase, whole_s) for phase in view.phases])
    _bars(plot, _outage_bars(view))
    faults = _bars(plot, _fault_bars(view, colours, whole_s))
    _bars(plot, _role_bars(view, whole_s))
    _on_click(plot, {_NOTIFY_JS: faults, _OPEN_JS: mark_violations(plot, view)})
    caption = "A diamond is a violation; a click opens its page." if moments(view) else ""
    return DrawnPlot(
        "plot-lanes", "Phases, outages, faults, and who led in which term", caption, plot
    )


def _bar(
    row: str, start_ns: int, stop_ns: int, text: str, label: str, **style: Any
) -> dict[str, Any]:
    start, stop = start_ns / 1e9, stop_ns / 1e9
    return {
        "row": row, "start": start, "stop": stop, "text": text, "label": label, "fault": -1,
        "length": f"{stop - start:.2f} s", "height": 0.72, "alpha": 0.85, "colour": INK,
        "hatch": " ", "ink": "#ffffff", "proof": "", **style,
    }  # fmt: skip


def _phase_bar(phase: Any, whole_s: float) -> dict[str, Any]:
    wide = (phase.stop_ns - phase.start_ns) / 1e9 >= LABEL_SHARE_MIN * whole_s
    return _bar(
        "phase",
        phase.start_ns,
        phase.stop_ns,
        phase.name,
        phase.name if wide else "",
        alpha=0.15,
        ink=INK,
    )


def _outage_bars(view: RunView) -> list[dict[str, Any]]:
    outages = view.availability.outages if view.availability is not None else ()
    found = sorted(outages, key=lambda outage: -outage.length_ns)[:OUTAGES_MAX]
    return [
        _bar(
            OUTAGE_ROW,
            outage.start_ns,
            outage.stop_ns,
            "nothing was acknowledged",
            "",
            colour=OUTAGE_COLOUR,
        )
        for outage in found
    ]


def _fault_bars(view: RunView, colours: dict[str, str], whole_s: float) -> list[dict[str, Any]]:
    bars = []
    labelled: dict[str, float] = {}
    for row in shown_faults(view):
        window = row.window
        start_s = window.from_ns / 1e9
        free = start_s - labelled.get(window.name, -whole_s) >= NUMBER_SHARE_MIN * whole_s
        if free:
            labelled[window.name] = start_s
        effect = "it took effect" if window.took_effect else "it had no effect"
        bars.append(
            _bar(
                window.name,
                window.from_ns,
                window.stop_ns,
                f"fault {window.fault}: {window.description}; {effect}",
                str(window.fault) if free else "",
                fault=window.fault,
                proof=_cut(window.evidence),
                colour=colours[window.name],
                alpha=0.85 if window.took_effect else 0.15,
                ink="#ffffff" if window.took_effect else INK,
            )
        )
    return bars


def _cut(evidence: str) -> str:
    if len(evidence) <= EVIDENCE_CHARACTERS_MAX:
        return evidence
    return evidence[: EVIDENCE_CHARACTERS_MAX - 1] + "…"


def _role_bars(view: RunView, whole_s: float) -> list[dict[str, Any]]:
    lanes = view.lanes
    if len(lanes) > STRETCHES_MAX:
        least = sorted((lane.stop_ns - lane.start_ns for lane in lanes), reverse=True)[
            STRETCHES_MAX
        ]
        lanes = tuple(lane for lane in lanes if lane.stop_ns - lane.start_ns > least)
    bars = []
    heights = {"leader": 0.82, "candidate": 0.5, "follower": 0.26}
    for lane in lanes:
        wide = (lane.stop_ns - lane.start_ns) / 1e9 >= NUMBER_SHARE_MIN * whole_s
        term = "" if lane.term is None else f" in term {lane.term}"
        leads = lane.role == "leader"
        bars.append(
            _bar(
                lane.node,
                lane.start_ns,
                lane.stop_ns,
                f"{lane.node}: {lane.role}{term}",
                str(lane.term) if leads and wide and lane.term is not None else "",
                colour=ROLE_COLOURS.get(lane.role, INK),
                alpha=0.12 if lane.role == NO_ANSWER else 0.9,
                hatch="x" if lane.role == NO_ANSWER else " ",
                height=heights.get(lane.role, 0.5),
            )
        )
    return bars


def _bars(plot: Figure, bars: list[dict[str, Any]]) -> Any:
    """Draw bars with their labels and tooltips; return the glyphs, None if there are no bars."""
    if not bars:
        return None
    source = ColumnDataSource({name: [bar[name] for bar in bars] for name in bars[0]})
    drawn = plot.hbar(
        y="row", left="start", right="stop", height="height", source=source,
        fill_color="colour", fill_alpha="alpha", line_color="colour", line_alpha=0.9,
        hatch_pattern="hatch", hatch_color=INK, hatch_alpha=0.6, hatch_scale=7,
        nonselection_fill_alpha="alpha", nonselection_line_alpha=0.9,
    )  # fmt: skip
    labelled = ColumnDataSource(
        {
            "x": [(bar["start"] + bar["stop"]) / 2 for bar in bars if bar["label"]],
            "row": [bar["row"] for bar in bars if bar["label"]],
            "label": [bar["label"] for bar in bars if bar["label"]],
            "ink": [bar["ink"] for bar in bars if bar["label"]],
        }
    )
    label = Text(
        x="x", y="row", text="label", text_align="center", text_baseline="middle",
        text_font_size="11px", text_color="ink",
    )  # fmt: skip
    plot.add_glyph(labelled, label)
    tooltips = [("", "@text"), ("from", "@start{0.000} s"), ("for", "@length")]
    if any(bar["proof"] for bar in bars):
        tooltips.append(("evidence", "@proof"))
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tooltips))
    return drawn


def _on_click(plot: Figure, drawn: dict[str, Any]) -> None:
    """Run a script on a click on what was drawn, None if nothing was.

    All share one tool: of several that wait for a click a plot has one active at a time.
    """
    clicked = {script: glyphs for script, glyphs in drawn.items() if glyphs is not None}
    if not clicked:
        return
    plot.add_tools(TapTool(renderers=[*clicked.values()]))
    for script, glyphs in clicked.items():
        source = glyphs.data_source
        source.selected.js_on_change("indices", CustomJS(args={"source": source}, code=script))


# Violations: each is a diamond that leads to its page.

VIOLATIONS_ROW: Final = "violations"
VIOLATION_COLOUR: Final = "#b3202c"
MESSAGE_CHARACTERS_MAX: Final = 160
MARKS_MAX: Final = 500
"""Violations that are marked: the first of each checker, as they are listed."""


def moments(view: RunView) -> tuple[tuple[Violation, int], ...]:
    """Return the violations with a page and a place in time: in ns since the start of the run."""
    found = ((violation, at_ns) for violation in _shown(view) for at_ns in _moment(violation))
    return tuple(pair for pair, _ in zip(found, range(MARKS_MAX), strict=False))


def mark_violations(plot: Figure, view: RunView) -> Any:
    """Draw them in their row; return the glyphs, None if there are no violations."""
    marked = moments(view)
    if not marked:
        return None
    source = ColumnDataSource(
        {
            "x": [at_ns / 1e9 for _, at_ns in marked],
            "row": [VIOLATIONS_ROW] * len(marked),
            "title": [title(violation.kind) for violation, _ in marked],
            "message": [_cut_message(violation.message) for violation, _ in marked],
            "page": [violation.page for violation, _ in marked],
        }
    )
    style: dict[str, Any] = {"fill_color": VIOLATION_COLOUR, "line_color": INK, "line_width": 0.7}
    drawn = plot.scatter(
        x="x", y="row", source=source, marker="diamond", size=14, nonselection_fill_alpha=1.0,
        nonselection_line_alpha=1.0, **style,
    )  # fmt: skip
    told = [("", "@title"), ("at", "@x{0.000} s"), ("", "@message"), ("page", "@page")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=told))
    return drawn


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


def _cut_message(message: str) -> str:
    return (
        message
        if len(message) <= MESSAGE_CHARACTERS_MAX
        else message[:MESSAGE_CHARACTERS_MAX] + "…"
    )


# The plots.

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
    """Return a plot with what `bokeh.embed.json_item` would return.

    That takes twice as long: it looks for models of other documents, and validates these.
    """
    document = Document()
    document.add_root(one.plot)
    item = {
        "target_id": None,
        "root_id": one.plot.id,
        "doc": document.to_json(deferred=False),
        "version": __version__,
    }
    embedded = inside_script(serialize_json(item))
    return Plot(one.name, one.title, one.caption, one.plot.height, embedded)


def _figures(context: PlotContext) -> list[DrawnPlot]:
    """Return the plots with anything to show, from the top."""
    view = context.view
    found: list[DrawnPlot | None] = [draw_lanes(context)]
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
        glyph = Line(
            x="x", y="y", line_color=colour, line_dash=dash,
            line_width=0.9 if thin else 1.8, line_alpha=0.8 if thin else 1.0,
        )  # fmt: skip
        line = plot.add_glyph(source, glyph)
        tips = [("", "@name"), ("at", "@x{0.0} s"), ("", f"@y{{0,0.[0]}}{unit}")]
        plot.add_tools(HoverTool(renderers=[line], tooltips=tips))
        items.append((name, [line]))
    return items


def _most(values: Floats) -> float:
    return 0.0 if np.isnan(values).all() else float(np.nanmax(values))


def _last(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else 0.0
