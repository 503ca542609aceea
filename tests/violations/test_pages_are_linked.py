"""Gate, store and files lead to a violation's page, and to nothing that only looks like one."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from shaketable import reports
from shaketable.harness.gating import read_stored
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.serving.server import SELF_CONTAINED, Response, Site
from shaketable.reports import junit
from shaketable.reports.gating import formats
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import decide
from shaketable.reports.violation_page import violation_view

PAGE = "violations/001-lost-append.html"


@pytest.fixture
def folder(lost: Any) -> Path:
    found: Path = lost.write()
    reports.write(found)
    return found


def gated(folder: Path) -> Any:
    facts = read_stored(RunFolder(folder), str(folder), Policy())
    return decide(Policy(), [facts], date(2026, 11, 22))


def test_the_gate_names_the_page_everywhere(folder: Path) -> None:
    result = gated(folder)
    assert result.runs[0].pages == (("lost-append", str(folder / PAGE)),)
    assert f"page of lost-append: {folder / PAGE}" in junit.render_gate(result)
    shown = formats.render_markdown(result).replace("&#45;", "-").replace("&#95;", "_")
    assert f"the page of lost-append: <code>{folder / PAGE}</code>" in shown
    told = json.loads(formats.render_sarif(result, "1"))["runs"][0]["results"]
    named = {one["ruleId"]: one["properties"].get("violation") for one in told}
    assert named["anomaly/lost-append"] == str(folder / PAGE)


def test_a_run_without_pages_is_judged_as_before(folder: Path) -> None:
    for path in (folder / "violations").iterdir():
        path.unlink()
    result = gated(folder)
    assert result.runs[0].pages == ()
    assert result.code == 1
    assert (
        "violation"
        not in json.loads(formats.render_sarif(result, "1"))["runs"][0]["results"][0]["properties"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"pages": 7}', '{"pages": [{"file": 7}]}',
        '{"pages": [{"file": "../../x.html", "checker": "durability", "kind": "lost-append"}]}',
        '{"pages": [{"file": "002-gone.html", "checker": "durability", "kind": "lost-append"}]}',
    ],
)  # fmt: skip
def test_an_index_that_makes_no_sense_names_no_page(folder: Path, text: str) -> None:
    (folder / "violations" / violation_view.FILE).write_text(text)
    assert gated(folder).runs[0].pages == ()


def test_the_store_shows_a_page_and_nothing_else_as_html(folder: Path) -> None:
    store = folder.parent.parent
    other = folder / "nodes" / "n0" / "001-lost-append.html"
    other.write_text("<script>1</script>")
    (folder / "violations" / "notes.html").write_text("<script>1</script>")
    (store / "violations").mkdir()
    (store / "violations" / "001-lost-append.html").write_text("<script>1</script>")
    site = Site(store)
    run = "/files/bad/20261122T101500.000Z"
    page = answer(site, f"{run}/{PAGE}")
    assert (page.status, page.policy) == (200, SELF_CONTAINED)
    assert page.kind.startswith("text/html")
    for path in (
        f"{run}/nodes/n0/001-lost-append.html", f"{run}/violations/notes.html",
        "/files/violations/001-lost-append.html",
    ):  # fmt: skip
        assert not answer(site, path).kind.startswith("text/html"), path
    assert site.respond(f"{run}/violations/%2e%2e/%2e%2e/x").status == 404


def answer(site: Site, path: str) -> Response:
    """Ask for a path, and let go of the file that is answered with."""
    found = site.respond(path)
    if not isinstance(found.body, bytes):
        b"".join(found.body)
    return found
