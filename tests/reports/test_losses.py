"""How much of what was acknowledged is gone, in all and by fault."""

from __future__ import annotations

from typing import Any

from shaketable.reports.gating.run_measures import losses


def finding(kind: str, **details: Any) -> dict[str, Any]:
    return {"kind": kind, "message": "m", "operations": [1], "details": details}


def verdict(*findings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"valid": not findings, "findings": list(findings), "observed": [], "data": {}, **more}


def test_losses_are_counted_by_the_fault_under_which_they_were_acknowledged() -> None:
    found = losses(
        {
            "checkers": {
                "durability": verdict(
                    finding("lost-append", fault=3),
                    finding("lost-append", faults=["kill 4 (kill leader n0)"]),
                    finding("lost-append", fault="just before pause 5 (pause n1)"),
                    finding("lost-append"),
                    finding("altered", fault=3),
                ),
                # The same losses, seen by another checker, are not added to them.
                "log-anomalies": verdict(finding("lost-write", faults=["kill 4 (kill n0)"])),
            }
        }
    )
    assert found.by_fault == {3: 2, 4: 1, 5: 1}
    assert found.total == 5
    assert found.is_cut  # one names no fault: what the faults are charged with is not all
    assert found.is_least  # who looks at answers alone sees losses, not each of them


def test_those_that_were_not_kept_count_in_all() -> None:
    kept = verdict(finding("lost-append", fault=1), counts={"lost-append": 900}, findings_total=900)
    found = losses({"checkers": {"durability": kept}})
    assert (found.total, found.by_fault, found.is_cut) == (900, {1: 1}, True)


def test_what_was_never_promised_is_lost_all_the_same() -> None:
    seen = {"valid": True, "findings": [], "observed": [finding("lost-message", fault=2)],
            "data": {"observed": {"lost-message": 12}}}  # fmt: skip
    found = losses({"checkers": {"group-delivery": seen}})
    assert (found.total, found.by_fault) == (12, {2: 1})


def test_a_message_that_one_read_missed_and_that_is_there_at_the_end_is_not_lost() -> None:
    missed = {"valid": True, "findings": [], "observed": [finding("unseen", fault=2)],
              "data": {"observed": {"unseen": 5}}}  # fmt: skip
    alone = losses({"checkers": {"unseen": missed}})
    assert (alone.total, alone.by_fault) == (5, {2: 1})  # nothing knows what is there at the end
    for certain in ("durability", "final-reads"):
        found = losses({"checkers": {"unseen": missed, certain: verdict()}})
        assert (found.total, found.by_fault) == (0, {})
        not_judged = verdict(data={"not_judged": True})
        assert losses({"checkers": {"unseen": missed, certain: not_judged}}).total == 5
        some = verdict(counts={"acknowledged": 10_000, "looked_at": 3})
        assert losses({"checkers": {"unseen": missed, certain: some}}).total == 5
        stale = verdict(counts={"acknowledged": 3, "looked_at": 3, "not_found": 1})
        assert losses({"checkers": {"unseen": missed, certain: stale}}).total == 5
        unpromised = verdict(observed=[finding("lost-append")] * 2)
        assert losses({"checkers": {"unseen": missed, certain: unpromised}}).total == 5
        lost = verdict(finding("lost-append", fault=1))
        assert losses({"checkers": {"unseen": missed, certain: lost}}).total == 5


def test_no_loss_is_only_said_where_somebody_looked() -> None:
    assert losses({"checkers": {"durability": verdict()}}).total == 0
    unsure = losses({"checkers": {"durability": verdict(valid="unknown")}})
    assert (unsure.total, unsure.why) == (None, "durability came to no verdict")
    assert losses({"checkers": {"stats": verdict()}}).total is None
    assert losses({}).total is None


def test_hostile_results_are_no_losses() -> None:
    hostile = {"findings": [3, {"kind": "lost-append", "details": {"fault": "kill 99999999999 ("}}],
               "counts": {"lost-append": "many"}, "observed": "x", "data": [1]}  # fmt: skip
    found = losses({"checkers": {"durability": hostile, "b": 7}})
    assert (found.total, found.by_fault) == (1, {})
