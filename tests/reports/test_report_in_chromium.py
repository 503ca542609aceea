"""The report as a browser shows it, from the file, with nothing else in reach."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

import reports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
LOAD_TIMEOUT_S = 60

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or CHROMEDRIVER is None,
        reason="no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)",
    ),
]

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

CANVASES = """
const found = [];
const walk = root => {
  for (const element of root.querySelectorAll("*")) {
    if (element.tagName === "CANVAS") found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
return found.filter(canvas => {
  if (canvas.width < 200 || canvas.height < 80) return false;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let n = 0; n < pixels.length; n += 4) {
    if (pixels[n + 3]) colours.add(pixels[n] << 16 | pixels[n + 1] << 8 | pixels[n + 2]);
  }
  return colours.size >= 4;
}).length;
"""
"""Counts the canvases of a plot's size that show at least four colours."""


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


def show(browser: webdriver.Chrome, folder: Path, width: int = 1280) -> None:
    """Write the report of a folder, forget old log entries, load the page."""
    reports.write(folder)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get((folder / "report.html").as_uri())


def wait_for_plots(browser: webdriver.Chrome, count: int) -> None:
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(
        lambda driver: driver.execute_script(CANVASES) >= count, "the plots were not drawn"
    )


def complaints(browser: webdriver.Chrome) -> list[str]:
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]


def requests_beyond_the_page(browser: webdriver.Chrome) -> list[str]:
    urls = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    assert urls, "the log of requests does not even show the page itself"
    return [url for url in urls if not url.endswith("/report.html") and not url.startswith("data:")]


@pytest.mark.parametrize(
    ("kind", "verdict", "plots"),
    [
        ("clean_run", "✓ VALID", 3),
        ("invalid_run", "✗ INVALID", 3),
        ("interrupted_run", "? UNKNOWN", 3),
        ("empty_run", "? UNKNOWN", 0),
    ],
)
def test_the_page_stands_alone(
    browser: webdriver.Chrome, kind: str, verdict: str, plots: int, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    show(browser, getattr(sample, "folder", sample))
    wait_for_plots(browser, plots)
    shown = browser.find_element(By.ID, "verdict")
    assert shown.is_displayed()
    assert shown.text == verdict
    assert browser.find_element(By.ID, "why").is_displayed()
    assert "./shaketable run" in browser.find_element(By.ID, "command").text
    assert complaints(browser) == []
    assert requests_beyond_the_page(browser) == []


@pytest.mark.parametrize("kind", ["invalid_run", "interrupted_run", "hostile_run", "empty_run"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_itself_never_scrolls_sideways(
    browser: webdriver.Chrome, kind: str, width: int, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    show(browser, getattr(sample, "folder", sample), width)
    wait_for_plots(browser, 0 if kind == "empty_run" else 2)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    measured = browser.execute_script("return document.documentElement.scrollWidth")
    assert measured <= width


def test_hostile_text_does_nothing(browser: webdriver.Chrome, hostile_run: Any) -> None:
    show(browser, hostile_run.folder)
    wait_for_plots(browser, 3)
    plot = browser.find_element(By.CSS_SELECTOR, ".plots")
    browser.execute_script("arguments[0].scrollIntoView()", plot)
    for down in (-20, 0, 20):  # over the bars, so that hover boxes show the texts
        ActionChains(browser).move_to_element_with_offset(plot, 0, down).perform()
    assert browser.execute_script("return window.hostile === undefined")
    assert complaints(browser) == []


def test_the_keyboard_reaches_the_evidence_and_the_command(
    browser: webdriver.Chrome, invalid_run: Any
) -> None:
    show(browser, invalid_run.folder)
    button = browser.find_element(By.CSS_SELECTOR, "button[data-copy=command]")
    said = button.text
    button.send_keys(Keys.ENTER)
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(lambda _: button.text != said)
    selected = browser.execute_script("return String(getSelection())")
    assert button.text == "Copied" or "./shaketable run" in selected
    folded = browser.find_elements(By.CSS_SELECTOR, "details:not([open]) > summary")[0]
    folded.send_keys(Keys.ENTER)
    picture = folded.find_element(By.XPATH, "..").find_element(By.CSS_SELECTOR, "svg.spacetime")
    assert picture.is_displayed()
    assert picture.find_elements(By.CSS_SELECTOR, "rect.bar.marked")
