"""Cycles of dependencies: as a graph, in words, and on the page of `check`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.reports.check_page.checked_history import CheckedHistory
from shaketable.reports.check_page.page import render_page
from shaketable.reports.check_page.pictures import (
    EDGES_TOLD_MAX,
    LINKS_MAX,
    NODE_HEIGHT,
    NODE_WIDTH,
    CycleGraph,
    cycle_graph_of,
)

KINDS = ("ww", "wr", "rw", "process", "realtime")


def links(count: int) -> list[dict[str, Any]]:
    return [
        {"from": n, "to": (n + 1) % count, "edge": KINDS[n % len(KINDS)], "why": f"why {n}"}
        for n in range(count)
    ]


def drawn(count: int) -> CycleGraph:
    found = cycle_graph_of({"cycle": links(count)}, lambda op: (f"append {op}", f"client {op}"))
    assert found is not None
    return found


@pytest.mark.parametrize("count", range(1, LINKS_MAX + 1))
def test_boxes_stand_apart_inside_the_picture_and_edges_join_them_in_turn(count: int) -> None:
    cycle = drawn(count)
    assert [node.op for node in cycle.nodes] == list(range(count))
    assert [(edge.source, edge.target) for edge in cycle.edges] == [
        (n, (n + 1) % count) for n in range(count)
    ]
    for node in cycle.nodes:
        assert NODE_WIDTH / 2 <= node.x <= cycle.width - NODE_WIDTH / 2
        assert NODE_HEIGHT / 2 <= node.y <= cycle.height - NODE_HEIGHT / 2
    for one, other in pairwise(sorted(cycle.nodes, key=lambda node: (node.y, node.x))):
        apart_x = abs(one.x - other.x) >= NODE_WIDTH
        assert apart_x or abs(one.y - other.y) >= NODE_HEIGHT, (one, other)
    for edge in cycle.edges:
        numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", edge.path)]
        assert len(numbers) in (6, 8)
        assert 0 <= edge.x <= cycle.width
        assert 0 <= edge.y <= cycle.height


def test_the_words_say_what_each_edge_means() -> None:
    cycle = drawn(5)
    assert [edge.kind for edge in cycle.edges] == list(KINDS)
    assert len({edge.meaning for edge in cycle.edges}) == len(KINDS)
    assert "leads back to op 0 in 5 steps" in cycle.conclusion


def test_a_long_cycle_is_told_and_not_drawn() -> None:
    cycle = drawn(EDGES_TOLD_MAX + 5)
    assert cycle.nodes == ()
    assert len(cycle.edges) == EDGES_TOLD_MAX
    assert cycle.left_out == 5


@pytest.mark.parametrize(
    "cycle", [None, [], 7, {}, [None, 7, {}, {"from": 1}, {"from": "1", "to": 2}]]
)
def test_what_is_no_cycle_is_none(cycle: object) -> None:
    assert cycle_graph_of({"cycle": cycle}, lambda _op: ("", "")) is None


def test_the_page_of_check_draws_it() -> None:
    rows = {
        n: {"op": n, "process": n, "f": "append", "key": "q", "input": 7 + n, "output": None,
            "expected": None, "offset": n, "call_ns": n, "return_ns": n + 5, "outcome": "ok",
            "error": None, "node": None, "extra": None}
        for n in range(2)
    }  # fmt: skip
    why = "<script>hostile</script>"
    cycle = [{**links(2)[0], "why": why}, {**links(2)[1], "edge": "realtime"}]
    finding = Finding("G0-realtime", "a cycle", "q", 0, (0, 1), {"cycle": cycle})
    verdict = Verdict("cycles", Outcome.INVALID, "1 G0-realtime", (finding,), 1)
    history = CheckedHistory("h.edn", "edn", None, "local", 0.1, {"ok": 2, "fail": 0, "info": 0},
                             1, 2, (verdict,), rows=rows)  # fmt: skip
    page = render_page([history])
    assert page.count('<svg class="cycle"') == 1
    assert "append 7 at 0" in page
    assert "1 ww" in page
    assert "2 realtime" in page
    assert "<script" not in page
