"""Every page of a run, for everybody: nothing in the console, nothing fetched, no grave fault.

Wide and narrow, by light and in the dark. The runs are the samples of `conftest`: valid, invalid,
cut short, hostile, and a folder with nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import GRAVE, Chromium, chromium, needs_chromium

from shaketable import reports

pytestmark = [pytest.mark.browser, needs_chromium]
RUNS = ("clean_run", "invalid_run", "interrupted_run", "hostile_run", "empty_run")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def pages_of(request: pytest.FixtureRequest, kind: str) -> list[Path]:
    sample = request.getfixturevalue(kind)
    folder: Path = getattr(sample, "folder", sample)
    reports.write(folder)
    return sorted(folder.rglob("*.html"))


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
@pytest.mark.parametrize("kind", RUNS)
def test_a_page_is_quiet_alone_and_open_to_everybody(
    browser: Chromium, kind: str, width: int, scheme: str, request: pytest.FixtureRequest
) -> None:
    pages = pages_of(request, kind)
    assert pages
    for page in pages:
        browser.open(page.as_uri(), width, scheme="dark" if scheme == "dark" else "light")
        browser.unfold()
        assert browser.overflow_px() <= 0, page.name
        faults = browser.accessibility_faults(of_its_look=scheme == "dark")
        grave = [fault for fault in faults if fault.impact in GRAVE]
        assert grave == [], f"{page.name}: {'; '.join(map(str, grave))}"
        assert browser.complaints() == [], page.name
        assert browser.requests_elsewhere() == [], page.name


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("image-alt", "<h1>x</h1><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"),
        ("color-contrast", "<h1 style='color: #eee; background: #fff'>pale</h1>"),
        ("button-name", "<h1>x</h1><button></button>"),
    ],
)
def test_what_is_closed_to_somebody_is_found(
    browser: Chromium, rule: str, body: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!DOCTYPE html><html lang='en'><title>x</title><main>{body}</main></html>")
    browser.open(page.as_uri())
    grave = [fault for fault in browser.accessibility_faults() if fault.impact in GRAVE]
    assert [fault.rule for fault in grave] == [rule]
