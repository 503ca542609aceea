"""Makes the pictures of reports/samples: pages of real runs, as Chromium shows them.

    .venv/bin/python tests/reports/make_samples.py [NAME ...]

Runs campaigns in the simulated world, with and without planted bugs, so that the same pages come
out anywhere, and takes each page at 1440 and at 390 pixels. Names are those of `SAMPLES`; without
any all are made anew (about five minutes). Look at what changed before you commit it.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from chromium import Chromium, chromium
from PIL import Image

ROOT: Final = Path(__file__).parent.parent.parent
SAMPLES_FOLDER: Final = ROOT / "reports" / "samples"
WIDTHS: Final = (1440, 390)
HEIGHT_PX_MAX: Final = {1440: 3600, 390: 4200}
COLOURS: Final = 128
CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
QUICK: Final = {"--world": "sim", "--time-limit": "30", "--spark-master": "local[1]"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run, and which of its pages are taken.

    Attributes:
        name: of the pictures.
        verdict: how the run must end: a sample of something else is none.
        options: of `shaketable run`.
        violation: take the page of the first violation of this kind, not the report.
    """

    name: str
    verdict: str
    options: tuple[str, ...]
    violation: str = ""


SAMPLES: Final = (
    Sample("valid", "valid", ("--seed", "sample")),
    Sample("invalid", "invalid", ("--seed", "sample", "--mutant", "ack-before-quorum")),
    Sample(
        "lost-append", "invalid",
        ("--seed", "sample", "--mutant", "ack-before-quorum"), "lost-append",
    ),
    Sample(
        "stale-read", "invalid",
        ("--seed", "sample", "--mutant", "stale-read", "--faults", "partition"), "stale-read",
    ),
    Sample(
        "not-linearizable", "invalid",
        ("--seed", "sample", "--mutant", "stale-read", "-w", "register", "--faults", "partition"),
        "not-linearizable",
    ),
    Sample(
        "unknown", "unknown",
        ("--seed", "sample", "--faults", "kill", "--rate", "5", "--time-limit", "20"),
    ),
)  # fmt: skip


def main(asked: Sequence[str]) -> int:
    """Make the samples that are asked for; the exit code is 1 if one could not be made."""
    known = {sample.name: sample for sample in SAMPLES}
    if strange := sorted(set(asked) - {*known, "empty"}):
        sys.stderr.write(f"no such sample: {', '.join(strange)} (there are: {', '.join(known)})\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch) / "profile") as browser:
        made: dict[tuple[str, ...], Path] = {}
        for name in asked or (*known, "empty"):
            page = _empty(Path(scratch)) if name == "empty" else _page(known[name], scratch, made)
            if page is None:
                return 1
            _take(browser, page, name)
    return 0


def _page(sample: Sample, scratch: str, made: dict[tuple[str, ...], Path]) -> Path | None:
    """Run the campaign of a sample, if no other sample did; return the page that is shown."""
    if sample.options not in made:
        store = Path(scratch) / f"run-{len(made)}"
        defaults = [
            word for pair in QUICK.items() if pair[0] not in sample.options for word in pair
        ]
        argv = [sys.executable, "-P", "-m", "harness.cli", "run", *defaults, *sample.options]
        done = subprocess.run(
            [*argv, "--store", str(store)], cwd=scratch, capture_output=True, text=True, check=False
        )
        if done.returncode != CODES[sample.verdict]:
            sys.stderr.write(f"{sample.name}: ended with {done.returncode}\n{done.stdout}")
            return None
        made[sample.options] = (store / "latest").resolve()
    folder = made[sample.options]
    if not sample.violation:
        return folder / "report.html"
    pages = sorted((folder / "violations").glob(f"*{sample.violation}*.html"))
    if not pages:
        sys.stderr.write(f"{sample.name}: no page of such a violation in {folder}\n")
        return None
    return pages[0]


def _empty(scratch: Path) -> Path:
    """The report of a folder in which nothing was written."""
    import reports  # noqa: PLC0415 - takes a second

    folder = scratch / "empty" / "20261122T120000.000Z"
    folder.mkdir(parents=True)
    reports.write(folder)
    return folder / "report.html"


def _take(browser: Chromium, page: Path, name: str) -> None:
    """Take one page at each width, with few colours: they are kept in the repository."""
    for width in WIDTHS:
        browser.open(page.as_uri(), width)
        browser.settle()
        target = SAMPLES_FOLDER / f"{name}-{width}.png"
        whole = target.with_suffix(".whole.png")
        browser.picture(whole, HEIGHT_PX_MAX[width])
        with Image.open(io.BytesIO(whole.read_bytes())) as image:
            image.convert("RGB").quantize(COLOURS).save(target, optimize=True)
        whole.unlink()
        sys.stdout.write(f"{target.relative_to(ROOT)}  {target.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    if shutil.which("chromedriver") is None:
        sys.exit("no chromedriver on PATH (Debian: chromium, chromium-driver)")
    sys.exit(main(sys.argv[1:]))
