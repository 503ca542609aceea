"""Builds the documentation site: gathers all pages in one folder, and has Sphinx build them.

The pages are those that people read in the repository, at the places where they are there, and the
reference, which is made of the code. The README is the first page.

Source: docs/adr/0049 (why Sphinx, and why it is not run on `docs/` itself).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Final

from sphinx.cmd.build import build_main

from docs.building import navigation, reference
from docs.building.links import rewritten

ROOT: Final = Path(__file__).parents[2]
SITE: Final = ROOT / "site"
CONFIGURATION: Final = Path(__file__).parent
PICTURES: Final = (".png", ".svg")
AT_THE_TOP: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "docs/architecture.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "CHANGELOG.md": "docs/changelog.md",
}
"""Pages outside of `docs/`, and where the site has them."""
NEWEST: Final = "<!-- newest first; written by towncrier from newsfragments/ -->\n"
"""Where towncrier writes the next section of the changelog."""
CHANGES: Final = PurePosixPath(AT_THE_TOP["CHANGELOG.md"])
NOT_YET: Final = "Not yet released"


def build(folder: Path) -> int:
    """Build the site into a folder; return Sphinx' exit code: a warning is an error."""
    with tempfile.TemporaryDirectory(prefix="shaketable-docs-") as scratch:
        source = Path(scratch) / "source"
        gather(source)
        return build_main(
            [
                "--fail-on-warning", "--keep-going", "--quiet", "--builder=html",
                f"--conf-dir={CONFIGURATION}", f"--doctree-dir={scratch}/doctrees",
                str(source), str(folder),
            ]
        )  # fmt: skip


def gather(source: Path) -> None:
    """Write all pages and pictures into an empty folder, as Sphinx is to read them."""
    made = reference.pages()
    places = {**pages(), **{place: place for place in made}}
    texts = {
        PurePosixPath(place): rewritten((ROOT / page).read_text(encoding="utf-8"), page, places)
        for page, place in pages().items()
    }
    for place, text in made.items():
        texts[PurePosixPath(place)] = rewritten(text, place, places)
    before, marker, released = texts[CHANGES].partition(NEWEST)
    texts[CHANGES] = f"{before}{marker}{rewritten(unreleased(), 'CHANGELOG.md', places)}{released}"
    for page, text in navigation.added(texts).items():
        target = source / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*"):
        if picture.suffix in PICTURES:
            target = source / picture.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            copyfile(picture, target)


def pages() -> Mapping[str, str]:
    """Return the pages that people wrote, by their paths in the repository: places on the site."""
    written = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return {**AT_THE_TOP, **{path: path for path in sorted(written)}}


def unreleased() -> str:
    """Return the changes that no release has, as towncrier will write them into the changelog."""
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", f"--version={NOT_YET}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    _, heading, changes = done.stdout.partition(f"## {NOT_YET}")
    return f"\n{heading}{changes}" if any((ROOT / "newsfragments").glob("*.md")) else ""
