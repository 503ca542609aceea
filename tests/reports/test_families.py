"""The report adds up, by family, which faults took effect."""

from __future__ import annotations

from shaketable.reports.run_page.view import families


def test_families_add_up_and_older_results_have_none() -> None:
    by_name = {
        "kill": {"family": "process", "done": 3, "took_effect": 2},
        "pause": {"family": "process", "done": 1, "took_effect": 1},
        "cpu": {"family": "resources", "done": 0, "took_effect": 0},
        "odd": {"done": 2},
    }
    told = families({"faults": {"applied": 6, "by_name": by_name}})
    assert told == (("other", 0, 2), ("process", 3, 4), ("resources", 0, 0))
    assert families({"faults": {"applied": 6}}) == families({}) == ()
