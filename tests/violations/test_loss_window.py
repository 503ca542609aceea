"""When something acknowledged went missing: between which answers, and what struck in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shaketable import reports
from shaketable.reports.run_page.view import build_view
from shaketable.reports.violation_page.building import build_pages

MS = 1_000_000
S = 1_000 * MS
KEY = "shaketable/0"


def lost_page(folder: Path) -> Any:
    view = build_view(folder)
    return next(page for page in build_pages(view) if page.violation.kind == "lost-append")


def test_a_second_append_at_the_offset_is_the_first_sign(lost: Any) -> None:
    page = lost_page(lost.write())
    assert page.claim.gone == (
        "No client is known to have read it afterwards. The first sign that it was gone came at"
        " 12.003 s: n1 gave the same offset to client 1's append of 99. All the while there was"
        " partition 0, isolate leader n0, from 10.000 s to 14.000 s (90 kB held)."
    )
    keys = [(moment.time_ns, moment.what) for moment in page.moments if moment.is_key]
    assert [time_ns for time_ns, _ in keys] == [10 * S, 10 * S + 10 * MS, 12 * S + 3 * MS]
    assert keys[-1][1].endswith("at offset 3: the first sign that it is gone")
    wrong = [(step.row.op, step.legal) for step in page.steps if step.is_wrong]
    assert wrong == [
        (6, "it is at offset 3 from now on"),
        (8, "any other offset: this one was given to the append of 17"),
        (10, "17: it was acknowledged there first"),
    ]


@pytest.mark.parametrize(
    ("f", "columns", "words"),
    [
        ("read", {"offset": 3}, "n1 answered client 0's read of it with nothing"),
        ("read", {"offset": 3, "output": 5}, "n1 answered client 0's read of it with 5"),
        ("end", {"output": 3}, "n1 answered client 0 that the queue ends at 3"),
        ("append", {"input": 8, "offset": 2}, "n1 gave offset 2 to client 0's append of 8"),
        (
            "poll",
            {"extra": '{"output":[[2,12],[3,99]]}'},
            "n1 answered client 0's poll of it with 12 @2, 99 @3",
        ),
        (
            "read",
            {"offset": 3, "extra": '{"output":"rubbish"}'},
            "n1 answered client 0's read of it with rubbish",
        ),
    ],
)
def test_what_cannot_be_while_it_stands_there_is_a_sign(
    lost: Any, f: str, columns: Any, words: str
) -> None:
    lost.op(f, 11 * S, 11 * S + MS, node="n1", **columns)
    gone = lost_page(lost.write()).claim.gone
    assert f"The first sign that it was gone came at 11.001 s: {words}." in gone


@pytest.mark.parametrize(
    ("f", "columns"),
    [
        ("read", {"offset": 3, "output": 17}),  # it is still there
        ("read", {"offset": 2}),
        ("end", {"output": 4}),
        ("append", {"input": 8, "offset": 4}),
        ("append", {"input": 8, "offset": 2, "outcome": "fail"}),
        ("read", {"offset": 3, "outcome": "info"}),
        ("poll", {"extra": '{"output":[[3,17]]}'}),
        ("poll", {"extra": '{"output":[[3,"x"]]}'}),
        ("poll", {"extra": '{"output":[[13,99],[4,3]]}'}),
        ("poll", {"extra": "[3, no JSON"}),
    ],
)
def test_what_can_be_while_it_stands_there_is_no_sign(lost: Any, f: str, columns: Any) -> None:
    lost.op(f, 11 * S, 11 * S + MS, node="n1", **columns)
    assert "gone came at 12.003 s" in lost_page(lost.write()).claim.gone


def test_a_look_that_was_late_and_found_it_afterwards_is_no_sign(lost: Any) -> None:
    lost.op("read", 11 * S, 11 * S + MS, offset=3, node="n2")  # found nothing: it was behind
    lost.op("read", 11 * S + 5 * MS, 11 * S + 6 * MS, offset=3, output=17)
    gone = lost_page(lost.write()).claim.gone
    assert gone.startswith("Client 1 still read it at 11.006 s, answered by n0. The first sign")
    assert "came at 12.003 s" in gone


def test_what_follows_names_the_evidence_for_each_way_to_lose_it(lost: Any) -> None:
    meaning = lost_page(lost.write()).meaning
    assert "(1) no majority held the append yet" in meaning
    assert (
        "Evidence for (1): it was called 8 ms after partition 0 had begun, which struck the leader"
        " (isolate leader n0)." in meaning
    )
    assert "Evidence for (2)" not in meaning
    assert meaning.endswith(
        "Which nodes had the append when it was acknowledged, and who voted for the leader of term"
        " 2, was not recorded here; what the nodes printed, below, may tell."
    )
    lost.op("read", 11 * S, 11 * S + MS, offset=3, output=17)
    assert "Evidence for (2)" not in lost_page(lost.write()).meaning  # n0 had it in any case
    lost.op("read", 11 * S, 11 * S + 2 * MS, offset=3, output=17, node="n2")
    assert (
        "Evidence for (2): n2 still answered a read with it at 11.002 s, and does not hold it now."
        in lost_page(lost.write()).meaning
    )


def test_a_power_loss_in_between_is_evidence_and_one_before_is_none(lost: Any) -> None:
    lost.faults = [("power", 11 * S, 11 * S + S // 2, "power loss of all nodes", "n0 90 bytes")]
    meaning = lost_page(lost.write()).meaning
    assert (
        "Evidence for (2): power 0 (power loss of all nodes) came in between, at 11.000 s"
        in meaning
    )
    lost.faults = [("power", 5 * S, 15 * S, "power loss of all nodes", "n0 90 bytes")]
    page = lost_page(lost.write())
    assert "Evidence for (2)" not in page.meaning
    assert "All the while there was power 0" in page.claim.gone


def test_a_fault_that_struck_another_leader_is_no_evidence(lost: Any) -> None:
    lost.op("append", 13 * S, 13 * S + MS, input=55, offset=4, node="n1")
    lost.checkers["durability"]["findings"][0].update(
        operations=[12], offset=4,
        details={"value": 55, "acknowledged_by": "n1", "acknowledged_ns": 13 * S + MS,
                 "held_by": []},
    )  # fmt: skip
    lost.keep_entries(
        places=[{"key": KEY, "offset": 4, "index": None, "at": {n: [4] for n in ("n0", "n1")}}],
        columns=["index", "term", "crc", "key", "offset", "value", "size", "problem"],
        entries={node: [[4, 5, 800, KEY, 4, 99, 90, None]] for node in ("n0", "n1", "n2")},
    )
    meaning = lost_page(lost.write()).meaning
    assert "n1 led term 2 when it acknowledged the append." in meaning
    assert "is of term 5" in meaning
    assert "Evidence for (1)" not in meaning


def test_what_was_never_promised_to_be_current_is_no_sign(lost: Any) -> None:
    lost.facts["promises"] = {"linearizable": []}
    lost.op("read", 11 * S, 11 * S + MS, offset=3, node="n2")
    lost.op("end", 11 * S, 11 * S + MS, output=1, node="n2")
    assert "gone came at 12.003 s" in lost_page(lost.write()).claim.gone


def test_two_who_answer_side_by_side_are_told(lost: Any) -> None:
    lost.op("read", 15 * S, 15 * S + MS, offset=3, output=17)
    gone = lost_page(lost.write()).claim.gone
    assert gone.startswith(
        "Client 0 still read it at 15.001 s, answered by n0, after another client had been given an"
        " answer that contradicts it: two nodes answered side by side. The first sign that it was"
        " gone came at 12.003"
    )


def test_of_many_faults_the_rest_is_counted(lost: Any) -> None:
    kills = [
        ("kill", 10 * S + n * 300 * MS, 10 * S + n * 300 * MS + MS, f"kill n{n}", "")
        for n in range(1, 5)
    ]
    lost.faults = kills
    gone = lost_page(lost.write()).claim.gone
    assert "In between came kill 0, kill n1, from 10.300 s to 10.301 s." in gone
    assert gone.endswith("1 more fault struck in between.")


def test_a_fault_that_was_over_soon_was_not_there_all_the_while(lost: Any) -> None:
    lost.faults = [("partition", 5 * S, 10 * S + 11 * MS, "isolate leader n0", "")]
    gone = lost_page(lost.write()).claim.gone
    assert gone.endswith(
        "At first there was partition 0, isolate leader n0, from 5.000 s to 10.011 s."
    )


@pytest.mark.parametrize("odd", [True, 10**19, -(10**19), "17", None, 1.5, [17]])
@pytest.mark.parametrize("name", ["value", "acknowledged_ns"])
def test_a_finding_of_odd_values_is_no_traceback(lost: Any, name: str, odd: Any) -> None:
    lost.checkers["durability"]["findings"][0]["details"][name] = odd
    reports.write(lost.write())


def test_who_was_told_first_is_right_not_who_asked_first(lost: Any) -> None:
    lost.op("append", 9 * S, 13 * S, input=50, offset=3, node="n1")
    page = lost_page(lost.write())
    read = next(step for step in page.steps if step.row.f == "read")
    assert read.legal == "17: it was acknowledged there first"


def test_the_moment_is_marked_where_a_term_began(lost: Any) -> None:
    lost.find("committed-prefix", "divergent", [], key=None, index=4, node="n0", other="n1")
    view = build_view(lost.write())
    page = next(page for page in build_pages(view) if page.violation.kind == "divergent")
    assert page.moment_ns == 11 * S
    assert [m.what for m in page.moments if m.is_key and m.role == "leader"] == [
        "n1 leads in term 2, as polled"
    ]


def test_the_targets_own_words_are_its_own(lost: Any, page_of: Any) -> None:
    lost.facts["promises"] = {"note": "A majority has it. Reads are current."}
    reports.write(lost.write())
    text = page_of(lost.folder, "lost-append")
    assert "The target promises: a majority has it. Reads are current." in text
    lost.facts["promises"] = {"note": "Raised by hand to what dledger promises. One disk has it."}
    reports.write(lost.write())
    assert "says of itself" not in page_of(lost.folder, "lost-append")


def test_nothing_is_made_up_where_nobody_saw_it_gone(lost: Any, page_of: Any) -> None:
    lost.operations = [row for row in lost.operations if row["op"] not in (8, 10)]
    assert "No answer to a client is known to show it gone" in lost_page(lost.write()).claim.gone
    reports.write(lost.folder)
    assert "until it was seen to be gone" not in page_of(lost.folder, "lost-append")


def test_a_node_that_ended_by_itself_is_told(lost: Any) -> None:
    lost.facts["exits"] = [
        {"node": "n2", "incarnation": 1, "returncode": 1, "asked": False,
         "last_line": "InvariantError: entry 4 is committed", "at_ns": 12 * S},
        {"node": "n1", "incarnation": 1, "returncode": -9, "asked": True, "last_line": "",
         "at_ns": 12 * S},
        {"node": "n0", "incarnation": 1, "returncode": 1, "asked": False, "last_line": "far away",
         "at_ns": 19 * S},
        "no exit", {"node": None, "at_ns": "soon"},
    ]  # fmt: skip
    told = [(m.time_ns, m.what) for m in lost_page(lost.write()).moments if m.role == "node"]
    words = "with exit code 1: InvariantError: entry 4 is committed"
    assert told == [(12 * S, f"n2 is seen to have ended by itself {words}")]


def test_what_happened_stands_among_the_lines_of_the_nodes(lost: Any) -> None:
    page = lost_page(lost.write())
    assert page.lines.spans == ((5 * S, 19 * S),)
    told = [(line.time_ns, line.text) for line in page.lines.lines if not line.node]
    assert told[0] == (
        10 * S, "fault 0, partition: isolate leader n0, starts; it took effect: 90 kB held",
    )  # fmt: skip
    assert any(text.startswith("n0 answers client 0: append 17") for _, text in told)


def test_a_planted_bug_is_said_before_all_else(lost: Any, page_of: Any) -> None:
    lost.facts |= {"mutant": "ack-before-quorum", "mutant_breaks": "The leader <hurries>."}
    reports.write(lost.write())
    text = page_of(lost.folder, "lost-append")
    planted = text.index('id="planted"')
    assert planted < text.index('id="claim"')
    assert "<b>ack-before-quorum</b>: the leader &lt;hurries&gt;." in text[planted : planted + 400]
    lost.facts = {}
    reports.write(lost.write())
    assert 'id="planted"' not in page_of(lost.folder, "lost-append")
