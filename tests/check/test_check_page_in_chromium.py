"""The page of `check` as a browser shows it, from the file, with nothing else in reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from check_samples import anomalies, checked, hostile, invalid, long_history, undecided
from chromium import complaints, driven, load, needs_chromium, requests_elsewhere
from selenium import webdriver
from selenium.webdriver.common.by import By

from shaketable.checkers.api import check
from shaketable.reports.check_page.checked_history import CheckedHistory
from shaketable.reports.check_page.page import render_page

pytestmark = [pytest.mark.browser, needs_chromium]

Show = Callable[..., webdriver.Chrome]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with driven(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(browser: webdriver.Chrome, tmp_path: Path) -> Show:
    def shown(*histories: CheckedHistory, width: int = 1280) -> webdriver.Chrome:
        path = tmp_path / "page.html"
        path.write_text(render_page(histories), encoding="utf-8")
        load(browser, path.as_uri(), width)
        return browser

    return shown


HISTORIES = {
    "invalid": (invalid, "✗ INVALID"),
    "undecided": (undecided, "? UNKNOWN"),
    "anomalies": (anomalies, "✗ INVALID"),
    "hostile": (hostile, "✗ INVALID"),
}


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_stands_alone_at_any_width(show: Show, kind: str, width: int) -> None:
    make, verdict = HISTORIES[kind]
    browser = show(make(), width=width)
    assert browser.find_element(By.ID, "verdict").text == verdict
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert complaints(browser) == []
    assert requests_elsewhere(browser) == []
    assert browser.execute_script("return window.hostile === undefined")


@pytest.mark.parametrize("width", [390, 1280])
def test_what_fails_is_in_sight_without_scrolling_the_picture(show: Show, width: int) -> None:
    verdict = check(long_history(3_000), "cas-register", time_s=60)
    browser = show(checked(verdict), width=width)
    stuck = browser.find_element(By.CSS_SELECTOR, "svg.part-picture .bar.stuck")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", stuck)
    frame = browser.find_element(By.CSS_SELECTOR, ".part-frame .scroll")
    box, view = stuck.rect, frame.rect
    assert view["x"] <= box["x"] + box["width"] <= view["x"] + view["width"] + 1
    names = browser.find_elements(By.CSS_SELECTOR, "svg.names text")
    lanes = browser.find_elements(By.CSS_SELECTOR, ".scroll svg .lane")
    assert len(names) == len(lanes)
    for name, lane in zip(names, lanes, strict=True):  # each name beside its own lane
        assert abs(name.rect["y"] + name.rect["height"] - lane.rect["y"]) < 20


def test_labels_do_not_overlap_in_their_lane(show: Show) -> None:
    browser = show(checked(check(long_history(500), "cas-register", time_s=60)))
    boxes: dict[float, list[tuple[float, float]]] = {}
    for label in browser.find_elements(By.CSS_SELECTOR, ".scroll svg g rect + text"):
        rect = label.rect
        boxes.setdefault(rect["y"], []).append((rect["x"], rect["x"] + rect["width"]))
    assert boxes
    for spans in boxes.values():
        spans.sort()
        for (_, end), (begin, _) in pairwise(spans):
            assert end <= begin + 1


def test_the_keyboard_reaches_the_picture_and_the_tables(show: Show) -> None:
    browser = show(invalid())
    region = browser.find_element(By.CSS_SELECTOR, ".part-frame .scroll")
    browser.execute_script("arguments[0].focus()", region)
    assert browser.switch_to.active_element == region
    folded = browser.find_element(By.CSS_SELECTOR, "details:not([open]) > summary")
    folded.send_keys("\ue007")
    assert folded.find_element(By.XPATH, "..").find_element(By.TAG_NAME, "table").is_displayed()
