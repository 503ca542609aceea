"""Plots of what clients saw over time: throughput, latency, errors, consumer lag."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool, Range1d
from bokeh.models.glyphs import Scatter

from shaketable.harness.history.schema import APPENDING
from shaketable.reports.plotting.frame import (
    INK,
    OUTCOME_COLOURS,
    OUTCOME_DASHES,
    DrawnPlot,
    Figure,
    PlotContext,
    legend,
    lines,
    new_figure,
)
from shaketable.reports.plotting.series import (
    Latency,
    bucket_ns,
    latency,
    slowest_and_sample,
    throughput,
)

LEGEND_ROW: Final = 19
"""Height of a row of the legend."""
LATENCY_MIN_MS: Final = 0.001
"""Shorter latencies are drawn as this: a logarithmic scale has no zero."""


def draw_throughput(context: PlotContext) -> DrawnPlot:
    """Draw operations a second by outcome."""
    view = context.view
    series = throughput(view.operations, view.duration_ns)
    plot = new_figure(context, 200)
    plot.y_range.start = 0
    named = [("ok", series.ok), ("fail", series.fail), ("info", series.info)]
    styles = [(OUTCOME_COLOURS[name], OUTCOME_DASHES[name]) for name, _ in named]
    legend(plot, lines(plot, series.starts_s, named, steps=True, unit=" /s", styles=styles))
    rate = float(np.median(series.ok))
    caption = (
        f"Half of the slices of {series.width_s:g} s had {rate:,.0f} acknowledged operations a "
        f"second or more, the best {float(series.ok.max()):,.0f}."
    )
    return DrawnPlot("plot-throughput", "Throughput, operations a second", caption, plot)


def draw_latency(context: PlotContext) -> DrawnPlot:
    """Draw single operations as dots, and p50, p99 and maximum as lines, on a logarithmic scale."""
    view = context.view
    series = latency(view.operations, view.duration_ns)
    plot = new_figure(context, 260, y_axis_type="log", y_range=_decades(series))
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
    styles = [("#138a8a", "solid"), ("#c2536b", "dashed"), (INK, "dotted")]
    items += lines(plot, series.middles_s, quantiles, unit=" ms", styles=styles)
    legend(plot, items)
    caption = ""
    if shown < ended.num_rows:
        caption = (
            f"{shown:,} of {ended.num_rows:,} operations are dots: the slowest, and an even sample "
            "of the others. The lines are made of all."
        )
    title = "Latency by the time of the call (logarithmic)"
    return DrawnPlot("plot-latency", title, caption, plot)


def draw_errors(context: PlotContext) -> DrawnPlot | None:
    """Draw errors a second by kind; None if there were none."""
    view = context.view
    found = error_kinds(view.operations, view.duration_ns)
    if found is None:
        return None
    plot = new_figure(context, 150 + LEGEND_ROW * len(found.kinds))
    plot.y_range.start = 0
    named = [(f"{name} ({total:,})", rates) for name, total, rates in found.kinds]
    legend(plot, lines(plot, found.starts_s, named, steps=True, unit=" /s"))
    plot.legend.ncols = 1
    caption = f"{sum(total for _, total, _ in found.kinds):,} in all."
    return DrawnPlot("plot-errors", "Errors a second by kind", caption, plot)


def draw_consumer_lag(context: PlotContext) -> DrawnPlot | None:
    """Draw the messages that wait for consumers; None if there were no consumers."""
    view = context.view
    found = consumer_lag(view.operations, view.duration_ns)
    if found is None:
        return None
    plot = new_figure(context, 200)
    plot.y_range.start = 0
    named = [("all queues", found.undelivered_all), *found.undelivered]
    if found.uncommitted_all is not None:
        named.insert(1, ("not committed, all queues", found.uncommitted_all))
    legend(plot, lines(plot, found.ends_s, named))
    caption = f"At most {found.most:,} messages waited at once, over {found.queues:,} queues."
    if found.queues > len(found.undelivered):
        caption += f" The {len(found.undelivered)} queues with the most are drawn."
    title = "Consumers' lag: messages acknowledged and not delivered yet"
    return DrawnPlot("plot-consumers", title, caption, plot)


def _decades(series: Latency) -> Range1d:
    """Return whole decades around the latencies, so that the scale always has ticks."""
    known = np.concatenate([series.p50_ms, series.max_ms])
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return Range1d(start=0.1, end=1000)
    low, high = max(float(known.min()), LATENCY_MIN_MS), max(float(known.max()), LATENCY_MIN_MS)
    start, end = 10.0 ** math.floor(math.log10(low) - 0.3), 10.0 ** math.ceil(math.log10(high))
    return Range1d(start=start, end=max(end, 10 * start))


def _dots(plot: Figure, operations: pa.Table, outcome: str) -> tuple[Any, int]:
    """Scatter the slowest operations and a sample of the others; return dots and count."""
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
    dot = Scatter(
        x="x", y="y", size=3, line_color=None, fill_alpha=0.35,
        fill_color=OUTCOME_COLOURS[outcome], marker="circle" if outcome == "ok" else "triangle",
    )  # fmt: skip
    dots = plot.add_glyph(source, dot)
    tips = [
        ("", f"@f @key, {outcome}"), ("operation", "@op"), ("client", "@process"),
        ("took", "@y{0.00} ms"),
    ]  # fmt: skip
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    return dots, len(chosen.rows)


# Consumer lag over time, queue by queue: a pure function of operations.
#
# It is computed from offsets, which only grow: the acknowledged end of a queue at a moment, minus
# how far messages had been delivered (or committed) by then. Redelivery does not reduce lag.

QUEUES_MAX: Final = 6
"""Queues with a line of their own: those with the largest lag. The sum is over all queues."""
GROUP_MARK: Final = "@"
"""Commits of a group have the key "queue@group"."""
_LAST_PAIR: Final = r"\[(?P<offset>\d+),\s*[^\[\]]*\]\s*\]\s*\}\s*$"
"""In `extra` {"output": [[offset, value], ...]}: the offset of the last message."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """Messages that wait, at the end of each slice of time.

    `undelivered`: those acknowledged to producers and delivered to no consumer yet, by queue, the
    largest first; `undelivered_all` and `uncommitted_all` are sums over all queues. The last is
    None if no group committed anything.
    """

    ends_s: Floats
    undelivered: tuple[tuple[str, Floats], ...]
    undelivered_all: Floats
    uncommitted_all: Floats | None
    queues: int

    @property
    def most(self) -> int:
        """The most messages that waited at once, at the end of a slice."""
        return int(self.undelivered_all.max()) if len(self.undelivered_all) else 0


def consumer_lag(operations: pa.Table, duration_ns: int) -> ConsumerLag | None:
    """Measure the lag at the end of each slice of [0, duration]; None if no client polled."""
    ok = operations.filter(
        pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    )
    polls = ok.filter(pc.equal(ok["f"], "poll"))
    sends = ok.filter(pc.is_in(ok["f"], value_set=pa.array(APPENDING)))
    if not polls.num_rows or not sends.num_rows:
        return None
    width_ns = bucket_ns(duration_ns)
    ends_ns = np.arange(1, max(1, -(-duration_ns // width_ns)) + 1, dtype=np.int64) * width_ns
    acknowledged = _ends(sends, sends["offset"], 1, ends_ns)
    delivered = _ends(polls, _last_offsets(polls), 1, ends_ns)
    commits = ok.filter(pc.equal(ok["f"], "commit"))
    committed = _ends(commits, commits["input"], 0, ends_ns)
    nothing = np.zeros(len(ends_ns))
    waiting = {
        queue: np.maximum(0, end - delivered.get(queue, nothing))
        for queue, end in acknowledged.items()
    }
    largest = sorted(waiting, key=lambda queue: (-float(waiting[queue].max()), queue))[:QUEUES_MAX]
    uncommitted = None
    if committed:
        uncommitted = sum(
            (
                np.maximum(0, end - committed.get(queue, nothing))
                for queue, end in acknowledged.items()
            ),
            nothing,
        )
    return ConsumerLag(
        ends_s=ends_ns / 1e9,
        undelivered=tuple((queue, waiting[queue]) for queue in largest),
        undelivered_all=sum(waiting.values(), nothing),
        uncommitted_all=uncommitted,
        queues=len(waiting),
    )


def _last_offsets(polls: pa.Table) -> Any:
    """Return the offset of the last message of each poll; null where there was none."""
    digits = pc.struct_field(pc.extract_regex(polls["extra"], pattern=_LAST_PAIR), "offset")
    lists = pc.cast(pc.if_else(pc.less(pc.utf8_length(digits), 19), digits, None), pa.int64())
    one = pc.if_else(pc.is_valid(polls["output"]), polls["offset"], None)
    return pc.coalesce(lists, one)


def _ends(rows: pa.Table, offsets: Any, past: int, ends_ns: Ints) -> dict[str, Floats]:
    """Return for each queue the largest offset (plus `past`) known at each of these moments."""
    table = pa.table(
        {"key": rows["key"], "offset": pc.cast(offsets, pa.int64()), "time": rows["return_ns"]}
    )
    table = table.filter(pc.and_(pc.is_valid(table["offset"]), pc.is_valid(table["key"])))
    found: dict[str, Floats] = {}
    codes = table["key"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    if not len(codes):
        return found
    number, names = codes.indices.to_numpy(), codes.dictionary.to_pylist()
    order = np.lexsort((table["time"].to_numpy(), number))
    number = number[order]
    times = table["time"].to_numpy()[order]
    reached = table["offset"].to_numpy()[order] + past
    edges = np.searchsorted(number, np.arange(len(names) + 1))
    for place, name in enumerate(names):
        inside = slice(int(edges[place]), int(edges[place + 1]))
        highest = np.concatenate(([0], np.maximum.accumulate(reached[inside])))
        by_then = highest[np.searchsorted(times[inside], ends_ns, side="right")].astype(np.float64)
        queue = name.partition(GROUP_MARK)[0]
        found[queue] = np.maximum(by_then, found[queue]) if queue in found else by_then
    return found


# Errors over time by kind: texts that differ only in numbers and nodes are one kind. Pure.

KINDS_MAX: Final = 5
"""Kinds with a line of their own, the most frequent; the others are one more line."""
TEXTS_MAX: Final = 5_000
"""Different texts that are assigned to kinds; the rarer ones are of the kind `OTHERS`."""
KIND_CHARACTERS_MAX: Final = 70
OTHERS: Final = "others"
_NODE: Final = re.compile(r"\bn\d+\b")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """Errors a second of each kind, by slices of `width_s`; `kinds` are (name, total, rates)."""

    width_s: float
    starts_s: Floats
    kinds: tuple[tuple[str, int, Floats], ...]


def error_kinds(operations: pa.Table, duration_ns: int) -> ErrorKinds | None:
    """Count errors by kind over [0, duration]; None if there were none.

    An operation counts when it returned or, if its outcome stayed unknown, when it was called.
    """
    failed = operations.filter(pc.is_valid(operations["error"]))
    if not failed.num_rows:
        return None
    width_ns = bucket_ns(duration_ns)
    slices = max(1, -(-duration_ns // width_ns))
    times = pc.coalesce(failed["return_ns"], failed["call_ns"]).to_numpy()
    places = np.clip(times // width_ns, 0, slices - 1)
    codes = failed["error"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    texts = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy()
    counts = np.bincount(numbers, minlength=len(texts))
    kind_of = _kinds(texts, counts)
    totals: Counter[str] = Counter()
    for kind, count in zip(kind_of, counts, strict=True):
        totals[kind] += int(count)
    rest = totals.pop(OTHERS, 0)
    shown = [kind for kind, _ in totals.most_common(KINDS_MAX)]
    is_whole = not rest and len(totals) <= KINDS_MAX
    names = shown if is_whole else [*shown, OTHERS]
    row = {kind: place for place, kind in enumerate(names)}
    rows = np.array([row.get(kind, len(names) - 1) for kind in kind_of], dtype=np.int64)
    counted = np.zeros((len(names), slices))
    np.add.at(counted, (rows[numbers], places), 1)
    return ErrorKinds(
        width_ns / 1e9,
        np.arange(slices, dtype=np.float64) * (width_ns / 1e9),
        tuple(
            (name, int(counted[place].sum()), counted[place] / (width_ns / 1e9))
            for place, name in enumerate(names)
        ),
    )


def _kinds(texts: list[str], counts: npt.NDArray[np.int64]) -> list[str]:
    """Return each text's kind."""
    common = set(np.argsort(-counts, kind="stable")[:TEXTS_MAX].tolist())
    return [kind_of(text) if place in common else OTHERS for place, text in enumerate(texts)]


def kind_of(text: str) -> str:
    """Return the kind of an error: its text without nodes and numbers, cut to a readable length."""
    first = text.strip().partition("\n")[0]
    kind = _NUMBER.sub("N", _NODE.sub("a node", first))
    if len(kind) > KIND_CHARACTERS_MAX:
        kind = kind[: KIND_CHARACTERS_MAX - 1] + "…"
    return kind or OTHERS
