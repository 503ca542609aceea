"""The page of `check` as a browser shows it, from the file, with nothing else in reach."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from check_samples import anomalies, checked, hostile, invalid, long_history, undecided
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from checkers.api import check
from reports.check_page.model import CheckedHistory
from reports.check_page.page import render_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # CI runs as root, and Chromium's sandbox refuses root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or CHROMEDRIVER is None,
        reason="no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)",
    ),
]

Show = Callable[..., webdriver.Chrome]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = CHROMIUM or ""
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def show(browser: webdriver.Chrome, tmp_path: Path) -> Show:
    def shown(*histories: CheckedHistory, width: int = 1280) -> webdriver.Chrome:
        path = tmp_path / "page.html"
        path.write_text(render_page(histories), encoding="utf-8")
        browser.get("about:blank")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(path.as_uri())
        return browser

    return shown


def complaints(browser: webdriver.Chrome) -> list[str]:
    log = browser.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


def requests_beyond_the_page(browser: webdriver.Chrome) -> list[str]:
    messages = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert urls, "the log of requests does not even show the page itself"
    return [url for url in urls if not url.endswith("/page.html") and not url.startswith("data:")]


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
    assert requests_beyond_the_page(browser) == []
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
