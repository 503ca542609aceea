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

import reports
from harness.history.schema import OPERATIONS
from reports import html
from reports.view import build_view

PAGE_BYTES_MAX = 6_000_000
VOID = {"meta", "link", "br"}


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
    written = reports.write(folder)
    assert [path.name for path in written] == ["report.html", "junit.xml"]
    assert {path.name for path in folder.iterdir()} - before == {"report.html", "junit.xml"}
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
    assert "every checker that judged the run found what the group promises" in text
    assert "./shaketable run --faults kill,pause,partition --seed 7" in text
    assert "3 of 4" in text  # faults that bit
    assert "601 ms" in text  # recovery after the kill of the leader
    assert "an acknowledged append survives kill, partition, pause" in text
    assert "18,220 bytes held on 4 links" in text
    assert "up to the operation timeout for the answer of a silent node" in text


def test_no_goals_stand_where_nobody_takes_over_from_a_master(
    clean_run: Any, tmp_path: Path
) -> None:
    """The goals are for an election; a broker without a group promises none."""
    folder = shutil.copytree(clean_run.folder, tmp_path / "run")
    results = json.loads((folder / "results.json").read_text())
    results["promises"] = {"durable_under": ["kill"], "committed_prefix": False}
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
    nobody = replace(view, faults=view.faults[1:])
    assert 'id="failover"' not in html.render(nobody)


def test_how_long_clients_wait_is_said_where_it_is_known(clean_run: Any) -> None:
    with (clean_run.folder / "campaign.toml").open("a") as campaign:
        campaign.write("op_timeout = 1.5\n")
    text = " ".join(outline(html.render(build_view(clean_run.folder))).text)
    assert "clients wait up to 1.5 s for a silent node" in text
    assert "up to 1.5 s (the operation timeout)" in text


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
    assert tags.count("script") == 4  # the plots: library, log level, data; the copy button
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
