from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shaketable import reports
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.run_page import chosen_operations, html
from shaketable.reports.run_page.view import build_view

PAGE_BYTES_MAX = 5_000_000
VOID = {"meta", "link", "br", "input"}


class Outline(HTMLParser):
    """Collects tags and attributes, and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


@pytest.mark.parametrize("kind", ["clean_run", "invalid_run", "interrupted_run", "empty_run"])
def test_each_kind_of_run_gets_both_files_and_well_formed_ones(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    folder: Path = getattr(sample, "folder", sample)
    before = {path.name for path in folder.iterdir()}
    written = reports.write(folder).files
    assert [path.name for path in written[:2]] == ["report.html", "junit.xml"]
    of_violations = sorted((folder / "violations").glob("*.html"))
    assert sorted(written[2:]) == of_violations
    assert bool(of_violations) == (kind == "invalid_run")
    made = {"report.html", "junit.xml"} | ({"violations"} if of_violations else set())
    assert {path.name for path in folder.iterdir()} - before == made
    parsed = outline(written[0].read_text(encoding="utf-8"))
    for tag, attributes in parsed.tags:
        assert not (tag == "script" and "src" in attributes)
        for name in ("src", "href"):
            assert not re.match("(https?:)?//", attributes.get(name) or "")
        if tag == "a" and not (attributes["href"] or "").startswith("#"):
            assert (folder / (attributes["href"] or "")).exists()
    if keep := os.environ.get("SHAKETABLE_KEEP_SAMPLES"):
        shutil.copytree(folder, Path(keep) / kind, dirs_exist_ok=True)


def test_a_clean_run_is_told_in_words(clean_run: Any) -> None:
    text = " ".join(outline(html.render(build_view(clean_run.folder))).text)
    assert "✓ VALID" in text
    assert "all checks passed: every promise that was tested held" in text
    assert "./shaketable run --faults kill,pause,partition --seed 7" in text
    assert "3 of 4" in text  # faults that took effect
    assert "601 ms" in text  # recovery after the kill of the leader
    assert "An acknowledged append survives kill, partition, pause" in text
    assert "18,220 bytes held on 4 links" in text
    assert "up to the operation timeout for the answer of a silent node" in text


def test_no_goals_stand_where_nobody_takes_over_from_a_master(
    clean_run: Any, tmp_path: Path
) -> None:
    """The goals are for an election; a broker without a group promises none."""
    folder = shutil.copytree(clean_run.folder, tmp_path / "run")
    results = json.loads((folder / "results.json").read_text())
    results["promises"] = {"durable_under": ["kill"], "fails_over": False}
    (folder / "results.json").write_text(json.dumps(results))
    view = build_view(folder)
    assert view.failover is None
    assert "(goal " not in html.render(view)


def test_kills_of_the_leader_are_shown_next_to_the_goals(clean_run: Any) -> None:
    view = build_view(clean_run.folder)
    assert [row.killed_leader for row in view.faults] == [True, False, False, False]
    assert view.failover is not None
    assert view.failover.kills == 1
    page = html.render(view)
    assert "next acknowledged write after a kill of the leader" in page
    assert "(goal 1.00 s)" in page
    assert "(goal 2.00 s)" in page
    assert "goals" not in html.render(replace(view, failover_goals_s=None)).partition("</dl>")[0]
    nobody = replace(view, faults=view.faults[1:])
    assert 'id="failover"' not in html.render(nobody)


@pytest.mark.parametrize(
    ("goals", "shown"),
    [
        ([2, 3.5], (2.0, 3.5)),
        (None, (1.0, 2.0)),  # a run of old: beside the times
        *(
            (damaged, None)
            for damaged in ([1], ["x", 2], [[], {}], [float("nan"), 1], [1, float("inf")], {"a": 1})
        ),
    ],
)
def test_goals_that_are_damaged_are_none(
    clean_run: Any, tmp_path: Path, goals: object, shown: tuple[float, float] | None
) -> None:
    folder = shutil.copytree(clean_run.folder, tmp_path / "run")
    results = json.loads((folder / "results.json").read_text())
    results["promises"] = {"committed_prefix": True, "failover_goals_s": goals}
    results["failover"] = {"goal_median_s": 1.0, "goal_p99_s": 2.0}
    (folder / "results.json").write_text(json.dumps(results))
    view = build_view(folder)
    assert view.failover_goals_s == shown
    assert "kill of the leader" in html.render(view)


def test_how_long_clients_wait_is_said_where_it_is_known(clean_run: Any) -> None:
    with (clean_run.folder / "campaign.toml").open("a") as campaign:
        campaign.write("op_timeout = 1.5\n")
    text = " ".join(outline(html.render(build_view(clean_run.folder))).text)
    assert "clients wait up to 1.5 s for a silent node" in text
    assert "up to 1.5 s (the operation timeout)" in text


@pytest.mark.parametrize("kind", ["clean_run", "invalid_run", "empty_run"])
def test_a_list_of_contents_leads_to_each_section(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    page = html.render(build_view(getattr(sample, "folder", sample)))
    nav = page.partition('<nav class="contents"')[2].partition("</nav>")[0]
    led_to = set(re.findall(r'href="#([^"]+)"', nav))
    ids = {attributes.get("id") for _, attributes in outline(page).tags}
    assert led_to <= ids
    assert set(re.findall(r'<h2 id="([^"]+)"', page)) <= led_to


def test_an_invalid_run_shows_each_lost_append(invalid_run: Any) -> None:
    view = build_view(invalid_run.folder)
    durability = view.checkers[0]
    assert durability.name == "durability"  # what is broken comes first
    [group] = durability.groups
    assert group.total == min(200, len(invalid_run.lost))
    first = group.shown[0]
    assert first.acknowledged_by == "n0"
    assert first.fault == "partition 1 (isolate leader n0)"
    assert any(row.marked for row in first.around)
    text = " ".join(outline(html.render(view)).text)
    row = invalid_run.lost[0]
    assert f"the append of {row['input']} (op {row['op']}), acknowledged" in text
    assert f"{row['input'] + 5} (op 9, entry 40)" in text
    assert "n1: 4, 5; n2: 4" in text
    assert "now there on n1" in text
    assert "findings in all; the first" in text
    total = len(invalid_run.lost) + 55  # those that were not kept, too
    assert view.why == f"{total} acknowledged appends are lost; 1 wrong-read"
    assert view.why_kinds.startswith(f"durability: {len(invalid_run.lost)} acknowledged appends")
    assert f"kept of {total} in all" in group.title
    assert "Observed" in text


def test_what_a_killed_run_lacks_is_said(interrupted_run: Any) -> None:
    view = build_view(interrupted_run.folder)
    said = "\n".join(view.notes)
    for part in ("run.json", "results.json", "part-1.parquet", "status.jsonl", "drain.json"):
        assert part in said
    assert str(interrupted_run.folder) not in said
    assert view.verdict == "UNKNOWN"
    assert view.operations.num_rows == len(interrupted_run.operations) // 2
    [fault] = view.faults
    assert fault.window.stop_ns == view.duration_ns
    assert view.target == "dledger"
    assert view.nodes == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    "name",
    [
        "run.json", "campaign.toml", "results.json", "drain.json", "status.jsonl",
        "history/events.parquet", "history/operations/part-0.parquet",
    ],
)  # fmt: skip
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.97])
def test_no_cut_file_stops_the_report(clean_run: Any, name: str, keep: float) -> None:
    path = clean_run.folder / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    view = build_view(clean_run.folder)
    if not (name == "campaign.toml" or (name == "status.jsonl" and keep == 0)):
        assert any(Path(name).name in note for note in view.notes), view.notes
    outline(html.render(view))


def test_hostile_text_stays_text(hostile_run: Any) -> None:
    parsed = outline(html.render(build_view(hostile_run.folder)))
    tags = [tag for tag, _ in parsed.tags]
    # The plots' library and its log level; each plot's data; the operations; the page's own.
    plots = [of["id"] for tag, of in parsed.tags if tag == "figure" and of.get("class") == "plot"]
    assert plots == ["plot-lanes", "plot-throughput", "plot-latency", "plot-errors"]
    assert tags.count("script") == 2 + 4 + 1 + 1
    assert "img" not in tags
    assert all(not name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert "<img src=x onerror=window.hostile=2>{{ 7*7 }}" in " ".join(parsed.text)


def test_a_long_run_stays_a_small_page(make_folder: Any, clean_run: Any) -> None:
    count = 120_000
    ops = pa.array(range(count), pa.int64())
    calls = pa.array([n * 500_000 for n in range(count)], pa.int64())
    returns = pa.array([n * 500_000 + 3_000_000 + (n * 7919) % 900_000 for n in range(count)])
    table = pa.table(
        {
            "op": ops, "process": pa.array([n % 12 for n in range(count)], pa.int64()),
            "f": ["append"] * count, "key": [f"shaketable/{n % 4}" for n in range(count)],
            "input": ops, "expected": pa.nulls(count, pa.int64()),
            "output": pa.nulls(count, pa.int64()), "offset": ops, "call_ns": calls,
            "return_ns": returns, "outcome": ["ok"] * count, "error": pa.nulls(count, pa.string()),
            "node": ["n0"] * count, "extra": pa.nulls(count, pa.string()),
        }
    ).cast(OPERATIONS)  # fmt: skip
    for path in (clean_run.folder / "history" / "operations").iterdir():
        path.unlink()
    pq.write_table(table, clean_run.folder / "history" / "operations" / "part-0.parquet")
    findings = [
        {"kind": f"kind-{n % 7}", "message": "m" * 300, "key": f"shaketable/{n % 4}", "offset": n,
         "operations": [n], "details": {"instead": {f"n{node}": "x" * 999 for node in range(3)}}}
        for n in range(200)
    ]  # fmt: skip
    checkers = {
        f"checker-{n}": {"valid": False, "summary": "s", "findings": findings,
                         "findings_total": 4000, "observed": findings}
        for n in range(3)
    }  # fmt: skip
    (clean_run.folder / "results.json").write_text(
        json.dumps({"valid": False, "seed": "7", "checkers": checkers})
    )
    page = html.render(build_view(clean_run.folder))
    assert len(page.encode()) <= PAGE_BYTES_MAX


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="is not a run's folder"):
        build_view(tmp_path / "nothing")


def test_promises_are_told_one_by_one(invalid_run: Any) -> None:
    view = build_view(invalid_run.folder)
    kept = view.promise_rows[0]
    assert "every process fault" in kept.text or "kill" in kept.text
    assert kept.judged_by == (("durability", "INVALID"),)
    assert "acknowledged appends are lost" in kept.found
    text = " ".join(outline(html.render(view)).text)
    assert "Promise by promise" in text
    assert "nothing in this run looks at it" in text  # nobody judged the committed prefix


def test_each_fault_says_what_was_lost_under_it(invalid_run: Any) -> None:
    view = build_view(invalid_run.folder)
    assert [row.losses for row in view.faults] == [0, min(200, len(invalid_run.lost)), 0]
    assert view.losses.total == len(invalid_run.lost) + 55
    assert view.losses.is_cut
    page = html.render(view)
    assert "acknowledged, then lost (RPO)" in page
    assert f"<b>{view.losses.total}</b>" in page


def test_each_fault_says_how_long_nothing_was_served(clean_run: Any) -> None:
    clean = build_view(clean_run.folder)
    assert clean.losses.total == 0
    assert clean.availability is not None
    lost = [row.lost_ns for row in clean.faults]
    assert sum(lost) > 0
    assert lost[3] == 0  # the partition that held nothing
    assert sum(lost) <= clean.availability.total_ns + 1


def test_the_plots_stand_in_numbers_too(clean_run: Any) -> None:
    page = html.render(build_view(clean_run.folder))
    assert "The same in numbers: the run in 21 slices of 2.00 s" in page
    text = " ".join(outline(page).text)
    assert "kill 0" in text
    assert "At most: n0 0, n1 0, n2" in text  # the lag of the nodes
    assert "Farthest off in ms, wall and monotonic clock: n0 250.0 and 0.1" in text


def test_a_run_of_an_earlier_version_lacks_its_samples_alone(clean_run: Any) -> None:
    (clean_run.folder / "samples.jsonl").unlink()
    view = build_view(clean_run.folder)
    assert view.notes == ()
    text = " ".join(outline(html.render(view)).text)
    assert "was not recorded (samples.jsonl), as in runs of earlier versions" in text


def test_samples_that_make_no_sense_are_a_note(clean_run: Any) -> None:
    path = clean_run.folder / "samples.jsonl"
    path.write_text(path.read_text() + '{"time_ns": "soon", "node": "n0"}\n{"node"\n')
    notes = build_view(clean_run.folder).notes
    assert "samples.jsonl has 1 row(s) that are no samples, left out here" in notes
    assert "samples.jsonl has 1 cut or damaged line(s), left out here" in notes


def test_what_the_tables_limits_cut_is_said(clean_run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(chosen_operations, "ALL_MAX", 10)
    monkeypatch.setattr(chosen_operations, "UNKNOWN_MAX", 5)
    text = " ".join(outline(html.render(build_view(clean_run.folder))).text)
    unknown = sum(row["outcome"] == "info" for row in clean_run.operations)
    assert unknown > 5
    assert f"5 of {unknown} operations of unknown outcome are here" in text
    assert "are in history/operations" in " ".join(text.split())


def test_of_very_many_faults_those_that_cost_most_are_told(
    clean_run: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(html, "FAULTS_MAX", 2)
    view = build_view(clean_run.folder)
    told = html.listed_faults(view.faults)
    costs = sorted((row.lost_ns or 0 for row in view.faults), reverse=True)
    assert [row.lost_ns for row in told if row.lost_ns] != []
    assert {row.lost_ns for row in told} <= set(costs[:2])
    assert [row.window.fault for row in told] == sorted(row.window.fault for row in told)
    text = " ".join(outline(html.render(view)).text)
    assert "2 of 4 faults are here: those that cost most" in text
