"""Explains a failing run to a reader who did not write the test.

First the violated promise, then the planted bug if there is one, then what happened, moment by
moment, beside a space-time diagram: as plain text for a terminal (`Story.text`) and as one
self-contained page (`Story.html`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from shaketable.system.mutants import Mutant, catalogue
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Call, Schedule
from shaketable.system.sim.shrinking import Shrunk, count_events, save
from shaketable.system.sim.stories.promises import Promise, promise_of
from shaketable.system.sim.stories.story_rows import (
    LEGEND,
    TEXT_WIDTH_MIN,
    Arrow,
    Row,
    Rows,
    build_rows,
    draw_text,
    next_state,
    sentence,
)
from shaketable.system.sim.stories.watch import Kind, describe_fault, watch

# A story as one self-contained HTML page: the violation, then diagram and text side by side.
#
# Each moment has a row of its own, as high as its text, so that no labels overlap. Lanes run down
# through the rows; arrows go from the row of the send to the row of the arrival.

WIDTH = 1180
LEFT = 92
"""x of the first lane; the times are left of it."""
LANE = 62
CLIENT_LANE = 78
TEXT_GAP = 26
HEAD = 40
LINE = 15
ROW_MIN = 22
CHARACTER = 6.3
BOLD_CHARACTER = 7.3
"""Approximate width of a bold character of the rows' text."""
STAR = "M0,-7 L1.7,-2.3 6.7,-2.2 2.7,.9 4.1,5.7 0,2.9 -4.1,5.7 -2.7,.9 -6.7,-2.2 -1.7,-2.3Z"
CROSS = "M-5,-5 L5,5 M-5,5 L5,-5"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a run that come before its events."""

    invariant: str
    finding: str
    at_ms: float
    node: str
    statement: str
    impact: str
    bug: str
    seed: int
    members: int
    events: int
    faults: tuple[str, ...]
    calls: tuple[str, ...]

    @property
    def where(self) -> str:
        """When and where the violation was seen."""
        return f"at {self.at_ms:.1f} ms" + (f", at {self.node}" if self.node else "")

    @property
    def run(self) -> str:
        """The run in one line."""
        events = "1 event" if self.events == 1 else f"{self.events} events"
        return f"seed {self.seed}, {self.members} members, {events} (faults and client operations)"


class Layout:
    """Positions of everything, in the units of the picture."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.xs: dict[str, float] = {}
        x = float(LEFT)
        for lane in rows.lanes:
            width = CLIENT_LANE if lane.startswith("client") else LANE
            self.xs[lane] = x + width / 2
            x += width
        self.text_x = x + TEXT_GAP
        room = WIDTH - self.text_x - 8
        self.texts = [
            textwrap.wrap(
                sentence(row),
                max(TEXT_WIDTH_MIN, int(room / (BOLD_CHARACTER if _is_bold(row) else CHARACTER))),
                break_on_hyphens=False,
            )
            or [""]
            for row in rows.rows
        ]
        self.tops: list[float] = []
        y = float(HEAD)
        for lines in self.texts:
            self.tops.append(y)
            y += max(ROW_MIN, LINE * len(lines) + 8)
        self.bottom = y
        self.height = y + 16

    def y(self, row: int) -> float:
        """Return the y of a row's symbol and of its first line of text."""
        return self.tops[row] + 11


def render_page(facts: Facts, rows: Rows) -> str:
    """Return the whole page."""
    parts = {
        "title": escape(f"{facts.invariant} is broken"),
        "invariant": escape(facts.invariant),
        "says": escape(facts.statement),
        "matters": escape(facts.impact),
        "seen": escape(f"{facts.finding} ({facts.where})"),
        "bug": f"<dt>Planted bug</dt><dd>{escape(facts.bug)}</dd>" if facts.bug else "",
        "run": escape(facts.run),
        "events": "".join(f"<li>{escape(text)}</li>" for text in (*facts.faults, *facts.calls)),
        "picture": draw_picture(rows),
        "left_out": f"<p class=soft>{rows.left_out} lesser moments are left out.</p>"
        if rows.left_out
        else "",
        "legend": _legend(),
    }
    page = _PAGE
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    return page


def draw_picture(rows: Rows) -> str:
    """Return the space-time diagram as SVG."""
    layout = Layout(rows)
    return "\n".join(
        [
            f'<svg class=spacetime viewBox="0 0 {WIDTH} {layout.height:.0f}" role=img '
            f'aria-label="{len(rows.rows)} moments on {len(rows.lanes)} lanes">',
            *_stripes(layout),
            *_lanes(layout),
            *_bands(layout),
            *_arrows(layout),
            *_marks(layout),
            "</svg>",
        ]
    )


def _stripes(layout: Layout) -> list[str]:
    """Return the rows' backgrounds, times and texts."""
    out = []
    for number, (row, lines) in enumerate(zip(layout.rows.rows, layout.texts, strict=True)):
        top, y = layout.tops[number], layout.y(number)
        bottom = layout.tops[number + 1] if number + 1 < len(layout.tops) else layout.bottom
        style = "broken" if row.is_broken else "odd" if number % 2 else ""
        if style:
            out.append(
                f'<rect class="{style}" x=0 y={top:.1f} width={WIDTH} height={bottom - top:.1f} />'
            )
        out.append(f'<text class="time" x={LEFT - 16} y={y + 4:.1f}>{row.at_ms:.1f} ms</text>')
        spans = "".join(
            f"<tspan x={layout.text_x:.1f} y={y + 4 + LINE * n:.1f}>{escape(line)}</tspan>"
            for n, line in enumerate(lines)
        )
        weighty = " bad" if row.is_broken else " fault" if _is_bold(row) else ""
        out.append(f'<text class="say{weighty}">{spans}</text>')
    return out


def _is_bold(row: Row) -> bool:
    return row.is_broken or row.has(Kind.FAULT) or row.has(Kind.CRASH)


def _lanes(layout: Layout) -> list[str]:
    """Return a line for each lane: thick while it leads, dashed while it is down."""
    out = []
    for lane, x in layout.xs.items():
        out.append(f"<text class=lane x={x:.1f} y=20>{escape(lane)}</text>")
        state, since = "|", HEAD - 8.0
        for number, row in enumerate(layout.rows.rows):
            after = next_state(state, row, lane)
            if after != state:
                out.append(_lane_part(x, since, layout.y(number), state))
                state, since = after, layout.y(number)
        out.append(_lane_part(x, since, layout.bottom, state))
    return out


def _lane_part(x: float, start: float, end: float, state: str) -> str:
    style = {"|": "up", "#": "leads", ":": "down"}[state]
    return f'<line class="{style}" x1={x:.1f} x2={x:.1f} y1={start:.1f} y2={end:.1f} />'


def _bands(layout: Layout) -> list[str]:
    """Return the faults: on the node's lane, or on all members' for a network fault."""
    out = []
    open_at: dict[int, tuple[int, str]] = {}
    spans: list[tuple[int, int, int, str]] = []
    for number, row in enumerate(layout.rows.rows):
        for event in row.events:
            if event.kind is Kind.FAULT:
                open_at[event.index] = (number, event.node)
            elif event.kind is Kind.FAULT_ENDED and event.index in open_at:
                start, node = open_at.pop(event.index)
                spans.append((event.index, start, number, node))
    last = len(layout.rows.rows) - 1
    spans += [(index, start, last, node) for index, (start, node) in open_at.items()]
    members = [x for lane, x in layout.xs.items() if not lane.startswith("client")]
    for index, start, end, node in spans:
        center = layout.xs.get(node)
        left = (center if center is not None else members[0]) - 14 - 2 * (index % 3)
        right = (center if center is not None else members[-1]) + 14 + 2 * (index % 3)
        top, bottom = layout.y(start) - 8, layout.y(end) + 8
        out.append(
            f"<rect class=band x={left:.1f} y={top:.1f} width={right - left:.1f} "
            f"height={bottom - top:.1f} rx=4><title>fault {index + 1}</title></rect>"
        )
    return out


def _arrows(layout: Layout) -> list[str]:
    return [_arrow(layout, arrow) for arrow in layout.rows.arrows if arrow.row >= 0]


def _arrow(layout: Layout, arrow: Arrow) -> str:
    x1, y1 = layout.xs[arrow.source], layout.y(arrow.row)
    x2 = layout.xs[arrow.target]
    title = f"<title>{escape(f'{arrow.source} to {arrow.target}: {arrow.what}')}</title>"
    side = 1 if x2 > x1 else -1
    if arrow.arrives_ms is None:  # it ends halfway, in a cross if it was lost
        x, y = x1 + 0.55 * (x2 - x1), y1 + 9
        line = f'<line class="arrow {arrow.kind}" x1={x1:.1f} y1={y1:.1f} x2={x:.1f} y2={y:.1f} />'
        end = (
            f'<path class=lost d="{CROSS}" transform="translate({x:.1f} {y:.1f})" />'
            if arrow.is_lost
            else f'<circle class="{arrow.kind} way" cx={x:.1f} cy={y:.1f} r=2.5 />'
        )
        return f"<g>{title}{line}{end}</g>"
    y2 = layout.y(arrow.end_row)
    return (
        f'<g>{title}<line class="arrow {arrow.kind}" marker-end="url(#head-{arrow.kind})" '
        f"x1={x1 + 3 * side:.1f} y1={y1:.1f} x2={x2 - 5 * side:.1f} y2={y2:.1f} /></g>"
    )


def _marks(layout: Layout) -> list[str]:
    out = []
    for number, row in enumerate(layout.rows.rows):
        x = layout.xs.get(row.lane)
        if x is not None:
            out.append(f'<g transform="translate({x:.1f} {layout.y(number):.1f})">{_mark(row)}</g>')
        elif row.is_broken:  # a violation of the whole group: left of all lanes
            at = f"{LEFT - 4} {layout.y(number):.1f}"
            out.append(f'<g transform="translate({at})">{_mark(row)}</g>')
        else:  # a world event: a symbol on each lane that it concerns
            for event in row.events:
                if event.node in layout.xs:
                    at = f"{layout.xs[event.node]:.1f} {layout.y(number):.1f}"
                    out.append(f'<g transform="translate({at})">{_mark(row)}</g>')
    return out


def _mark(row: Row) -> str:
    if row.is_broken:
        return '<circle class=violation r=8 /><path class=inside d="M0,-4.5 V1 M0,3.2 V4.4" />'
    if row.has(Kind.CRASH):
        return f'<path class=crash d="{CROSS}" />'
    if row.has(Kind.DURABLE):
        return f'<path class=star d="{STAR}" />'
    return "<circle class=dot r=3.2 />"


def _legend() -> str:
    marks = (
        ("<circle class=dot r=3.2 />", "something happens"),
        (f'<path class=star d="{STAR}" />', "fsync: it is on the disk"),
        (f'<path class=crash d="{CROSS}" />', "crash"),
        (f'<path class=lost d="{CROSS}" />', "message lost"),
        ("<rect class=band x=-7 y=-7 width=14 height=14 rx=3 />", "fault"),
        ("<line class=leads y1=-8 y2=8 />", "leads"),
        ("<line class=down y1=-8 y2=8 />", "down"),
        ('<circle class=violation r=7 /><path class=inside d="M0,-4 V1 M0,3 V4" />', "violation"),
        ('<line class="arrow vote" x1=-8 x2=8 />', "vote"),
        ('<line class="arrow push" x1=-8 x2=8 />', "entries"),
        ('<line class="arrow ack" x1=-8 x2=8 />', "acknowledgement"),
        ('<line class="arrow client" x1=-8 x2=8 />', "client"),
    )
    return "".join(
        f'<span><svg class=spacetime width=20 height=20 viewBox="-10 -10 20 20">{mark}</svg>'
        f"{text}</span>"
        for mark, text in marks
    )


_HEADS = "".join(
    f'<marker id="head-{kind}" class="{kind}" viewBox="0 0 8 8" refX=7 refY=4 markerWidth=7 '
    'markerHeight=7 orient=auto><path d="M0,0 L8,4 L0,8 Z" /></marker>'
    for kind in ("vote", "push", "ack", "snapshot", "transfer", "client")
)

_PAGE = (
    """<!doctype html>
<html lang=en><meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --raised: #f5f7f9; --ink: #16202a;
  --soft: #5a6672; --line: #c3ccd5; --bad: #b3202c; --badbg: #fbe6e8; --band: #d98a00;
  --vote: #8a63c9; --push: #0b5cad; --ack: #13713c; --client: #66727e; }
@media (prefers-color-scheme: dark) { :root { --paper: #12171c; --raised: #1b222a;
  --ink: #e6ebf0; --soft: #9eabb8; --line: #44505c; --bad: #ff6b76; --badbg: #43191e;
  --band: #c98512; --vote: #b79be8; --push: #78b7f5; --ack: #5fc98a; --client: #9eabb8; } }
* { box-sizing: border-box; }
html { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
body { margin: 0; background: var(--paper); color: var(--ink); }
header { background: #b3202c; color: #fff; padding: 16px 20px; }
header div, main { max-width: 1220px; margin: 0 auto; }
main { padding: 0 20px 50px; }
h1 { font-size: 1.6rem; margin: 0; }
header p { margin: .2rem 0 0; }
h2 { font-size: 1.15rem; margin: 1.8rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 18px; margin: 16px 0 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 1.1rem; }
.soft { color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: .85rem; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 4px; }
.scroll { overflow-x: auto; }
figure { margin: 0; }
figure svg { display: block; width: 100%; min-width: 900px; height: auto; }
svg.spacetime text { fill: var(--ink);
  font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
svg.spacetime text.time { text-anchor: end; fill: var(--soft); font-size: 11px;
  font-variant-numeric: tabular-nums; }
svg.spacetime text.lane { text-anchor: middle; font-weight: 700; }
svg.spacetime text.fault { font-weight: 600; }
svg.spacetime text.bad { font-weight: 700; fill: var(--bad); }
rect.odd { fill: var(--raised); }
rect.broken { fill: var(--badbg); }
line.up { stroke: var(--line); stroke-width: 1.5; }
line.leads { stroke: var(--ink); stroke-width: 4; }
line.down { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 2 5; }
rect.band { fill: var(--band); fill-opacity: .16; stroke: var(--band); stroke-opacity: .5; }
.vote { --colour: var(--vote); } .push, .snapshot { --colour: var(--push); }
.ack { --colour: var(--ack); } .client, .transfer { --colour: var(--client); }
line.arrow { stroke: var(--colour); stroke-width: 1.6; }
line.client { stroke-dasharray: 4 3; }
marker path, circle.way { fill: var(--colour); }
circle.dot { fill: var(--paper); stroke: var(--ink); stroke-width: 1.6; }
path.star { fill: #e0a100; stroke: var(--paper); stroke-width: .6; }
path.crash { stroke: var(--bad); stroke-width: 3; fill: none; }
path.lost { stroke: var(--bad); stroke-width: 2; fill: none; }
circle.violation { fill: var(--bad); stroke: var(--paper); stroke-width: 2; }
path.inside { stroke: #fff; stroke-width: 2; fill: none; }
</style>
<header><div><h1>Broken: {{invariant}}</h1><p>{{says}}</p></div></header>
<main>
<dl><dt>Why it matters</dt><dd>{{matters}}</dd><dt>What was seen</dt><dd>{{seen}}</dd>{{bug}}
<dt>The run</dt><dd>{{run}}<ul>{{events}}</ul></dd></dl>
<h2>What happened</h2>
<p class=legend>{{legend}}</p>
{{left_out}}
<div class=scroll><figure><svg width=0 height=0 style="position:absolute"><defs>"""
    + _HEADS
    + """</defs></svg>
{{picture}}</figure></div>
</main>
</html>
"""
)


# The story.

TEXT_WIDTH = 120
SHRUNK_FILE = "shrunk.json"
STORY_FILE = "story.html"
LISTED_MAX = 25
"""Most faults, and most calls, that are listed; a minimal run has fewer."""


class NothingToTell(Exception):  # noqa: N818 - a finding about the run
    """The run violates nothing, so there is no story."""


@dataclass(frozen=True, slots=True)
class Story:
    """The story of a failing run. `text` is for a terminal, `html` is a whole page."""

    violation: Violation
    text: str
    html: str


def tell(schedule: Schedule, mutant: Mutant | None = None, *, width: int = TEXT_WIDTH) -> Story:
    """Run a schedule again and build its story. Raises NothingToTell if nothing is violated."""
    seen = watch(schedule, mutant)
    if seen.violation is None:
        raise NothingToTell(f"seed {schedule.seed} breaks nothing: there is no story to tell")
    rows = build_rows(seen)
    facts = _facts(schedule, seen.violation, mutant)
    return Story(seen.violation, _text(facts, rows, width), render_page(facts, rows))


def save_story(shrunk: Shrunk, story: Story, folder: Path) -> tuple[Path, Path]:
    """Write the run (for replay) and its story's page into a folder; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    run, page = folder / SHRUNK_FILE, folder / STORY_FILE
    save(shrunk, run)
    page.write_text(story.html, encoding="utf-8")
    return run, page


def _facts(schedule: Schedule, violation: Violation, mutant: Mutant | None) -> Facts:
    promise: Promise = promise_of(violation.invariant)
    faults = tuple(
        f"fault {number}, at {fault.start_ms} ms: {describe_fault(fault)}"
        for number, fault in enumerate(schedule.faults, start=1)
    )
    return Facts(
        invariant=violation.invariant,
        finding=violation.finding,
        at_ms=violation.at_ms,
        node=violation.node,
        statement=promise.statement,
        impact=promise.impact,
        bug=planted_bug(mutant),
        seed=schedule.seed,
        members=schedule.settings.members,
        events=count_events(schedule),
        faults=_listed(faults, "faults"),
        calls=_listed([describe_call(call) for call in schedule.calls], "calls"),
    )


def _listed(texts: Sequence[str], what: str) -> tuple[str, ...]:
    if len(texts) <= LISTED_MAX:
        return tuple(texts)
    return (*texts[:LISTED_MAX], f"and {len(texts) - LISTED_MAX} more {what}")


def planted_bug(mutant: Mutant | None) -> str:
    """Return a planted bug's name and first line; "" where none is planted."""
    if mutant is None or mutant.name == "none":
        return ""
    breaks = next((bug.breaks for bug in catalogue() if bug.name == mutant.name), "")
    return f"{mutant.name}: {breaks}".rstrip(": ")


def describe_call(call: Call) -> str:
    """Describe a client's call: `client 3, at 120 ms: 2 appends to queue 0`."""
    times = f"{call.count} " if call.count > 1 else ""
    what = {
        "append": f"{times}append{'s' * (call.count > 1)} to",
        "batch": f"{times}append{'s' * (call.count > 1)} in one go to" if times else "append to",
        "pull": "pull from",
        "max_offset": "ask for the end of",
        "commit": "commit an offset in",
        "delay": "send a delayed message to",
        "fetch": "ask for a committed offset in",
    }.get(call.kind, call.kind)
    return f"client {call.client}, at {call.at_ms} ms: {what} queue {call.queue}"


def _text(facts: Facts, rows: Rows, width: int) -> str:
    lines = [f"BROKEN: {facts.invariant}", ""]
    lines += _wrapped("promised", facts.statement, width)
    if facts.impact:
        lines += _wrapped("why it matters", facts.impact, width)
    lines += _wrapped("seen", f"{facts.finding} ({facts.where})", width)
    if facts.bug:
        lines += _wrapped("planted bug", facts.bug, width)
    lines += _wrapped("the run", facts.run, width)
    for text in (*facts.faults, *facts.calls):
        lines += _wrapped("", text, width)
    lines += ["", draw_text(rows, width=width), "", LEGEND]
    if rows.left_out:
        lines.append(f"{rows.left_out} lesser moments are left out.")
    return "\n".join(lines) + "\n"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    indent = " " * 16
    return textwrap.wrap(
        text, width, initial_indent=f"{label:<16}", subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
