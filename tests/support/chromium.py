"""A headless Chromium that opens pages of ours, and says what they did: errors, requests, faults.

Accessibility is judged by axe-core (WCAG 2 A and AA, best practices), whose script comes from the
PyPI package axe-playwright-python; nothing else of that package is used.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER: Final = shutil.which("chromedriver")
LOAD_TIMEOUT_S: Final = 60.0
AXE_TIMEOUT_S: Final = 120.0
SETTLE_LOOKS_MAX: Final = 20
SETTLE_INTERVAL_S: Final = 0.3
Scheme = Literal["light", "dark"]
GRAVE: Final = frozenset({"serious", "critical"})
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",  # CI runs as root, and Chromium's sandbox refuses root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
)
needs_chromium: Final = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)",
)
RUN_AXE: Final = """
const done = arguments[arguments.length - 1];
const CONTRAST = "color-contrast";

// Contrast takes most of the time, and it is the same for all cells of a table's column. So one
// element of each look is judged; in a picture, where what is below a text may differ, all are.
function oneOfEachLook() {
  const found = new Map();
  for (const element of document.body.querySelectorAll("*")) {
    const isText = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!isText) continue;
    const look = element.ownerSVGElement ? found.size : lookOf(element);
    if (!found.has(look)) found.set(look, element);
  }
  return [...found.values()];
}

function lookOf(element) {
  const style = getComputedStyle(element);
  const parts = [style.color, style.fontSize, style.fontWeight];
  for (let one = element; one; one = one.parentElement) {
    const its = getComputedStyle(one);
    parts.push(one.tagName, its.backgroundColor, its.backgroundImage, its.opacity);
  }
  return parts.join(" ");
}

// A table of operations has thousands of rows of one shape: a few of each are judged.
function withFewRows(judge) {
  const removed = [];
  for (const body of document.querySelectorAll("tbody")) {
    const counts = new Map();
    for (const row of [...body.rows]) {
      const shape = [row, ...row.querySelectorAll("*")].map(shapeOf).join();
      const count = (counts.get(shape) || 0) + 1;
      counts.set(shape, count);
      if (count > ROWS_OF_A_SHAPE) {
        removed.push([body, row.nextSibling, row]);
        row.remove();
      }
    }
  }
  const back = ([body, next, row]) => body.insertBefore(row, next);
  return judge().finally(() => removed.reverse().forEach(back));
}
const ROWS_OF_A_SHAPE = 5;
const shapeOf = one => [one.tagName, one.className, one.getAttribute("style")].join(" ");

// What depends on the window and the colours; all else is the same however a page is looked at.
const LOOK = ["link-in-text-block", "scrollable-region-focusable", "target-size", "meta-viewport"];
const isOfItsLook = arguments[0];

async function judge() {
  const options = {resultTypes: ["violations"]};
  const which = isOfItsLook
    ? {runOnly: {type: "rule", values: LOOK}}
    : {rules: {[CONTRAST]: {enabled: false}}};
  const most = await axe.run(document, {...options, ...which});
  const include = oneOfEachLook();
  if (!include.length) return most.violations;
  const only = {type: "rule", values: [CONTRAST]};
  const contrast = await axe.run({include}, {...options, runOnly: only});
  return [...most.violations, ...contrast.violations];
}

withFewRows(judge).then(
  found => done(found.map(one => ({
    rule: one.id, impact: one.impact,
    where: one.nodes.map(node => node.target.flat().join(" ")),
    why: one.nodes.length ? one.nodes[0].failureSummary : one.help,
  }))),
  error => done(String(error)),
);
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What axe-core found: its rule, how grave it is, the elements, and why the first one is."""

    rule: str
    impact: str
    where: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        more = f" and {len(self.where) - 3} more" if len(self.where) > 3 else ""
        return f"{self.impact} {self.rule} at {', '.join(self.where[:3])}{more}: {self.why}"


@contextmanager
def driven(profile: Path) -> Iterator[webdriver.Chrome]:
    """Run a browser in the body of `with`, as selenium drives it; `profile` is a folder of its own.

    Its logs hold what stands in the console, and what was asked for over any network.
    """
    options = Options()
    options.binary_location = CHROMIUM or ""
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def load(
    driver: webdriver.Chrome,
    url: str,
    width: int = 1280,
    height: int = 900,
    scheme: Scheme = "light",
) -> None:
    """Forget what pages before did, and load this one in a window of so many pixels."""
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    Chromium(driver).see(width, height, scheme)
    driver.get(url)
    WebDriverWait(driver, LOAD_TIMEOUT_S).until(
        lambda page: page.execute_script("return document.readyState") == "complete"
    )


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What stands in the console as a warning or an error."""
    log = driver.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


def requests_elsewhere(driver: webdriver.Chrome) -> list[str]:
    """What was asked for beside the page itself. `data:` and `blob:` are the page's own."""
    urls = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    page = driver.current_url.partition("#")[0]
    assert page in urls, "the log of requests does not even show the page itself"
    return [url for url in urls if url != page and not url.startswith(("data:", "blob:"))]


class Chromium:
    """One browser; `driver` is selenium's."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(
        self, url: str, width: int = 1440, height: int = 900, scheme: Scheme = "light"
    ) -> None:
        """Forget what pages before did, and load this one."""
        load(self.driver, url, width, height, scheme)

    def see(self, width: int, height: int = 900, scheme: Scheme = "light") -> None:
        """Give the window this size, and the reader this liking; a page that is open stays so."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def print_on(self, width: int) -> None:
        """Show the open page as it is printed on paper of so many pixels."""
        self.see(width)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})

    def complaints(self) -> list[str]:
        """What stands in the console as a warning or an error."""
        return complaints(self.driver)

    def requests_elsewhere(self) -> list[str]:
        """What was asked for beside the page itself."""
        return requests_elsewhere(self.driver)

    def overflow_px(self) -> int:
        """How far the page is wider than its window."""
        script = "return document.documentElement.scrollWidth - window.innerWidth"
        return int(self.driver.execute_script(script))

    def settle(self) -> None:
        """Wait until plots are drawn: until the page looks the same twice."""
        before = b""
        for _ in range(SETTLE_LOOKS_MAX):
            now = self.driver.get_screenshot_as_png()
            if now == before:
                return
            before = now
            time.sleep(SETTLE_INTERVAL_S)

    def unfold(self) -> None:
        """Open all that is folded."""
        self.driver.execute_script(
            "for (const one of document.querySelectorAll('details')) one.open = true"
        )

    def accessibility_faults(self, *, of_its_look: bool = False) -> list[Fault]:
        """Judge the page as it is shown; or only what its size and colours decide: the rest was."""
        # Through the protocol, which a page's Content-Security-Policy does not bind.
        if not self.driver.execute_script("return typeof axe === 'object'"):
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": _axe()})
        self.driver.set_script_timeout(AXE_TIMEOUT_S)
        found: Any = self.driver.execute_async_script(RUN_AXE, of_its_look)
        assert isinstance(found, list), found
        return [
            Fault(one["rule"], one["impact"] or "minor", tuple(one["where"]), one["why"])
            for one in found
        ]

    def picture(self, path: Path, height_px_max: int = 16_000) -> None:
        """Write the whole page as a PNG, cut off below so many pixels."""
        sizes = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {
            "x": 0, "y": 0, "width": sizes["width"],
            "height": min(sizes["height"], height_px_max), "scale": 1,
        }  # fmt: skip
        path.write_bytes(_png(self.driver, clip))


@contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """Run a browser in the body of `with`; `profile` is a folder of its own."""
    with driven(profile) as driver:
        yield Chromium(driver)


def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


def _png(driver: webdriver.Chrome, clip: dict[str, float]) -> bytes:
    asked = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])
