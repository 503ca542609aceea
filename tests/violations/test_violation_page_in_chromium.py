"""A violation's page as a browser shows it, from the file, with nothing else in reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import (
    LOAD_TIMEOUT_S,
    Scheme,
    complaints,
    driven,
    load,
    needs_chromium,
    requests_elsewhere,
)
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from shaketable import reports

HOSTILE = "</script><script>window.hostile=1</script><img src=x onerror=window.hostile=2>{{ 7*7 }}"

pytestmark = [pytest.mark.browser, needs_chromium]

CONTRAST = """
const parts = colour => colour.match(/[\\d.]+/g).slice(0, 4).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
const ground = element => {
  for (let e = element; e; e = e.parentElement) {
    const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c;
  }
  return [255, 255, 255];
};
const low = [];
for (const e of document.querySelectorAll("p, dd, dt, td, th, a, b, h1, h2, h3, li, summary, pre, strong, button, figcaption")) {
  if (!e.textContent.trim() || !e.getClientRects().length) continue;
  const [a, b] = [light(parts(getComputedStyle(e).color)), light(ground(e))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) low.push([ratio.toFixed(2), e.tagName, e.className, e.textContent.slice(0, 40)]);
}
return low;
"""  # noqa: E501
"""Texts whose contrast is below what WCAG asks of small text."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with driven(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def folder(lost: Any) -> Path:
    """A run with a loss, a cycle, a failing part and a divergent entry."""
    lost.find("cycles", "G0-realtime", [0, 2], offset=0, cycle=[
        {"from": 0, "to": 2, "edge": "ww", "why": "op 0 comes before op 2"},
        {"from": 2, "to": 0, "edge": "realtime", "why": "op 2 returned before op 0 was called"},
    ])  # fmt: skip
    lost.find(
        "linearizable-register", "not-linearizable", [22], key="r/0", model="register",
        method="search", stuck=22, before=3, states=["0"], prefix=[{"op": 20, "state": "1"}],
        could_not=[{"op": 22, "why": "it read 0, and the register holds 1"}],
        operations=[
            {"op": n, "process": n % 2, "call": f"call {n}", "call_ns": n, "return_ns": n + 3,
             "outcome": "ok"} for n in (20, 22)
        ],
    )  # fmt: skip
    lost.find("committed-prefix", "divergent", [], key=None, index=4,
              instead={"n0": "an internal entry", "n1": "another"})  # fmt: skip
    lost.write()
    reports.write(lost.folder)
    return lost.folder


def show(
    browser: webdriver.Chrome, page: Path, width: int = 1280, scheme: Scheme = "light"
) -> None:
    load(browser, page.as_uri(), width, scheme=scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_each_page_stands_alone_and_fits(
    browser: webdriver.Chrome, folder: Path, width: int, scheme: str
) -> None:
    written = sorted((folder / "violations").glob("*.html"))
    assert len(written) == 4
    for page in written:
        show(browser, page, width, scheme)
        assert browser.find_element(By.ID, "promised").is_displayed(), page.name
        assert complaints(browser) == [], page.name
        assert requests_elsewhere(browser) == []
        for details in browser.find_elements(By.TAG_NAME, "details"):
            browser.execute_script("arguments[0].open = true", details)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, page.name
        assert browser.execute_script(CONTRAST) == [], page.name


def test_every_picture_has_a_name_and_words(browser: webdriver.Chrome, folder: Path) -> None:
    for page in sorted((folder / "violations").glob("*.html")):
        show(browser, page)
        for picture in browser.find_elements(By.CSS_SELECTOR, "svg:not([aria-hidden])"):
            assert picture.accessible_name.strip(), page.name
            assert picture.aria_role in ("img", "image", "graphics-document"), page.name
        ids = [each.get_attribute("id") for each in browser.find_elements(By.CSS_SELECTOR, "[id]")]
        assert len(ids) == len(set(ids)), page.name
        for table in browser.find_elements(By.TAG_NAME, "table"):
            assert table.find_elements(By.TAG_NAME, "th"), page.name


def test_hostile_text_does_nothing(browser: webdriver.Chrome, lost: Any) -> None:
    for row in lost.operations:
        row.update(key=HOSTILE, node=HOSTILE, error=HOSTILE)
    lost.find("durability", HOSTILE, [6], key=HOSTILE, offset=3, message=HOSTILE,
              instead={HOSTILE: HOSTILE}, faults=[HOSTILE], **{HOSTILE: HOSTILE})  # fmt: skip
    lost.lines = {"n0": [f"1970-01-01T02:16:50.500 {HOSTILE}"]}
    told = {"entries": 1, "first": 0, "last": 0, "committed": 0, "problem": HOSTILE}
    lost.keep_entries(
        nodes={HOSTILE: told}, entries={HOSTILE: [[0, 1, 2, HOSTILE, 3, 4, 5, HOSTILE]]}
    )
    lost.write()
    reports.write(lost.folder)
    for page in sorted((lost.folder / "violations").glob("*.html")):
        show(browser, page)
        assert browser.execute_script("return window.hostile === undefined"), page.name
        assert complaints(browser) == [], page.name
        assert requests_elsewhere(browser) == []


def test_the_keyboard_leads_from_the_report_to_the_page_and_back(
    browser: webdriver.Chrome, folder: Path
) -> None:
    show(browser, folder / "report.html")
    link = browser.find_element(By.CSS_SELECTOR, "#first-page a")
    link.send_keys(Keys.ENTER)
    until(browser, lambda: browser.current_url.endswith("lost-append.html"))
    browser.find_element(By.CSS_SELECTOR, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "To the claim"
    button = browser.find_element(By.CSS_SELECTOR, "button[data-copy=command]")
    said = button.text
    button.send_keys(Keys.ENTER)
    until(browser, lambda: button.text != said)
    browser.find_element(By.ID, "back").send_keys(Keys.ENTER)
    until(browser, lambda: "report.html#checker-durability" in browser.current_url)


def until(browser: webdriver.Chrome, holds: Callable[[], bool]) -> None:
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(lambda _: holds())
