"""A picture of the memory of nodes or processes over time, with their restarts (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 900, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 46
COLOURS = ("#1b6ca8", "#b8532a", "#3a7d44")
LEADER_COLOUR = "#888888"
STEPS = 5


class Sample(NamedTuple):
    """A node's resident memory at one time."""

    at_s: float
    node: str
    mib: float


def draw(
    path: Path,
    samples: Sequence[Sample],
    restarts: Sequence[tuple[float, str, bool]],
    title: str = "Memory of each node (MiB) through rolling restarts",
    since: str = "since the first message",
) -> None:
    """Draw one line a node; a gap and a mark where it was restarted."""
    seconds = max(sample.at_s for sample in samples)
    most = _round_up(max(sample.mib for sample in samples))

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / seconds

    def y(mib: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * mib / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        ' font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{title}</text>',
    ]
    for step in range(STEPS + 1):
        mib, at_s = most * step / STEPS, seconds * step / STEPS
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mib):.1f}" y2="{y(mib):.1f}"'
            f' stroke="#e4e4e4"/><text x="{LEFT - 8}" y="{y(mib) + 4:.1f}" text-anchor="end">'
            f"{mib:.0f}</text>"
            f'<text x="{x(at_s):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{at_s:.0f} s</text>"
        )
    nodes = sorted({sample.node for sample in samples})
    wide = max(90, 40 + 7 * max(map(len, nodes)))
    for number, node in enumerate(nodes):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_line(node, samples, restarts, colour, x, y))
        at = LEFT + wide * number
        parts.append(
            f'<rect x="{at}" y="30" width="14" height="4" fill="{colour}"/>'
            f'<text x="{at + 20}" y="37">{node}</text>'
        )
        for at_s, who, led in restarts:
            if who == node:
                parts.append(
                    f'<circle cx="{x(at_s):.1f}" cy="{HEIGHT - BOTTOM:.1f}" r="{5 if led else 3}"'
                    f' fill="{colour}"><title>{node} restarted at {at_s:.0f} s'
                    f"{', it led' if led else ''}</title></circle>"
                )
    if restarts:
        parts.append(
            f'<text x="{LEFT + wide * len(nodes)}" y="37" fill="#555">dots: restarts, large ones of'
            " the leader</text>"
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#555">{since}</text></svg>')
    path.write_text("\n".join(parts) + "\n")


def _line(node, samples, restarts, colour, x, y) -> str:  # type: ignore[no-untyped-def]
    """Return a node's line, broken at its restarts."""
    ends = [at_s for at_s, who, _ in restarts if who == node]
    points, drawn = [], []
    for sample in samples:
        if sample.node != node:
            continue
        while ends and ends[0] < sample.at_s:
            ends.pop(0)
            drawn.append(points)
            points = []
        points.append(f"{x(sample.at_s):.1f},{y(sample.mib):.1f}")
    drawn.append(points)
    return "".join(
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for run in drawn
    )


def _round_up(value: float) -> float:
    step = 50.0
    return step * (int(value / step) + 1)
