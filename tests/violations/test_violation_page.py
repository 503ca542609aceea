"""What a violation's page says, how it is linked, and that nothing hostile on it does harm."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from shaketable import reports
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_view import CheckerView, RoleSpan, Violation, ViolationGroup
from shaketable.reports.spacetime import ROLES_MAX, lay_out
from shaketable.reports.violation_page import building, violation_view
from shaketable.reports.violation_page.building import build_pages
from shaketable.reports.violation_page.moments import FAULTS_MAX, faults_near
from shaketable.reports.violation_page.violation_view import ViolationPage

MS = 1_000_000
S = 1_000 * MS
KEY = "shaketable/0"
HOSTILE = "</script><script>window.hostile=1</script><img src=x onerror=window.hostile=2>{{ 7*7 }}"
PageOf = Callable[[Path, str], str]


class Text(HTMLParser):
    """The words of a page, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self._silent = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._silent += tag in ("style", "script")
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def pages(folder: Path) -> dict[str, ViolationPage]:
    """The first page of each kind."""
    found: dict[str, ViolationPage] = {}
    for page in build_pages(build_view(folder)):
        found.setdefault(page.violation.kind, page)
    return found


@pytest.mark.parametrize("extra", ['{"request": "add the <leader>"}', None])
def test_a_request_that_was_done_is_told_in_words(
    lost: Any, page_of: PageOf, extra: str | None
) -> None:
    """In older histories it has only its number."""
    asked = lost.op("misrequest", 15 * S, 15 * S + MS, input=16, expected=16, output=0, extra=extra)
    lost.find("refusals", "not-refused", [asked])
    folder = lost.write()
    reports.write(folder)
    said = f'misrequest "add the <leader>" (op {asked})' if extra else f"16 → 16 (op {asked})"
    page = page_of(folder, "not-refused")
    assert said in Text(page).text
    assert "add the <leader>" not in page
    run_page = Text((folder / "report.html").read_text()).text
    assert ('misrequest "add the <leader>"' in run_page) == bool(extra)


def test_a_lost_append_is_told_from_promise_to_cause(lost: Any, page_of: PageOf) -> None:
    folder = lost.write()
    reports.write(folder)
    page = Text(page_of(folder, "lost-append"))
    for said in (
        "An acknowledged append is kept",
        f"Client 0 appended the value 17 to {KEY}. n0 acknowledged it at offset 3, 10.010 s into",
        "this append is lost: none of the 3 nodes holds it there",
        "partition 0 (isolate leader n0), which had begun 10 ms before.",
        "n0 led term 1 when it acknowledged the append.",
        "The entry at its offset now is of term 2, which n1 led",
        "n1 answers client 1: append 99 is acknowledged, at offset 3",
        "n1 has value 99 (entry 4, term 2); its log ends at index 4",
        f"{KEY} @3: 99 term 2, crc 00000320",
        "level=INFO event=role role=leader term=2",
        "./shaketable run --seed 7",
        "90 kB held",
    ):
        assert said in page.text, said
    assert "../report.html#checker-durability" in page.links


def test_the_report_the_junit_file_and_the_summary_lead_to_it(lost: Any) -> None:
    from shaketable.harness.terminal import summary  # noqa: PLC0415 - reports first

    folder = lost.write()
    reports.write(folder)
    view = build_view(folder)
    path = "violations/001-lost-append.html"
    report = Text((folder / "report.html").read_text(encoding="utf-8"))
    assert report.links.count(path) >= 3  # the banner, the table, the details
    junit = ElementTree.parse(folder / "junit.xml")
    assert f"{folder}/{path}" in "".join(
        failure.text or "" for failure in junit.getroot().iter("failure")
    )
    lines = summary.rows(view, "store/x/report.html")
    assert ("violation", f"store/x/{path}") in lines
    assert any(path in text for label, text in lines if label == "finding")
    assert all((folder / link).exists() for link in report.links if link.startswith("violations"))


def test_what_was_legal_stands_beside_what_was_seen(lost: Any) -> None:
    lost.op("read", 15 * S, 15 * S + MS, offset=3, node="n2")
    lost.find("linearizable-log", "stale-read", [12, 6], offset=3)
    steps = {step.row.op: step for step in pages(lost.write())["stale-read"].steps}
    first = "17: it was acknowledged there first"
    assert (steps[12].seen, steps[12].legal, steps[12].is_wrong) == ("nothing", first, True)
    assert (steps[10].seen, steps[10].legal, steps[10].is_wrong) == ("99", first, True)
    assert not steps[6].is_wrong


def test_a_read_while_the_append_is_open_may_find_it_or_not(lost: Any) -> None:
    lost.op("read", 10 * S + 9 * MS, 10 * S + 11 * MS, offset=3)
    steps = {step.row.op: step for step in pages(lost.write())["lost-append"].steps}
    assert (steps[12].legal, steps[12].is_wrong) == (
        "17, or nothing yet",
        False,
    )  # 99 was appended later


def test_an_end_that_is_too_low_is_wrong_by_what_was_acknowledged_before(lost: Any) -> None:
    lost.op("end", 17 * S, 17 * S + MS, output=2, node="n1")
    lost.find("linearizable-log", "stale-end", [12, 6], offset=3)
    page = pages(lost.write())["stale-end"]
    step = next(step for step in page.steps if step.row.f == "end")
    assert (step.legal, step.is_wrong) == ("at least 4", True)
    assert page.meaning.startswith("n1 answered, which led in term 2 then")


def test_an_end_that_is_too_far_is_wrong_by_what_was_appended(lost: Any) -> None:
    lost.op("end", 17 * S, 17 * S + MS, output=50, node="n1")
    lost.find("linearizable-log", "future-end", [12], offset=3)
    step = next(s for s in pages(lost.write())["future-end"].steps if s.row.f == "end")
    assert (step.legal, step.is_wrong) == ("no further than what had been appended by then", True)


def test_a_poll_that_brought_the_value_is_not_called_wrong(lost: Any) -> None:
    """Its answer is a list; what it lacks is for the checker to say."""
    poll = lost.op(
        "poll", 17 * S, 17 * S + MS, offset=3, extra='{"output": [[3,17],[4,18]]}', node="n1"
    )
    lost.find("log-anomalies", "unseen", [6, poll], offset=3, value=17)
    step = next(s for s in pages(lost.write())["unseen"].steps if s.row.f == "poll")
    assert (step.legal, step.is_wrong) == ("17", False)
    assert "17" in step.seen


@pytest.mark.parametrize("kind", ["altered", "reordered"])
def test_of_what_was_not_replaced_nothing_follows_about_votes(lost: Any, kind: str) -> None:
    lost.find("durability", kind, [6], offset=3, value=17, acknowledged_by="n0",
              acknowledged_ns=10 * S + 10 * MS)  # fmt: skip
    meaning = pages(lost.write())[kind].meaning
    assert meaning.startswith("n0 led term 1")
    assert "majority" not in meaning


def test_of_a_value_that_nobody_sent_no_cause_is_told(lost: Any) -> None:
    lost.find("linearizable-log", "phantom-read", [10], offset=3)
    assert pages(lost.write())["phantom-read"].meaning == ""


def test_faults_of_the_logs_moment_are_told_and_none_of_no_moment(lost: Any) -> None:
    lost.find("committed-prefix", "divergent", [], key=None, index=4,
              instead={"n0": "an internal entry", "n1": "another"})  # fmt: skip
    lost.find("committed-prefix", "gap", [], key=None, node="n1", first=70, last=71)
    found = pages(lost.write())
    assert found["divergent"].claim.where == (
        "It is not known when it happened; the entry's term began 11.000 s into the run, as polled,"
        " with partition 0 (isolate leader n0) on."
    )
    assert found["divergent"].moment_label == "its term began"
    assert found["gap"].claim.where == ""


def test_pages_go_into_no_other_folder(lost: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "001-x.html").write_text("somebody's")
    folder = lost.write()
    (folder / "violations").symlink_to(elsewhere)
    with pytest.raises(HarnessError, match="no folder of this run's"):
        reports.write(folder)
    assert (elsewhere / "001-x.html").read_text() == "somebody's"


def test_half_a_character_and_numbers_without_end_are_no_traceback(lost: Any) -> None:
    lost.find("linearizable-log", "append-order", [], offset=3, message="half \ud800 of it")
    lost.find("cycles", "G1c", [6], cycle=[{"from": 2**70, "to": 6, "edge": "ww", "why": "x"}])
    folder = lost.write()
    maps = [{"key": KEY, "first": 0, "last": 10**400, "nodes": {}}]
    path = folder / "evidence" / "entries.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"maps": maps}))
    reports.write(folder)
    (folder / "violations" / "index.json").write_text('{"x": ' + "[" * 100_000)
    assert violation_view.read_index(folder / "violations") == ()


def test_a_stale_answer_of_another_than_the_leader_is_said(lost: Any) -> None:
    lost.op("read", 12 * S + MS, 12 * S + 2 * MS, offset=3, node="n0")
    lost.find("linearizable-log", "stale-read", [12, 6], offset=3)
    assert (
        "n0 answered, although n1 led in term 2 then" in pages(lost.write())["stale-read"].meaning
    )


def test_the_moment_of_a_read_is_its_own_and_not_that_of_the_append(lost: Any) -> None:
    lost.op("read", 12 * S + MS, 12 * S + 2 * MS, offset=3, node="n0")
    lost.find("linearizable-log", "stale-read", [12, 6], offset=3)
    lost.find("log-anomalies", "unseen", [6, 12], offset=3, value=17)
    found = pages(lost.write())
    assert found["stale-read"].moment_ns == 12 * S + 2 * MS
    assert "which had begun 2.00 s before" in found["stale-read"].claim.where
    assert found["unseen"].moment_ns == 10 * S + 10 * MS
    assert found["unseen"].meaning.startswith("n0 answered, although n1 led")


def test_of_two_appends_it_is_the_one_of_the_value(lost: Any) -> None:
    lost.find("linearizable-log", "offset-given-twice", [8, 6], offset=3, value=99)
    page = pages(lost.write())["offset-given-twice"]
    assert (page.violation.acknowledged_by, page.moment_ns) == ("n1", 12 * S + 3 * MS)
    assert sum(step.is_wrong for step in page.steps if step.row.f == "append") == 2


def test_who_led_and_which_faults_were_on(lost: Any) -> None:
    page = pages(lost.write())["lost-append"]
    assert [(lane.node, lane.role, lane.term) for lane in page.leaders] == [
        ("n0", "leader", 1), ("n1", "follower", 1), ("n2", "follower", 1),
    ]  # fmt: skip
    assert [row.window.fault for row in page.faults] == [0]
    told = [moment.what for moment in page.moments]
    assert told.index("n0 leads in term 1, as polled") < told.index(
        "fault 0, partition: isolate leader n0, starts; it took effect: 90 kB held"
    )
    assert "n1 leads in term 2, as polled" in told
    assert page.picture is not None
    assert {bar.role for bar in page.picture.roles} == {"leader", "follower"}
    assert [label for _, label in page.picture.node_rows] == ["n0", "n1", "n2"]


def test_the_map_and_the_table_of_losses(lost: Any) -> None:
    lost.find("durability", "missing-on-node", [2], offset=1, value=11, acknowledged_by="n0",
              acknowledged_ns=3 * S, held_by=["n0", "n1"])  # fmt: skip
    folder = lost.write()
    page = pages(folder)["lost-append"]
    assert page.log_map is not None
    assert [strip.node for strip in page.log_map.strips] == ["n0", "n1", "n2"]
    assert [stretch.state for stretch in page.log_map.strips[0].stretches] == ["present", "other"]
    assert page.log_map.marker is not None
    assert [(loss.violation.offset, loss.is_this) for loss in page.losses] == [
        (1, False),
        (3, True),
    ]
    assert "only n0, n1 hold it there" in pages(folder)["missing-on-node"].claim.instead


CIRCLE = [
    {"from": 0, "to": 2, "edge": "ww", "why": "op 0 comes before op 2"},
    {"from": 2, "to": 0, "edge": "realtime", "why": "op 2 returned before op 0 was called"},
]


def test_a_circle_is_drawn_and_worded(lost: Any, page_of: PageOf) -> None:
    lost.find("cycles", "G0-realtime", [0, 2], offset=0, cycle=CIRCLE, component=2)
    folder = lost.write()
    page = pages(folder)["G0-realtime"]
    assert page.cycle is not None
    assert [node.op for node in page.cycle.nodes] == [0, 2]
    assert [edge.kind for edge in page.cycle.edges] == ["ww", "realtime"]
    assert "leads back to op 0 in 2 steps" in page.cycle.conclusion
    reports.write(folder)
    text = Text(page_of(folder, "g0-realtime")).text
    assert "1 ww" in text
    assert "the first one had returned before the second one was called" in text
    assert "append 10 @0" in text


def test_a_failing_part_of_a_search_is_drawn_and_told(lost: Any, page_of: PageOf) -> None:
    operations = [
        {"op": 20, "process": 0, "call": "write 1", "call_ns": 0, "return_ns": 5, "outcome": "ok"},
        {"op": 22, "process": 1, "call": "read 0", "call_ns": 7, "return_ns": 9, "outcome": "ok"},
    ]
    lost.find(
        "linearizable-register", "not-linearizable", [22], key="r/0", model="register",
        method="search", operations=operations, prefix=[{"op": 20, "state": "1"}], stuck=22,
        could_not=[{"op": 22, "why": "it read 0, and the register holds 1"}], before=3,
        states=["0"],
    )  # fmt: skip
    folder = lost.write()
    reports.write(folder)
    text = Text(page_of(folder, "not-linearizable")).text
    assert "it read 0, and the register holds 1" in text
    assert "3 operations had returned before this part" in text
    assert "one object that is asked by one client at a time" in text


def test_a_finding_of_the_logs_alone_takes_its_moment_from_the_term(lost: Any) -> None:
    lost.find("committed-prefix", "divergent", [], key=None, index=4,
              instead={"n0": "an internal entry", "n1": "another"})  # fmt: skip
    page = pages(lost.write())["divergent"]
    assert page.moment_ns == 11 * S
    assert page.entries is not None
    assert any(
        entry.is_at_place for row in page.entries.rows for cell in row.cells for entry in cell
    )


def test_what_has_no_moment_says_so(lost: Any) -> None:
    lost.find("committed-prefix", "gap", [], key=None, node="n1", first=70, last=71)
    page = pages(lost.write())["gap"]
    assert page.moment_ns is None
    assert "It is not known when" in page.notes[0]
    assert page.picture is None


def test_a_counter_says_what_was_possible(lost: Any) -> None:
    read = lost.op("read", 18 * S, 18 * S + MS, output=3, key="c/0")
    lost.find("counter", "lost-add", [read], key="c/0", value=3, low=5, high=7)
    step = pages(lost.write())["lost-add"].steps[0]
    assert (step.seen, step.legal, step.is_wrong) == ("3", "5 to 7", True)


def test_a_set_shows_the_list_that_a_read_returned(lost: Any) -> None:
    add = lost.op("add", 2 * S, 2 * S + MS, input=7, key="s/0")
    read = lost.op("read", 3 * S, 3 * S + MS, key="s/0", extra='{"output": [1, 2]}')
    lost.find("set-full", "lost-element", [add, read], key="s/0", value=7)
    steps = pages(lost.write())["lost-element"].steps
    assert [(step.seen, step.legal, step.is_wrong) for step in steps] == [
        ("acknowledged", "", False),
        ("[1, 2]", "a list with 7", True),
    ]


def test_what_was_never_promised_is_told_as_observed(lost: Any, page_of: PageOf) -> None:
    lost.find("log-anomalies", "unseen", [6, 10], offset=3, observed=True)
    folder = lost.write()
    reports.write(folder)
    page = Text(page_of(folder, "unseen"))
    assert "Observed, never promised: unseen" in page.text
    assert "it does not count against the verdict" in page.text


@pytest.mark.parametrize("kind", sorted(FINDING_KINDS))
def test_each_kind_has_a_page(lost: Any, kind: str, page_of: PageOf) -> None:
    lost.find("some-checker", kind, [6, 10], offset=3, value=17)
    folder = lost.write()
    reports.write(folder)
    page = Text(page_of(folder, building.slug(kind)))
    assert FINDING_KINDS[kind].promise in page.text
    assert "What happened instead" in page.text


def test_a_run_of_an_earlier_version_says_what_it_lacks(lost: Any, page_of: PageOf) -> None:
    folder = lost.write()
    (folder / "evidence" / "entries.json").unlink()
    run = json.loads((folder / "run.json").read_bytes())
    del run["clock"]
    (folder / "run.json").write_text(json.dumps(run))
    reports.write(folder)
    page = Text(page_of(folder, "lost-append"))
    assert "What the nodes' logs held around this place was not kept" in page.text
    assert "placed by the harness' marks among them" in page.text
    assert "The log's map" not in page.text


@pytest.mark.parametrize("missing", ["status.jsonl", "run.json", "nodes", "history"])
def test_whatever_is_missing_there_is_a_page(lost: Any, missing: str, page_of: PageOf) -> None:
    folder = lost.write()
    path = folder / missing
    path.rename(folder.parent / "elsewhere")
    reports.write(folder)
    assert "lost-append" in Text(page_of(folder, "lost-append")).text


@pytest.mark.parametrize(
    "details",
    [
        None, [], "text", {"cycle": [{"from": "x"}, 7, None]}, {"cycle": {"from": 1}},
        {"operations": [{}], "prefix": []}, {"operations": 7, "prefix": 7, "stuck": "x"},
        {"low": [], "high": {}, "held_by": 7, "faults": 3, "instead": 7},
        {"value": "x", "acknowledged_by": [], "index": True},
    ],
)  # fmt: skip
def test_details_that_make_no_sense_are_no_traceback(lost: Any, details: Any) -> None:
    lost.find("durability", "altered", [6], offset=3)
    lost.checkers["durability"]["findings"][-1]["details"] = details
    folder = lost.write()
    reports.write(folder)
    assert sorted((folder / "violations").glob("*-altered.html"))


@pytest.mark.parametrize(
    "changed",
    [
        {"operations": "abc"}, {"operations": [10**30, "x", True, -1, None]}, {"operations": {}},
        {"key": ["q"]}, {"key": 7}, {"offset": "3"}, {"offset": 10**30}, {"offset": True},
        {"kind": None}, {"kind": ["x"]}, {"message": {}},
        {"details": {"acknowledged_ns": 10**30, "value": 10**30}},
    ],
)  # fmt: skip
def test_a_finding_that_makes_no_sense_is_no_traceback(lost: Any, changed: Any) -> None:
    lost.checkers["durability"]["findings"][0].update(changed)
    reports.write(lost.write())
    assert sorted((lost.folder / "violations").glob("001-*.html"))


def test_hostile_values_stay_text(lost: Any) -> None:
    hostile_key = f"{HOSTILE}/0"
    for row in lost.operations:
        row.update(key=hostile_key, node=HOSTILE, error=HOSTILE)
    lost.find("durability", HOSTILE, [6], key=hostile_key, offset=3, message=HOSTILE,
              instead={HOSTILE: HOSTILE}, faults=[HOSTILE], **{HOSTILE: HOSTILE})  # fmt: skip
    lost.find("cycles", "G0", [0], key=hostile_key,
              cycle=[{"from": 0, "to": 0, "edge": HOSTILE, "why": HOSTILE}])  # fmt: skip
    lost.lines = {"n0": [f"1970-01-01T02:16:50.500 {HOSTILE}"]}
    told = {"entries": 1, "first": 0, "last": 0, "committed": 0, "problem": HOSTILE}
    lost.keep_entries(
        nodes={HOSTILE: told},
        entries={HOSTILE: [[0, 1, 2, hostile_key, 3, 4, 5, HOSTILE]]},
        maps=[{"key": hostile_key, "first": 0, "last": 9, "acknowledged": 1, "bin": 1, "nodes":
               {HOSTILE: {"counts": {}, "stretches": [[0, 9, HOSTILE, 1], [0, 1, "other", 1]]}}}],
    )  # fmt: skip
    folder = lost.write()
    reports.write(folder)
    written = sorted((folder / "violations").glob("*.html"))
    assert len(written) == 3
    for path in written:
        assert re.fullmatch(violation_view.NAME, path.name), path.name
        page = Text(path.read_text(encoding="utf-8"))
        assert page.tags.count("script") == 1  # ours
        assert "img" not in page.tags
        assert "49" not in page.text.split()


def test_pages_of_an_earlier_report_go_and_other_files_stay(lost: Any) -> None:
    folder = lost.write()
    here = folder / "violations"
    here.mkdir()
    (here / "099-lost-append.html").write_text("old")
    (here / "notes.txt").write_text("mine")
    reports.write(folder)
    assert sorted(path.name for path in here.iterdir()) == [
        "001-lost-append.html", "index.json", "notes.txt",
    ]  # fmt: skip


def test_a_valid_run_has_no_pages(bad: Any) -> None:
    bad.op("append", S, S + MS, input=1, offset=0)
    reports.write(bad.write())
    assert not (bad.folder / "violations").exists()


def violation(kind: str) -> Violation:
    return Violation(kind, kind, "q", 0, None, None, None, None, (), (("a", "b"),))


def checker(groups: list[ViolationGroup]) -> CheckerView:
    return CheckerView("c", "INVALID", "", (), tuple(groups), 0, 0, ())


def test_the_first_of_each_group_has_a_page_before_second_ones() -> None:
    many = ViolationGroup("a", "", tuple(violation("a") for _ in range(9)), 9)
    others = [ViolationGroup(f"k{n}", "", (violation(f"k{n}"),), 1) for n in range(70)]
    named = building.with_pages([checker([many, *others])])
    given = [each.page for group in named[0].groups for each in group.shown if each.page]
    assert len(given) == building.PAGES_MAX
    assert given == sorted(given)
    assert all(group.shown[0].page for group in named[0].groups[: building.PAGES_MAX])
    assert not named[0].groups[0].shown[1].page
    few = building.with_pages([checker([replace(many)])])
    assert sum(bool(each.page) for each in few[0].groups[0].shown) == building.PAGES_OF_GROUP_MAX


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("stale-read (not promised)", "stale-read-not-promised"), ("G1c-realtime", "g1c-realtime"),
        ("", "violation"), ("../../etc", "etc"), ("<b>", "b"), ("é" * 99, "violation"),
        ("a" * 99, "a" * 40),
    ],
)  # fmt: skip
def test_a_kind_names_a_file_and_nothing_else(kind: str, name: str) -> None:
    assert building.slug(kind) == name


def test_of_many_faults_the_nearest_are_shown_and_far_ones_never() -> None:
    rows: Any = [
        SimpleNamespace(window=SimpleNamespace(from_ns=n * S, stop_ns=n * S + S // 2))
        for n in range(60)
    ]
    spans = [(10 * S, 10 * S + MS), (50 * S, 50 * S + MS)]
    begun = [row.window.from_ns // S for row in faults_near(rows, spans, [10 * S])]
    assert begun == [8, 9, 10, 11, 12, 48, 49, 50]
    assert len(begun) == FAULTS_MAX
    assert faults_near(rows, [], []) == ()


def test_of_a_long_run_the_widest_stretches_of_the_lanes_are_drawn(lost: Any) -> None:
    lanes = [
        RoleSpan("n0", "leader", n, 20 * S + n * MS, 20 * S + (n + 1) * MS) for n in range(2_000)
    ]
    lanes.append(RoleSpan("n0", "follower", 1, 10 * S, 20 * S))
    row = pages(lost.write())["lost-append"].steps[0].row
    drawn = lay_out([row], [], lanes, [30 * S])
    assert len(drawn.roles) == ROLES_MAX
    assert any(bar.role == "follower" for bar in drawn.roles)


def test_what_makes_a_run_unknown_is_no_violation() -> None:
    problem = ViolationGroup("problem", "", (violation("problem"),), 1)
    seen = ViolationGroup("unseen", "", (violation("unseen"),), 1)
    unknown = replace(checker([problem]), verdict="UNKNOWN", observed=(seen,))
    (named,) = building.with_pages([unknown])
    assert [group.shown[0].page for group in named.groups] == [""]
    assert [group.shown[0].page for group in named.observed] == ["violations/001-unseen.html"]
