"""The plots over time: who led, throughput, latency; one x axis, faults shaded behind all.

Colours are chosen to stand on a light and on a dark page; nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bokeh.embed import components
from bokeh.layouts import column
from bokeh.models import (
    ColumnDataSource,
    CustomJSTickFormatter,
    FactorRange,
    HoverTool,
    Range1d,
)
from bokeh.models.annotations import Legend, Title
from bokeh.plotting import figure
from bokeh.resources import Resources

from reports.model import RunView
from reports.series import Latency, latency, slowest_and_sample, throughput
from reports.timeline import NO_ANSWER

INK = "#7b7b7b"
"""Axes and text: 4:1 or better on white and on near-black."""

OUTCOME_COLOURS = {"ok": "#2f86d6", "fail": "#8a63c9", "info": "#d98a00"}
OUTCOME_DASHES = {"ok": "solid", "fail": "dashed", "info": "dotted"}
ROLE_COLOURS = {"leader": "#2f86d6", "candidate": "#d98a00", "follower": "#9fb4c7"}
FAULT_COLOURS = ("#d1495b", "#a07800", "#138a8a", "#8a63c9", "#6b8e23", "#b0651d")

LABEL_SHARE_MIN = 0.10
"""A phase's name is printed if the phase is at least this share of the run."""

NUMBER_SHARE_MIN = 0.025
"""Fault numbers (and terms) are printed if they stand at least this share apart."""

LATENCY_MIN_MS = 0.001
"""Shorter ones are drawn as this long: a logarithmic scale has no zero."""

Figure = Any


@dataclass(frozen=True, slots=True)
class Plots:
    """What the page embeds: the library, the script with the data, and the place for it."""

    library: str
    script: str
    div: str


def fault_colours(names: Sequence[str]) -> dict[str, str]:
    """Give each kind of fault its colour: the same in the plots, the pictures and the tables."""
    distinct = sorted(set(names))
    return {name: FAULT_COLOURS[n % len(FAULT_COLOURS)] for n, name in enumerate(distinct)}


def draw(view: RunView) -> Plots | None:
    """Draw the plots of a run; None if there is nothing to draw."""
    if view.operations.num_rows == 0 and not view.lanes and not view.faults:
        return None
    x_range = Range1d(start=0, end=_end_s(view), bounds="auto")
    figures = [_lanes(view, x_range)]
    if view.operations.num_rows:
        figures += [_throughput(view, x_range), _latency(view, x_range)]
    script, div = components(column(*figures, sizing_mode="stretch_width", spacing=6))
    library = Resources(mode="inline", components=["bokeh"], log_level="warn").render_js()
    return Plots(library, script, div)


def _end_s(view: RunView) -> float:
    """Where the x axis ends; never at its start."""
    return max(view.duration_ns / 1e9, 0.1)


def _figure(view: RunView, x_range: Range1d, title: str, height: int, **options: Any) -> Figure:
    """Make an empty figure in the page's style, with fault bands and phase marks behind."""
    plot = figure(
        title=Title(text=title, text_color=INK, text_font_size="13px"),
        height=height,
        x_range=x_range,
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
    colours = fault_colours([row.window.name for row in view.faults])
    if view.faults:
        plot.vstrip(
            x0=[row.window.start_ns / 1e9 for row in view.faults],
            x1=[row.window.stop_ns / 1e9 for row in view.faults],
            fill_color=[colours[row.window.name] for row in view.faults],
            fill_alpha=0.16,
            line_color=None,
        )
    starts = [phase.start_ns / 1e9 for phase in view.phases if phase.start_ns > 0]
    if starts:
        plot.vspan(x=starts, line_color=INK, line_dash="dashed", line_alpha=0.6)
    return plot


def _lanes(view: RunView, x_range: Range1d) -> Figure:
    """Rows from the top: phases, each kind of fault, each node with its role and term."""
    colours = fault_colours([row.window.name for row in view.faults])
    rows = (["phase"] if view.phases else []) + list(colours)
    nodes = sorted({lane.node for lane in view.lanes} | set(view.nodes))
    factors = list(dict.fromkeys(reversed([*rows, *nodes]))) or ["run"]  # each row once
    plot = _figure(
        view,
        x_range,
        "Phases, faults, and who led in which term",
        height=64 + 27 * len(factors),
        y_range=FactorRange(factors=factors),
    )
    plot.ygrid.grid_line_color = None
    end_s = _end_s(view)
    _bars(plot, [_phase_bar(phase, end_s) for phase in view.phases])
    _bars(plot, _fault_bars(view, colours, end_s))
    _bars(plot, _role_bars(view, end_s))
    return plot


def _bar(
    row: str, start_ns: int, stop_ns: int, text: str, label: str, **look: Any
) -> dict[str, Any]:
    start, stop = start_ns / 1e9, stop_ns / 1e9
    return {
        "row": row, "start": start, "stop": stop, "text": text, "label": label,
        "length": f"{stop - start:.2f} s", "height": 0.72, "alpha": 0.85, "colour": INK,
        "hatch": " ", "ink": "#ffffff", **look,
    }  # fmt: skip


def _phase_bar(phase: Any, end_s: float) -> dict[str, Any]:
    wide = (phase.stop_ns - phase.start_ns) / 1e9 >= LABEL_SHARE_MIN * end_s
    return _bar(
        "phase",
        phase.start_ns,
        phase.stop_ns,
        phase.name,
        phase.name if wide else "",
        alpha=0.15,
        ink=INK,
    )


def _fault_bars(view: RunView, colours: dict[str, str], end_s: float) -> list[dict[str, Any]]:
    bars = []
    labelled: dict[str, float] = {}
    for row in view.faults:
        window = row.window
        start_s = window.start_ns / 1e9
        free = start_s - labelled.get(window.name, -end_s) >= NUMBER_SHARE_MIN * end_s
        if free:
            labelled[window.name] = start_s
        bit = "it bit" if window.bit else "it did not bite"
        bars.append(
            _bar(
                window.name,
                window.start_ns,
                window.stop_ns,
                f"fault {window.fault}: {window.description}; {bit}",
                str(window.fault) if free else "",
                colour=colours[window.name],
                alpha=0.85 if window.bit else 0.15,
                ink="#ffffff" if window.bit else INK,
            )
        )
    return bars


def _role_bars(view: RunView, end_s: float) -> list[dict[str, Any]]:
    bars = []
    heights = {"leader": 0.82, "candidate": 0.5, "follower": 0.26}
    for lane in view.lanes:
        wide = (lane.stop_ns - lane.start_ns) / 1e9 >= NUMBER_SHARE_MIN * end_s
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


def _bars(plot: Figure, bars: list[dict[str, Any]]) -> None:
    if not bars:
        return
    source = ColumnDataSource({name: [bar[name] for bar in bars] for name in bars[0]})
    drawn = plot.hbar(
        y="row", left="start", right="stop", height="height", source=source,
        fill_color="colour", fill_alpha="alpha", line_color="colour", line_alpha=0.9,
        hatch_pattern="hatch", hatch_color=INK, hatch_alpha=0.6, hatch_scale=7,
    )  # fmt: skip
    labelled = ColumnDataSource(
        {
            "x": [(bar["start"] + bar["stop"]) / 2 for bar in bars if bar["label"]],
            "row": [bar["row"] for bar in bars if bar["label"]],
            "label": [bar["label"] for bar in bars if bar["label"]],
            "ink": [bar["ink"] for bar in bars if bar["label"]],
        }
    )
    plot.text(
        x="x", y="row", text="label", source=labelled, text_align="center",
        text_baseline="middle", text_font_size="11px", text_color="ink",
    )  # fmt: skip
    tooltips = [("", "@text"), ("from", "@start{0.000} s"), ("for", "@length")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tooltips))


def _throughput(view: RunView, x_range: Range1d) -> Figure:
    series = throughput(view.operations, view.duration_ns)
    plot = _figure(view, x_range, "Throughput, operations a second", height=220)
    plot.y_range.start = 0
    source = ColumnDataSource(
        {"x": series.starts_s, "ok": series.ok, "fail": series.fail, "info": series.info}
    )
    items = []
    for outcome, colour in OUTCOME_COLOURS.items():
        line = plot.step(
            x="x", y=outcome, source=source, mode="after", line_width=2,
            line_color=colour, line_dash=OUTCOME_DASHES[outcome],
        )  # fmt: skip
        items.append((outcome, [line]))
    tooltips = [
        ("from", "@x{0.0} s"),
        *((outcome, f"@{outcome}{{0}} /s") for outcome in OUTCOME_COLOURS),
    ]
    plot.add_tools(HoverTool(renderers=items[0][1], tooltips=tooltips, mode="vline"))
    _legend(plot, items)
    return plot


def _latency(view: RunView, x_range: Range1d) -> Figure:
    """Single operations as dots, p50, p99 and maximum as lines, on a logarithmic scale."""
    series = latency(view.operations, view.duration_ns)
    plot = _figure(
        view, x_range, "Latency by the time of the call (logarithmic)", height=280,
        y_axis_type="log", y_range=_decades(series), x_axis_label="seconds since the run's start",
    )  # fmt: skip
    plot.yaxis.formatter = CustomJSTickFormatter(
        code="return tick >= 1000 ? (tick / 1000) + ' s' : tick + ' ms'"
    )
    items = []
    ended = view.operations.filter(pc.is_valid(view.operations["return_ns"]))
    for outcome in ("ok", "fail"):
        dots = _dots(plot, ended.filter(pc.equal(ended["outcome"], outcome)), outcome)
        if dots is not None:
            items.append((outcome, [dots]))
    items += _percentiles(plot, series)
    _legend(plot, items)
    return plot


def _decades(series: Latency) -> Range1d:
    """Whole decades around the latencies shown, so that the scale always has marks."""
    known = np.concatenate([series.p50_ms, series.max_ms])
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return Range1d(start=0.1, end=1000)
    low, high = max(float(known.min()), LATENCY_MIN_MS), max(float(known.max()), LATENCY_MIN_MS)
    start, end = 10.0 ** math.floor(math.log10(low) - 0.3), 10.0 ** math.ceil(math.log10(high))
    return Range1d(start=start, end=max(end, 10 * start))


def _percentiles(plot: Figure, series: Latency) -> list[tuple[str, list[Any]]]:
    source = ColumnDataSource(
        {"x": series.middles_s, "p50": series.p50_ms, "p99": series.p99_ms, "max": series.max_ms}
    )
    lines = []
    for name, dash, colour in (
        ("p50", "solid", "#138a8a"),
        ("p99", "dashed", "#c2536b"),
        ("max", "dotted", INK),
    ):
        line = plot.line(
            x="x", y=name, source=source, line_width=2, line_dash=dash, line_color=colour
        )
        lines.append((name, [line]))
    tooltips = [
        ("at", "@x{0.0} s"),
        *((name, f"@{name}{{0.00}} ms") for name in ("p50", "p99", "max")),
    ]
    plot.add_tools(HoverTool(renderers=lines[0][1], tooltips=tooltips, mode="vline"))
    return lines


def _dots(plot: Figure, operations: pa.Table, outcome: str) -> Any:
    """Scatter the slowest operations and a sample of the others."""
    if operations.num_rows == 0:
        return None
    calls = operations["call_ns"].to_numpy()
    elapsed_ms = np.maximum((operations["return_ns"].to_numpy() - calls) / 1e6, LATENCY_MIN_MS)
    chosen = slowest_and_sample(elapsed_ms)
    rows = operations.take(pa.array(chosen.rows))
    source = ColumnDataSource(
        {
            "x": (calls[chosen.rows] / 1e9).astype(np.float32),
            "y": elapsed_ms[chosen.rows].astype(np.float32),
            "op": rows["op"].to_numpy().astype(np.int32),
            "process": rows["process"].to_numpy().astype(np.int32),
            "f": rows["f"].to_pylist(),
            "key": rows["key"].to_pylist(),
        }
    )
    dots = plot.scatter(
        x="x", y="y", source=source, size=3, line_color=None, fill_alpha=0.35,
        fill_color=OUTCOME_COLOURS[outcome], marker="circle" if outcome == "ok" else "triangle",
    )  # fmt: skip
    tooltips = [("", f"@f @key, {outcome}"), ("client", "@process"), ("took", "@y{0.00} ms")]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tooltips))
    return dots


def _legend(plot: Figure, items: list[tuple[str, list[Any]]]) -> None:
    legend = Legend(
        items=items, orientation="horizontal", location="left", click_policy="hide",
        background_fill_alpha=0, border_line_color=None, label_text_color=INK,
        label_text_font_size="11px", spacing=8, margin=2, ncols="auto",
    )  # fmt: skip
    plot.add_layout(legend, "above")
