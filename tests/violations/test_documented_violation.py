"""The run that docs/violation.md reads: what the document says stands on the page."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
import violation_pictures
from chromium import needs_chromium

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.history import run_folder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.harness.terminal.commands import app

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "violation.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
PAGE = "violations/001-lost-append.html"


def test_the_command_is_the_run_that_is_tried_here() -> None:
    (line,) = re.findall(r"^\./shaketable (run .*)$", TEXT, re.MULTILINE)
    words = shlex.split(line)
    app.parse_args(words, exit_on_error=False, print_error=False)
    assert words == [
        "run", "--world", "sim", "--mutant", "ack-before-quorum", "--faults", "partition",
        "-w", "log", "--concurrency", "4n", "--time-limit", "15", "--seed", "1",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    campaign = resolve(
        Campaign(world="sim", mutant="ack-before-quorum", faults=("partition",),
                 workload="log", concurrency="4n", time_limit_s=15.0, seed="1")
    )  # fmt: skip
    store = tmp_path_factory.mktemp("store")
    run = run_folder.create(store, campaign.name, datetime.now(UTC))
    run_folder.write_atomically(run.campaign_toml, "")
    run_simulated(campaign, run, SilentObserver())
    judge.judge(run, campaign, engines.Engine(engines.LOCAL, "local[*]"), lambda _step: None)
    judge.render(run)
    return run.path


def test_what_the_document_says_stands_on_the_page(folder: Path) -> None:
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert PAGE in TEXT
    for said in (
        "Client 1 appended the value 4105 to shaketable/0. n1 acknowledged it at offset 985, "
        "10.733 s into the run.",
        "none of the 3 nodes holds it there",
        "which had begun 3 ms before",
        "n1 leads in term 2, as polled",
        "10.730 s",
        "n2 leads in term 3, as polled",
        "11.677 s",
        "client 9 calls append 3921 on shaketable/0",
        "11.613 s",
        "n0 has value 3921 (entry 4105, term 3)",
        "11.615 s",
    ):
        assert said in page, said
    numbers = ("4105", "985", "10.733", "10.730", "11.677", "11.615", "3921")
    for number in numbers:
        assert number in TEXT, number


def test_the_nodes_of_the_simulated_run_left_logs_and_entries(folder: Path) -> None:
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert "event=role role=leader term=3 leader=n2" in page
    assert "term 3, crc b0140856" in page
    assert (folder / "evidence" / "entries.json").stat().st_size < 100_000


def test_every_picture_is_there_and_used() -> None:
    used = set(re.findall(r"!\[[^]]+\]\(pictures/([^)]+)\)", TEXT))
    assert used == set(violation_pictures.PARTS)
    for name in used:
        data = (DOCUMENT.parent / "pictures" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 200_000, name


@pytest.mark.browser
@needs_chromium
def test_the_pictures_can_be_made_anew(folder: Path, tmp_path: Path) -> None:
    made = violation_pictures.make(folder / PAGE, tmp_path)
    assert {path.name for path in made} == set(violation_pictures.PARTS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
