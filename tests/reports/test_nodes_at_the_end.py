"""What the page says of the nodes at the end: what a target does not show is no number."""

from __future__ import annotations

from shaketable.reports.run_page.view import drain_rows


def test_what_a_target_does_not_show_is_missing() -> None:
    shown = {"role": "leader", "term": 3, "leader": "n0", "committed_index": 0, "end_index": 7}
    hidden = {"role": "up", "term": 0, "leader": None, "committed_index": -1, "end_index": -1}
    leads, up, silent = drain_rows({"nodes": {"n0": shown, "n1": hidden, "n2": None}})
    assert (leads.term, leads.committed_index, leads.end_index) == (3, 0, 7)
    for row in (up, silent):
        assert (row.term, row.leader, row.committed_index, row.end_index) == (None,) * 4
    assert (up.role, silent.role) == ("up", None)
