"""Makes the pictures of docs/violation.md: python tests/support/violation_pictures.py PAGE FOLDER.

PAGE is a violation's page (violations/NNN-kind.html of a run), FOLDER where the pictures go. Each
shows one part of the page, as Chromium draws it on light paper.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

WIDTH = 1000
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
PARTS = {
    "violation-claim.png": "//dl[@id='claim']",
    "violation-course.png": "//table[contains(@class, 'moments')]",
    "violation-picture.png": "//*[contains(@class, 'spacetime')]",
    "violation-entries.png": "//table[contains(@class, 'entries')]",
    "violation-map.png": "//*[contains(@class, 'map')]",
}
"""What is pictured, by the names of the files."""


def make(page: Path, folder: Path, chromium: str, chromedriver: str) -> list[Path]:
    """Make all pictures of a page; return their paths."""
    options = Options()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(chromedriver))
        try:
            metrics = {"width": WIDTH, "height": 6000, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            driver.get(page.resolve().as_uri())
            made = []
            for name, where in PARTS.items():
                picture = driver.find_element(By.XPATH, where).screenshot_as_png
                (folder / name).write_bytes(picture)
                made.append(folder / name)
            return made
        finally:
            driver.quit()


if __name__ == "__main__":
    import shutil

    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    assert all(found), "chromium and chromedriver must be on PATH"
    for path in make(Path(sys.argv[1]), Path(sys.argv[2]), str(found[0]), str(found[1])):
        sys.stdout.write(f"{path}\n")
