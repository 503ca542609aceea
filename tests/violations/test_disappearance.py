"""When something acknowledged went missing: between which answers, and what struck in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reports
from reports.run_page.view import build_view
from reports.violation_page.building import build_pages

MS = 1_000_000
S = 1_000 * MS
KEY = "shaketable/0"


def lost_page(folder: Path) -> Any:
    view = build_view(folder)
    return next(page for page in build_pages(view) if page.violation.kind == "lost-append")


def test_a_second_append_at_the_offset_is_the_first_sign(lost: Any) -> None:
    page = lost_page(lost.write())
    assert page.claim.gone == (
        "No client is known to have read it. The first sign that it was gone came at 12.003 s: n1"
        " gave the same offset to client 1's append of 99. All the while partition 0 was on,"
        " isolate leader n0, from 10.000 s to 14.000 s (90 kB held)."
    )
    keys = [(moment.time_ns, moment.what) for moment in page.moments if moment.is_key]
    assert [time_ns for time_ns, _ in keys] == [10 * S, 10 * S + 10 * MS, 12 * S + 3 * MS]
    assert keys[-1][1].endswith("at offset 3: the first sign that it is gone")
    wrong = [(step.row.op, step.legal) for step in page.steps if step.is_wrong]
    assert wrong == [
        (6, "it stands at offset 3 from now on"),
        (8, "any other offset: this one was given to the append of 17"),
        (10, "17: it was acknowledged there first"),
    ]


@pytest.mark.parametrize(
    ("f", "columns", "words"),
    [
        ("read", {"offset": 3}, "n1 answered client 0's read of it with nothing"),
        ("read", {"offset": 3, "output": 5}, "n1 answered client 0's read of it with 5"),
        ("end", {"output": 3}, "n1 told client 0 that the queue ends at 3"),
        ("append", {"input": 8, "offset": 2}, "n1 gave offset 2 to client 0's append of 8"),
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
    assert (
        "Evidence for (2): n0 still answered a read with it at 11.001 s, and does not hold it now."
        in lost_page(lost.write()).meaning
    )


def test_nothing_is_made_up_where_nobody_saw_it_gone(lost: Any) -> None:
    lost.operations = [row for row in lost.operations if row["op"] not in (8, 10)]
    assert "No client was told anything that shows it gone" in lost_page(lost.write()).claim.gone


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
        10 * S, "fault 0, partition: isolate leader n0, begins; it bit: 90 kB held",
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
