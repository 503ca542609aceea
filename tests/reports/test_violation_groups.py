from __future__ import annotations

import pyarrow as pa
import pytest

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.run_page.violations import (
    AROUND,
    PICTURES_MAX,
    SHOWN_MAX,
    OperationLookup,
    group_findings,
    kind_totals,
)

MS = 1_000_000
WINDOW = FaultWindow(
    3, "partition", "isolate leader n0", 100 * MS, 200 * MS, took_effect=True, evidence=""
)


def operations(count: int = 400, key: str = "t/0") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "op": 2 * n, "process": n % 5, "f": "append", "key": key, "input": 1000 + n,
                "offset": n, "call_ns": n * MS, "return_ns": n * MS + MS // 2, "outcome": "ok",
                "node": "n0",
            }
            for n in range(count)
        ],
        schema=OPERATIONS,
    )  # fmt: skip


def lost(n: int, **details: object) -> dict:
    return {
        "kind": "lost-append", "message": f"lost {n}", "key": "t/0", "offset": n,
        "operations": [2 * n], "details": details,
    }  # fmt: skip


def test_many_alike_are_one_group_and_the_rest_is_counted() -> None:
    findings = [lost(n) for n in range(110, 190)]
    [group] = group_findings(findings, {}, OperationLookup(operations(), (WINDOW,)))
    assert group.total == 80
    assert len(group.shown) == SHOWN_MAX
    assert group.title == (
        "lost-append, 80 times: t/0 offsets 110 to 189, under partition 3 (isolate leader n0)"
    )
    assert len([v for v in group.shown if v.around]) == PICTURES_MAX
    assert len(group.detailed) == PICTURES_MAX


def test_evidence_comes_from_the_operation_where_the_checker_gave_none() -> None:
    [group] = group_findings([lost(150)], {}, OperationLookup(operations(), (WINDOW,)))
    [violation] = group.shown
    assert (violation.value, violation.acknowledged_by) == (1150, "n0")
    assert violation.acknowledged_ns == 150 * MS + MS // 2
    assert violation.fault == "partition 3 (isolate leader n0)"
    assert violation.windows == (WINDOW,)


def test_the_checkers_own_evidence_is_kept_and_the_unknown_is_shown() -> None:
    finding = lost(
        150,
        value=7,
        acknowledged_by="n2",
        fault=3,
        instead={"n1": "value 9", "n2": None},
        copies=[1, 2],
        faults=["kill 4 (kill n1)", "partition 3 (isolate leader n0)"],
        held_by=[],
    )
    [group] = group_findings([finding], {}, OperationLookup(operations(), (WINDOW,)))
    [violation] = group.shown
    assert (violation.value, violation.acknowledged_by) == (7, "n2")
    assert violation.instead == (("n1", "value 9"), ("n2", "nothing"))
    assert group.places == ("n1", "n2")
    assert violation.evidence == (
        ("copies", "1, 2"),
        ("faults", "kill 4 (kill n1), partition 3 (isolate leader n0)"),
        ("held_by", "none"),
    )
    assert violation.fault == "partition 3 (isolate leader n0)"


def test_the_neighbours_are_of_the_same_queue_and_near() -> None:
    both = pa.concat_tables([operations(), operations(key="t/1")])
    [group] = group_findings([lost(150)], {}, OperationLookup(both, ()))
    around = group.shown[0].around
    assert {row.key for row in around} == {"t/0"}
    assert {row.op for row in around if row.marked} == {300}
    assert [row.offset for row in around] == list(range(150 - AROUND, 150 + AROUND + 1))


def test_two_operations_far_apart_are_both_shown() -> None:
    finding = {**lost(20), "operations": [40, 760]}
    [group] = group_findings([finding], {}, OperationLookup(operations(), ()))
    assert {row.op for row in group.shown[0].around if row.marked} == {40, 760}


def test_kinds_and_faults_separate_groups_and_each_gets_room() -> None:
    findings = [lost(n) for n in range(60, 180)]
    findings += [{**lost(n), "kind": "wrong-read"} for n in range(5)]
    groups = group_findings(findings, {}, OperationLookup(operations(), (WINDOW,)))
    assert [(group.kind, group.total) for group in groups] == [
        ("lost-append", 80), ("lost-append", 40), ("wrong-read", 5),
    ]  # fmt: skip
    assert all(group.shown for group in groups)
    assert all(group.detailed for group in groups)
    assert sum(len(group.shown) for group in groups) <= SHOWN_MAX


def test_more_groups_than_room_are_counted() -> None:
    findings = [{**lost(n), "kind": f"kind-{n}"} for n in range(30)]
    groups = group_findings(findings, {}, OperationLookup(operations(), ()))
    assert sum(group.total for group in groups) == 30
    assert groups[-1].shown == ()
    assert "more in" in groups[-1].title


def test_a_finding_without_a_place_or_operations_is_shown_plainly() -> None:
    finding = {"kind": "prefix", "message": "n1 and n2 differ at index 4", "key": None,
               "offset": None, "operations": [], "details": {"terms": {"n1": 2}}}  # fmt: skip
    [group] = group_findings([finding], {}, OperationLookup(OPERATIONS.empty_table(), ()))
    assert group.title == "prefix"
    assert group.shown[0].around == ()
    assert group.detailed == group.shown


def test_a_kind_of_which_not_all_were_kept_says_so_and_no_other_does() -> None:
    findings = [lost(n) for n in range(60, 180)] + [{**lost(7), "kind": "gap"}]
    totals = {"lost-append": 15_447, "gap": 1}
    groups = group_findings(findings, totals, OperationLookup(operations(), (WINDOW,)))
    assert [group.title.partition(":")[0] for group in groups] == [
        "lost-append, 80 kept of 15,447 in all", "lost-append, 40 kept of 15,447 in all", "gap",
    ]  # fmt: skip


def test_totals_are_the_checkers_counts_not_what_was_kept() -> None:
    kept = [lost(n) for n in range(3)]
    both = [*kept, {**lost(9), "kind": "altered"}]
    counts = {"acknowledged": 99_999, "lost-append": 15_447, "altered": 1}
    verdict = {"findings": both, "findings_total": 15_448, "counts": counts}
    assert kind_totals(verdict) == {"lost-append": 15_447, "altered": 1}
    assert kind_totals({"findings": kept, "findings_total": 50}) == {"lost-append": 50}
    assert kind_totals({"findings": both, "findings_total": 50}) == {"lost-append": 3, "altered": 1}
    assert kind_totals({}) == {}


SEEN = "seen under partition 3 (isolate leader n0)"
UNDER = "under partition 3 (isolate leader n0)"


@pytest.mark.parametrize(
    ("checker", "kind", "words"),
    [
        ("linearizable-log", "inconsistent-read", SEEN),
        ("linearizable-log", "stale-end", SEEN),
        ("linearizable-log", "read-went-back", SEEN),
        ("linearizable-log", "duplicate", SEEN),
        ("linearizable-log", "stale-read (not promised)", SEEN),
        ("linearizable-log", "offset-given-twice", UNDER),
        ("linearizable-log", "append-order", UNDER),
        ("durability", "lost-append", UNDER),
        ("another", "stale-read", UNDER),
    ],
)
def test_what_was_read_is_seen_under_a_fault(checker: str, kind: str, words: str) -> None:
    finding = {**lost(150), "kind": kind, "details": {"faults": [UNDER.removeprefix("under ")]}}
    [group] = group_findings([finding], {}, OperationLookup(operations(), (WINDOW,)), checker)
    assert group.title == f"{kind}: t/0 offset 150, {words}"


def test_a_read_finding_takes_the_fault_of_its_read_not_of_the_append_it_contradicts() -> None:
    late = operations().to_pylist()[390] | {"op": 9001, "f": "read", "offset": 150}
    table = pa.concat_tables([operations(), pa.Table.from_pylist([late], schema=OPERATIONS)])
    finding = {**lost(150), "kind": "inconsistent-read", "operations": [9001, 300]}
    around = OperationLookup(table, (WINDOW,))
    [group] = group_findings([finding], {}, around, "linearizable-log")
    assert group.title == "inconsistent-read: t/0 offset 150"  # the append's fault was long over


def test_a_fault_that_began_after_the_acknowledgement_is_said_as_it_is() -> None:
    said = "just before partition 3 (isolate leader n0)"
    for details in ({"faults": [said]}, {"faults": [said], "fault": 3}):
        finding = lost(90, **details)
        [group] = group_findings([finding], {}, OperationLookup(operations(), (WINDOW,)))
        assert group.title == f"lost-append: t/0 offset 90, {said}"
