"""What clients saw over time: throughput, latency, errors, and what waits for consumers."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool, Range1d

from shaketable.reports.plotting.consumer_lag import consumer_lag
from shaketable.reports.plotting.error_kinds import error_kinds
from shaketable.reports.plotting.frame import (
    INK,
    OUTCOME_COLOURS,
    OUTCOME_DASHES,
    Drawn,
    Figure,
    Stage,
    legend,
    lines,
    new_figure,
)
from shaketable.reports.plotting.series import Latency, latency, slowest_and_sample, throughput

LEGEND_ROW: Final = 19
"""Height of a legend's row."""
LATENCY_MIN_MS: Final = 0.001
"""Shorter ones are drawn as this long: a logarithmic scale has no zero."""


def draw_throughput(stage: Stage) -> Drawn:
    """Draw operations a second by outcome."""
    view = stage.view
    series = throughput(view.operations, view.duration_ns)
    plot = new_figure(stage, 200)
    plot.y_range.start = 0
    named = [("ok", series.ok), ("fail", series.fail), ("info", series.info)]
    looks = [(OUTCOME_COLOURS[name], OUTCOME_DASHES[name]) for name, _ in named]
    legend(plot, lines(plot, series.starts_s, named, steps=True, unit=" /s", looks=looks))
    rate = float(np.median(series.ok))
    says = (
        f"Half of the slices of {series.width_s:g} s had {rate:,.0f} acknowledged operations a "
        f"second or more, the best {float(series.ok.max()):,.0f}."
    )
    return Drawn("plot-throughput", "Throughput, operations a second", says, plot)


def draw_latency(stage: Stage) -> Drawn:
    """Draw single operations as dots, p50, p99 and maximum as lines, on a logarithmic scale."""
    view = stage.view
    series = latency(view.operations, view.duration_ns)
    plot = new_figure(stage, 260, y_axis_type="log", y_range=_decades(series))
    plot.yaxis.formatter = CustomJSTickFormatter(
        code="return tick >= 1000 ? (tick / 1000) + ' s' : tick + ' ms'"
    )
    items = []
    ended = view.operations.filter(pc.is_valid(view.operations["return_ns"]))
    shown = 0
    for outcome in ("ok", "fail"):
        dots, number = _dots(plot, ended.filter(pc.equal(ended["outcome"], outcome)), outcome)
        shown += number
        if dots is not None:
            items.append((outcome, [dots]))
    quantiles = [("p50", series.p50_ms), ("p99", series.p99_ms), ("max", series.max_ms)]
    looks = [("#138a8a", "solid"), ("#c2536b", "dashed"), (INK, "dotted")]
    items += lines(plot, series.middles_s, quantiles, unit=" ms", looks=looks)
    legend(plot, items)
    says = ""
    if shown < ended.num_rows:
        says = (
            f"{shown:,} of {ended.num_rows:,} operations are dots: the slowest, and an even sample "
            "of the others. The lines are made of all."
        )
    title = "Latency by the time of the call (logarithmic)"
    return Drawn("plot-latency", title, says, plot)


def draw_errors(stage: Stage) -> Drawn | None:
    """Draw errors a second by kind; None if there were none."""
    view = stage.view
    found = error_kinds(view.operations, view.duration_ns)
    if found is None:
        return None
    plot = new_figure(stage, 150 + LEGEND_ROW * len(found.kinds))
    plot.y_range.start = 0
    named = [(f"{name} ({total:,})", rates) for name, total, rates in found.kinds]
    legend(plot, lines(plot, found.starts_s, named, steps=True, unit=" /s"))
    plot.legend.ncols = 1
    says = f"{sum(total for _, total, _ in found.kinds):,} in all."
    return Drawn("plot-errors", "Errors a second by kind", says, plot)


def draw_consumer_lag(stage: Stage) -> Drawn | None:
    """Draw the messages that wait for consumers; None if there were no consumers."""
    view = stage.view
    found = consumer_lag(view.operations, view.duration_ns)
    if found is None:
        return None
    plot = new_figure(stage, 200)
    plot.y_range.start = 0
    named = [("all queues", found.undelivered_all), *found.undelivered]
    if found.uncommitted_all is not None:
        named.insert(1, ("not committed, all queues", found.uncommitted_all))
    legend(plot, lines(plot, found.ends_s, named))
    says = f"At most {found.most:,} messages waited at once, over {found.queues:,} queues."
    if found.queues > len(found.undelivered):
        says += f" The {len(found.undelivered)} queues with the most are drawn."
    title = "Consumers' lag: messages acknowledged and not delivered yet"
    return Drawn("plot-consumers", title, says, plot)


def _decades(series: Latency) -> Range1d:
    """Whole decades around the latencies shown, so that the scale always has marks."""
    known = np.concatenate([series.p50_ms, series.max_ms])
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return Range1d(start=0.1, end=1000)
    low, high = max(float(known.min()), LATENCY_MIN_MS), max(float(known.max()), LATENCY_MIN_MS)
    start, end = 10.0 ** math.floor(math.log10(low) - 0.3), 10.0 ** math.ceil(math.log10(high))
    return Range1d(start=start, end=max(end, 10 * start))


def _dots(plot: Figure, operations: pa.Table, outcome: str) -> tuple[Any, int]:
    """Scatter the slowest operations and a sample of the others; return how many, too."""
    if operations.num_rows == 0:
        return None, 0
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
    tips = [
        ("", f"@f @key, {outcome}"), ("operation", "@op"), ("client", "@process"),
        ("took", "@y{0.00} ms"),
    ]  # fmt: skip
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    return dots, len(chosen.rows)
