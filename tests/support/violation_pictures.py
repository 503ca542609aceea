"""Makes the pictures of docs/violation.md: python tests/support/violation_pictures.py PAGE FOLDER.

PAGE is a violation's page (violations/NNN-kind.html of a run), FOLDER where the pictures go. Each
shows one part of the page, as Chromium draws it on light paper.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import driven, load
from selenium.webdriver.common.by import By

WIDTH, HEIGHT = 1000, 6000
PARTS = {
    "violation-claim.png": "//dl[@id='claim']",
    "violation-course.png": "//table[contains(@class, 'moments')]",
    "violation-picture.png": "//*[contains(@class, 'spacetime')]",
    "violation-entries.png": "//table[contains(@class, 'entries')]",
    "violation-map.png": "//*[contains(@class, 'map')]",
}
"""What is pictured, by the names of the files."""


def make(page: Path, folder: Path) -> list[Path]:
    """Make all pictures of a page; return their paths."""
    made = []
    with tempfile.TemporaryDirectory() as profile, driven(Path(profile)) as driver:
        load(driver, page.resolve().as_uri(), WIDTH, HEIGHT)
        for name, where in PARTS.items():
            picture = driver.find_element(By.XPATH, where).screenshot_as_png
            (folder / name).write_bytes(picture)
            made.append(folder / name)
    return made


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]), Path(sys.argv[2])):
        sys.stdout.write(f"{path}\n")
