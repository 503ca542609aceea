from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.elections import Election, aimed_plans, elections, hits_leader
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_view import RoleSpan

KILL = {"victims": ["n0"], "leader": "n0"}


def span(node: str, role: str, term: int | None, start: int) -> RoleSpan:
    return RoleSpan(node, role, term, start, start + 1)


def window(fault: int, start: int, stop: int, took_effect: bool = True) -> FaultWindow:
    return FaultWindow(fault, "kill", "kill n0", start, stop, took_effect, "")


def links(*pairs: str) -> list[list[str]]:
    return [pair.split(">") for pair in pairs]


@pytest.mark.parametrize(
    ("plan", "nodes", "hit"),
    [
        (KILL, 3, True),
        ({"victims": ["n1"], "leader": "n0"}, 3, False),
        ({"victims": ["n1"], "leader": None}, 3, False),
        ({}, 3, False),
        ({"leader": "n0", "links": links("n0>n1", "n0>n2")}, 3, True),  # mute
        ({"leader": "n0", "links": links("n1>n0", "n2>n0")}, 3, True),  # deaf
        ({"leader": "n0", "links": links("n0>n1", "n1>n0")}, 3, False),  # n2 still answers
        ({"leader": "n0", "links": links("n1>n2", "n2>n1")}, 3, False),
        ({"leader": "n0", "links": links("n0>n1", "n2>n0")}, 4, True),  # 2 of 4 are no majority
        ({"leader": "n0", "links": links("n0>n1", "n2>n0")}, 5, False),
        ({"leader": "n0", "to": "n1"}, 3, True),  # a transfer
        ({"leader": "n0", "to": "n0"}, 3, False),
    ],
)
def test_who_is_hit(plan: dict[str, Any], nodes: int, hit: bool) -> None:
    assert hits_leader(plan, nodes) is hit


def test_a_new_leader_is_one_of_a_higher_term_before_the_next_fault() -> None:
    lanes = [
        span("n0", "leader", 1, 5),
        span("n0", "leader", 1, 14),  # the old one, seen again
        span("n1", "candidate", 2, 15),
        span("n2", "leader", 2, 17),
        span("n1", "leader", 3, 90),
    ]
    windows = [window(0, 10, 20), window(1, 40, 50), window(2, 80, 85, took_effect=False)]
    plans = dict.fromkeys(range(3), KILL)
    assert elections(lanes, windows, plans, 3) == {0: Election(7), 1: Election(None)}
    assert elections([], windows, plans, 3) == {}
    assert elections(lanes[3:], windows[:1], plans, 3) == {}  # nobody was known to lead before


def test_plans_are_read_from_events_and_nonsense_is_left_out() -> None:
    values = [json.dumps({"fault": 4, "plan": KILL}), None, "[1]", '{"fault": 1}', "{", '"x"']
    assert aimed_plans(pa.table({"value": pa.array(values, pa.string())})) == {4: KILL}


def test_a_run_says_when_the_next_one_led(clean_run: Any) -> None:
    rows = {row.window.fault: row for row in build_view(clean_run.folder).faults}
    assert (rows[0].hit_leader, rows[0].new_leader_ns) == (True, 600_000_000)
    assert (rows[1].hit_leader, rows[1].new_leader_ns) == (False, None)
