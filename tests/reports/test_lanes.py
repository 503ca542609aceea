from __future__ import annotations

from shaketable.reports.availability import phase_spans
from shaketable.reports.elections import NO_ANSWER, leader_changes, role_spans


def status(time_ns: int, node: str, role: str | None, term: int | None) -> dict:
    return {"time_ns": time_ns, "node": node, "role": role, "term": term, "end_index": time_ns}


def test_spans_join_while_role_and_term_stay_and_end_with_the_run() -> None:
    rows = [
        status(5, "n1", "follower", 1),
        status(3, "n0", "leader", 1),
        status(9, "n0", "leader", 1),
        status(12, "n0", None, None),
        status(20, "n0", "follower", 2),
        status(15, "n1", "leader", 2),
    ]
    spans = [(s.node, s.role, s.term, s.start_ns, s.stop_ns) for s in role_spans(rows, 30)]
    assert spans == [
        ("n0", "leader", 1, 3, 12),
        ("n0", NO_ANSWER, None, 12, 20),
        ("n0", "follower", 2, 20, 30),
        ("n1", "follower", 1, 5, 15),
        ("n1", "leader", 2, 15, 30),
    ]


def test_a_leader_elected_again_is_no_change() -> None:
    def changes(*leaders: tuple[str, int]) -> int:
        rows = [status(n, node, "leader", term) for n, (node, term) in enumerate(leaders)]
        return leader_changes(role_spans(rows, 100))

    assert changes() == 0
    assert changes(("n0", 1)) == 0
    assert changes(("n0", 1), ("n0", 3)) == 0
    assert changes(("n0", 1), ("n1", 2), ("n0", 4)) == 2
    # The deposed leader that still believes in term 1 comes back to sight: no change.
    assert changes(("n0", 1), ("n1", 2), ("n0", 1)) == 1
    # Terms may begin at 0, as Kafka's epochs do.
    assert changes(("n0", 0), ("n1", 1), ("n0", 0)) == 1
    # A target without terms: in time.
    assert changes(("n0", 0)) == 0
    assert changes(("n0", 0), ("n1", 0), ("n2", 0)) == 2


def test_a_phase_that_did_not_end_lasts_until_the_end() -> None:
    rows = [
        {"name": "steady", "start_ns": 4, "stop_ns": 9},
        {"name": "chaos", "start_ns": 9, "stop_ns": None},
        {"name": "heal", "start_ns": None},
    ]
    assert [(s.name, s.start_ns, s.stop_ns) for s in phase_spans(rows, 50)] == [
        ("steady", 4, 9),
        ("chaos", 9, 50),
    ]
    by_name = {"steady": {"start_ns": 4, "stop_ns": 9}}
    assert [s.name for s in phase_spans(by_name, 50)] == ["steady"]
    assert phase_spans(None, 50) == ()


def test_a_node_without_a_role_is_up_and_has_no_term() -> None:
    rows = [status(1, "n0", "up", 0), status(4, "n0", None, None), status(6, "n0", "up", 0)]
    spans = [(s.role, s.term, s.start_ns) for s in role_spans(rows, 9)]
    assert spans == [("up", None, 1), (NO_ANSWER, None, 4), ("up", None, 6)]
