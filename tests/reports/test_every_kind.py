"""Every kind of violation that a checker can report has its page, in words, open to everybody.

Runs in which each kind stands are made of golden histories and logs gone wrong (`every_kind`).
Who writes a checker that reports a new kind is told here what is missing: words for it, and a
history that shows it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import GRAVE, Chromium, chromium, needs_chromium
from every_kind import NODE_LOGS, RUNS, JudgedRun
from reported_kinds import reported_kinds

from shaketable import reports
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.reports import finding_texts
from shaketable.reports.check_page.checked_history import CheckedHistory
from shaketable.reports.check_page.page import PARTS_MAX, render_page
from tests.support.volume import part_of

SAMPLES = Path(reports.__path__[0]) / "samples"
SAMPLES_BYTES_MAX = 5_500_000
PAPER_PX = 718
"""A4 but for its margins."""
Runs = dict[str, JudgedRun]
Rows = dict[int, dict[str, object]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Make all runs, with their pages."""
    made = {}
    for name, make in RUNS.items():
        folder = tmp_path_factory.mktemp(name) / "run"
        folder.mkdir()
        made[name] = make(folder)
        reports.write(folder)
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def pages_by_kind(run: JudgedRun) -> dict[str, Path]:
    """Return the first page of each kind."""
    folder = run.folder / "violations"
    pages = json.loads((folder / "index.json").read_bytes())["pages"]
    return {page["kind"]: folder / page["file"] for page in reversed(pages)}


def test_every_kind_that_a_checker_can_report_stands_in_a_run_and_has_words(runs: Runs) -> None:
    known = reported_kinds()
    shown = set().union(*(run.kinds() for run in runs.values()))
    assert known - shown == set(), "tests/histories needs a history that shows it"
    assert shown - known == set(), "tests.support.reported_kinds does not see who reports it"
    assert known - set(FINDING_KINDS) == set(), "harness.contracts.finding_kinds has its words"


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_a_run_has_a_page_and_stands_on_the_report(runs: Runs, name: str) -> None:
    run = runs[name]
    pages = pages_by_kind(run)
    assert set(pages) == run.kinds()
    report = (run.folder / "report.html").read_text()
    for kind, page in pages.items():
        assert f"violations/{page.name}" in report, kind
        text = page.read_text()
        assert finding_texts.title(kind).split("'")[0] in text, kind
        assert FINDING_KINDS[kind].promise.split("'")[0] in text, kind


def test_pictures_of_every_kind_and_of_every_verdict_are_kept() -> None:
    wanted = {"valid", "invalid", "unknown", "empty"}
    wanted |= {f"violations/{kind.lower()}" for kind in reported_kinds()}
    found = {
        path.relative_to(SAMPLES).with_suffix("").as_posix() for path in SAMPLES.rglob("*.png")
    }
    assert found == {f"{name}-{width}" for name in wanted for width in (1440, 390)}
    for path in SAMPLES.rglob("*.png"):
        with path.open("rb") as file:
            (width,) = struct.unpack(">I", file.read(20)[16:])  # of the header, IHDR
        assert path.stem.endswith(f"-{width}")
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*.png")) < SAMPLES_BYTES_MAX


def checked_pages(run: JudgedRun, folder: Path) -> list[Path]:
    """Write what `check` shows of the first finding of each kind, as many a page as it draws."""
    first = {
        (verdict.checker, finding.kind): (verdict, finding)
        for verdict in run.verdicts
        if verdict.checker not in NODE_LOGS  # `check` reads no nodes' logs
        for finding in reversed(verdict.findings)
    }
    rows = {row["op"]: row for row in run.rows}
    pages = []
    histories = [_checked(verdict, finding, rows) for verdict, finding in first.values()]
    for number in range(0, len(histories), PARTS_MAX):
        path = folder / f"check-{number}.html"
        path.write_text(render_page(histories[number : number + PARTS_MAX]))
        pages.append(path)
    return pages


def _checked(verdict: Verdict, finding: Finding, rows: Rows) -> CheckedHistory:
    alone = Verdict(verdict.checker, verdict.outcome, verdict.summary, (finding,), 1)
    return CheckedHistory(
        path=f"{finding.kind}.edn", format="Jepsen EDN", model=None, engine="local", seconds=0.1,
        outcomes={"ok": len(rows), "fail": 0, "info": 0}, keys=1, clients=2,
        verdicts=(alone,), rows=rows,
    )  # fmt: skip


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("name", RUNS)
def test_the_pages_of_every_kind_are_quiet_alone_and_open_to_everybody(
    runs: Runs, browser: Chromium, name: str, tmp_path: Path
) -> None:
    run = runs[name]
    before = list(RUNS)[: list(RUNS).index(name)]
    opened = set().union(*(runs[other].kinds() for other in before))
    pages = [page for kind, page in pages_by_kind(run).items() if kind not in opened]
    pages += checked_pages(run, tmp_path)
    for page in (run.folder / "report.html", *part_of(pages)):
        browser.open(page.as_uri())
        browser.unfold()
        require_open_to_everybody(browser, f"{page.name}, wide")
        browser.see(390, scheme="dark")
        require_open_to_everybody(browser, f"{page.name}, narrow", of_its_look=True)
        assert browser.complaints() == [], page.name
        assert browser.requests_elsewhere() == [], page.name


@pytest.mark.browser
@needs_chromium
def test_what_is_printed_fits_the_paper(runs: Runs, browser: Chromium) -> None:
    for run in runs.values():
        page = next(iter(pages_by_kind(run).values()))
        for path in (run.folder / "report.html", page):
            browser.open(path.as_uri())
            browser.print_on(PAPER_PX)
            assert browser.overflow_px() <= 0, path
        browser.open((run.folder / "report.html").as_uri())
        browser.print_on(PAPER_PX)
        number = browser.driver.find_element("css selector", "#fault-0 td")
        assert number.text == "0"


def require_open_to_everybody(browser: Chromium, where: str, *, of_its_look: bool = False) -> None:
    assert browser.overflow_px() <= 0, where
    faults = browser.accessibility_faults(of_its_look=of_its_look)
    grave = [fault for fault in faults if fault.impact in GRAVE]
    assert grave == [], f"{where}: {'; '.join(map(str, grave))}"
