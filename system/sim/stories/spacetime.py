"""A story's space-time diagram in plain text: time runs downwards, with a column for each lane.

Source: Lamport's space-time diagrams, turned so that each moment has a line for its text.
"""

from __future__ import annotations

import textwrap

from shaketable.system.sim.stories.sentences import sentence
from shaketable.system.sim.stories.story_arrows import Arrow
from shaketable.system.sim.stories.story_rows import Row, Rows
from shaketable.system.sim.stories.watch import Kind

LEGEND = (
    "| up   # leads   : down   o something happens   * fsync   X crash   ! the violation\n"
    "o--> sent, arrives in a later line   o--x lost"
)
LANE_WIDTH = 5
CLIENT_WIDTH = 9
TIME_WIDTH = 10
TEXT_WIDTH_MIN = 36


def draw_text(rows: Rows, *, width: int = 120) -> str:
    """Return the diagram, about `width` characters wide at most."""
    columns = _columns(rows.lanes)
    picture_width = sum(_width(lane) for lane in rows.lanes)
    text_width = max(TEXT_WIDTH_MIN, width - TIME_WIDTH - picture_width - 2)
    header = " " * TIME_WIDTH + "".join(lane.center(_width(lane)) for lane in rows.lanes)
    lines = [header.rstrip()]
    states = dict.fromkeys(rows.lanes, "|")
    by_row: dict[int, list[Arrow]] = {}
    for arrow in rows.arrows:
        by_row.setdefault(arrow.row, []).append(arrow)
    for number, row in enumerate(rows.rows):
        before = dict(states)
        _update_states(states, row)
        cells = _lane_cells(rows.lanes, columns, before, picture_width)
        for arrow in by_row.get(number, ()):
            _draw_arrow(cells, columns, arrow)
        if row.lane in columns:
            cells[columns[row.lane]] = symbol(row)
        wrapped = textwrap.wrap(sentence(row), text_width, break_on_hyphens=False) or [""]
        lines.append(f"{row.at_ms:{TIME_WIDTH - 1}.1f} {''.join(cells)}  {wrapped[0]}".rstrip())
        below = "".join(_lane_cells(rows.lanes, columns, states, picture_width))
        lines += [f"{'':{TIME_WIDTH}}{below}  {text}" for text in wrapped[1:]]
    return "\n".join(lines)


def symbol(row: Row) -> str:
    """Return the character that marks a row on its lane."""
    if row.is_broken:
        return "!"
    if row.has(Kind.CRASH):
        return "X"
    return "*" if row.has(Kind.DURABLE) else "o"


def next_state(state: str, row: Row, lane: str) -> str:
    """Return a lane's state after a row: "|" up, "#" leading, ":" down."""
    for event in row.events:
        if event.node != lane:
            continue
        if event.kind is Kind.CRASH:
            state = ":"
        elif event.kind is Kind.START:
            state = "|"
        elif event.kind is Kind.ROLE:
            state = "#" if event.text.startswith("leads") else "|"
    return state


def _update_states(states: dict[str, str], row: Row) -> None:
    for lane, state in states.items():
        states[lane] = next_state(state, row, lane)


def _width(lane: str) -> int:
    return CLIENT_WIDTH if len(lane) >= LANE_WIDTH else LANE_WIDTH


def _columns(lanes: tuple[str, ...]) -> dict[str, int]:
    columns, at = {}, 0
    for lane in lanes:
        columns[lane] = at + _width(lane) // 2
        at += _width(lane)
    return columns


def _lane_cells(
    lanes: tuple[str, ...], columns: dict[str, int], states: dict[str, str], width: int
) -> list[str]:
    cells = [" "] * width
    for lane in lanes:
        cells[columns[lane]] = states[lane]
    return cells


def _draw_arrow(cells: list[str], columns: dict[str, int], arrow: Arrow) -> None:
    start, end = columns[arrow.source], columns[arrow.target]
    step = 1 if end > start else -1
    for at in range(start + step, end, step):
        if cells[at] == " ":
            cells[at] = "-"
    if arrow.is_lost:
        cells[start + step * max(2, (abs(end - start)) // 2)] = "x"
    else:
        cells[end - step] = ">" if step > 0 else "<"
