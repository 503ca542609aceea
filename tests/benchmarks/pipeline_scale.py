"""From the workers' segments to the verdict, through Spark and without: run by hand, no test.

    python tests/benchmarks/pipeline_scale.py --operations 1M 10M 30M 100M --plot scale.svg

Prints a row for each size: writing the segments is not timed, nor is the start of the session.
Memory is what all processes together hold, shared pages counted once (PSS), at its highest.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.models.register import CasRegister
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.export import export, export_events
from shaketable.harness.history.run_folder import RunFolder
from tests.support.large_segments import write_segments
from tests.support.process_memory import Usage

KEYS_MAX = 10_000
OPERATIONS_A_KEY = 1000
UNITS = {"k": 1000, "M": 1_000_000}
COLUMNS = (
    "operations", "segments MB", "export s", "spark s", "of it kernel s", "read s", "rest s",
    "shuffle s", "total s", "without spark s", "ratio", "events later s", "peak MB",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One size, measured."""

    operations: int
    segment_bytes: int
    export_s: float
    spark_s: float
    kernel_s: float
    read_s: float
    local_s: float
    events_s: float
    peak_bytes: int

    def cells(self) -> list[str]:
        total = self.export_s + self.spark_s
        without = self.export_s + self.local_s
        rest = self.spark_s - self.kernel_s - self.read_s
        numbers = (
            self.export_s, self.spark_s, self.kernel_s, self.read_s, rest, 0.0, total, without,
            total / without, self.events_s,
        )  # fmt: skip
        return [
            f"{self.operations:,}",
            f"{self.segment_bytes / 1e6:,.0f}",
            *(f"{number:.2f}" for number in numbers),
            f"{self.peak_bytes / 1e6:,.0f}",
        ]


def measure(folder: Path, operations: int, engine: SparkEngine, with_events: bool) -> Row:
    """Write a run of that size, take it from segments to verdict both ways, remove it."""
    run = RunFolder(folder / f"run-{operations}")
    keys = max(1, min(KEYS_MAX, operations // OPERATIONS_A_KEY))
    paths = write_segments(run.segments, operations, keys)
    written = sum(path.stat().st_size for path in paths)
    checker = Linearizable(CasRegister(), "0")
    cores = os.cpu_count() or 1
    with Usage() as usage:
        began = time.perf_counter()
        export(run, with_events=False)
        exported = time.perf_counter()
        job = CheckJob(
            tuple(sorted(run.operations.glob("*.parquet"))),
            {},
            lambda _folder, _node: iter(()),
            CheckContext((), {}, Promises()),
            (checker,),
        )
        judged = engine.run(job)
        through_spark = time.perf_counter()
        require_valid(judged, operations)
        peak = usage.peak_bytes
        again = time.perf_counter()
        assert run_local(job) == judged
        local_s = time.perf_counter() - again
    events_s = math.nan
    if with_events:
        began_events = time.perf_counter()
        export_events(run)
        events_s = time.perf_counter() - began_events
    shutil.rmtree(run.path)
    return Row(
        operations, written, exported - began, through_spark - exported,
        engine.spent.judge_s / cores, engine.spent.read_s / cores, local_s, events_s, peak,
    )  # fmt: skip


def require_valid(verdicts: list[Verdict], operations: int) -> None:
    (verdict,) = verdicts
    assert verdict.outcome is Outcome.VALID, verdict.summary
    assert verdict.counts["operations"] > 0.99 * operations, verdict.counts


def plot(rows: list[Row], path: Path) -> None:
    """Draw total seconds by operations, both axes logarithmic, as SVG."""
    width, height, edge = 640, 420, 60
    most = max(row.operations for row in rows)
    least = min(row.operations for row in rows)
    top = max(row.export_s + max(row.spark_s, row.local_s) for row in rows) * 1.3
    bottom = min(row.local_s for row in rows) / 1.5

    def place(operations: float, seconds: float) -> tuple[float, float]:
        x = math.log(operations / least) / max(math.log(most / least), 1e-9)
        y = math.log(seconds / bottom) / math.log(top / bottom)
        return edge + x * (width - 2 * edge), height - edge - y * (height - 2 * edge)

    whole = [row.export_s + row.spark_s for row in rows]
    # name: colour, seconds, where the figures stand: above (-8), below (16), nowhere (0)
    lines = {
        "segments to verdict, through Spark": ("#1f4e9c", whole, -8),
        "the same without Spark": ("#8a8a8a", [r.export_s + r.local_s for r in rows], 0),
        "of it: export": ("#2e8b57", [r.export_s for r in rows], 0),
        "of it: check in Spark": ("#c0392b", [r.spark_s for r in rows], 16),
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        _, y = place(least, 10.0**power)
        parts.append(f'<path d="M{edge} {y:.1f}H{width - edge}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{edge - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:g} s</text>'
        )
    (x1, y1), (x2, y2) = place(most, whole[-1]), place(least, whole[-1] * least / most)
    parts.append(
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#bbbbbb" stroke-dasharray="4 4"/>'
    )
    for number, (name, (colour, seconds, above)) in enumerate(lines.items()):
        points = [place(r.operations, s) for r, s in zip(rows, seconds, strict=True)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}"/>')
        for (x, y), s in zip(points, seconds, strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
            if above:
                shown = f'<text x="{x:.1f}" y="{y + above:.1f}" text-anchor="middle"'
                parts.append(f'{shown} fill="{colour}">{s:.1f} s</text>')
        parts.append(f'<text x="{edge + 8}" y="{24 + 16 * number}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{edge + 8}" y="{24 + 16 * 4}" fill="#8a8a8a">dashed: linear</text>')
    for row in rows:
        x, _ = place(row.operations, top)
        label = f"{row.operations / 1e6:g}M"
        parts.append(f'<text x="{x:.1f}" y="{height - 36}" text-anchor="middle">{label}</text>')
    middle = f'x="{width / 2}" y="{height - 14}" text-anchor="middle"'
    parts.append(f"<text {middle}>operations (both axes logarithmic)</text></svg>")
    path.write_text("\n".join(parts))


def number_of(text: str) -> int:
    return int(float(text.rstrip("kM")) * UNITS.get(text[-1], 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", nargs="+", type=number_of, default=[1_000_000])
    parser.add_argument("--folder", type=Path, help="where runs are written, and removed again")
    parser.add_argument("--events", action="store_true", help="write the files of events as well")
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    engine = SparkEngine(f"local[{os.cpu_count()}]")
    rows = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        try:
            engine.start()
            measure(Path(folder), 20_000, engine, with_events=True)  # compiles all kernels
            sys.stdout.write(" | ".join(COLUMNS) + "\n")
            for operations in asked.operations:
                rows.append(measure(Path(folder), operations, engine, asked.events))
                sys.stdout.write(" | ".join(rows[-1].cells()) + "\n")
                sys.stdout.flush()
        finally:
            engine.stop()
    if asked.plot:
        plot(rows, asked.plot)


if __name__ == "__main__":
    main()
