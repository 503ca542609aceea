"""The run that docs/violation.md reads: what the document says stands on the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import violation_pictures
from chromium import needs_chromium

from shaketable.harness import cli
from shaketable.harness.judging import engines

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "violation.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
PAGE = "violations/001-lost-append.html"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that the document's command makes."""
    (line,) = re.findall(r"^\./shaketable (run .*)$", TEXT, re.MULTILINE)
    store = tmp_path_factory.mktemp("store")
    assert cli.run([*shlex.split(line), "--store", str(store), "--engine", engines.LOCAL]) == 1
    return store / "latest"


def test_what_the_document_says_stands_on_the_page(folder: Path) -> None:
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert PAGE in TEXT
    for said in (
        "Client 10 appended the value 2278 to shaketable/0. n0 acknowledged it at offset 499, "
        "5.620 s into the run.",
        "none of the 3 nodes holds it there",
        "which had begun 3 ms before",
        "it was called 1 ms after partition 0 had begun",
        "n0 leads in term 1, as polled",
        "5.617 s",
        "n2 leads in term 2, as polled",
        "6.094 s",
        "client 11 calls append 2219 on shaketable/0",
        "6.157 s",
        "n0 has value 2219 (entry 2069, term 2)",
    ):
        assert said in page, said
    numbers = ("2278", "499", "5.620", "5.617", "6.094", "6.157", "2219")
    for number in numbers:
        assert number in TEXT, number


def test_the_nodes_of_the_simulated_run_left_logs_and_entries(folder: Path) -> None:
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert "event=role role=leader term=2 leader=n2" in page
    assert "term 2, crc 383d90ff" in page
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
