"""Makes the pictures of reports/samples: pages as Chromium shows them, wide and narrow.

    .venv/bin/python tests/reports/make_samples.py [NAME ...]

Runs campaigns in the simulated world, with and without planted bugs, so that the same pages come
out anywhere; what no planted bug shows comes from golden histories (`every_kind`). Names are those
of `SAMPLES`, "empty", and kinds of violations; without any all are made anew (about ten minutes).
Look at what changed before you commit it.
"""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import every_kind
from chromium import Chromium, chromium
from PIL import Image
from reported_kinds import reported_kinds

from shaketable import reports
from shaketable.reports.violation_page import violation_view

ROOT: Final = Path(__file__).parents[2]
SAMPLES_FOLDER: Final = ROOT / "reports" / "samples"
WIDE: Final = 1440
NARROW: Final = 390
REPORT_HEIGHT_PX: Final = {WIDE: 2400, NARROW: 3000}
WHOLE_HEIGHT_PX: Final = {WIDE: 3000, NARROW: 3600}
KIND_HEIGHT_PX: Final = {WIDE: 860, NARROW: 960}
COLOURS: Final = 48
COLOURS_OF_HEAD: Final = 20
"""Of a page's head alone, which has no picture."""
CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
QUICK: Final = {
    "--world": "sim", "--seed": "sample", "--time-limit": "20", "--spark-master": "local[1]",
}  # fmt: skip
WHOLE: Final = ("lost-append", "stale-read", "not-linearizable", "G0-realtime")
"""Kinds whose page is shown to its end, one for each sort of evidence."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A run: the name of its report's picture, how it must end, the options of `run`.

    Where it has no name only its violations are pictured.
    """

    verdict: str
    options: tuple[str, ...]
    name: str = ""


ACK: Final = ("--mutant", "ack-before-quorum", "--faults", "partition")
SAMPLES: Final = (
    Sample("valid", (), "valid"),
    Sample("unknown", ("--faults", "kill", "--rate", "5"), "unknown"),
    Sample("invalid", ACK, "invalid"),
    Sample("invalid", (*ACK, "-w", "register")),
    Sample("invalid", (*ACK, "-w", "set")),
    Sample("invalid", (*ACK, "-w", "counter")),
    Sample("invalid", (*ACK, "-w", "offsets")),
)


@dataclass(slots=True)
class Studio:
    """Where the pages come from: runs that are made once, and golden histories behind them."""

    scratch: Path
    browser: Chromium
    folders: dict[Sample, Path | None] = field(default_factory=dict)

    def folder(self, sample: Sample) -> Path | None:
        """Run a campaign, if that was not done; None if it ended otherwise than it must."""
        if sample not in self.folders:
            store = self.scratch / f"run-{len(self.folders)}"
            defaults = [
                word for pair in QUICK.items() if pair[0] not in sample.options for word in pair
            ]
            argv = [sys.executable, "-P", "-m", "shaketable", "run", *defaults, *sample.options]
            sys.stderr.write(f"running {' '.join(sample.options) or 'a healthy system'}\n")
            done = subprocess.run(
                [*argv, "--store", str(store)],
                cwd=self.scratch, capture_output=True, text=True, check=False,
            )  # fmt: skip
            is_right = done.returncode == CODES[sample.verdict]
            self.folders[sample] = (store / "latest").resolve() if is_right else None
            if not is_right:
                sys.stderr.write(f"{sample}: ended with {done.returncode}\n{done.stdout}")
        return self.folders[sample]

    def golden_folder(self, name: str) -> Path:
        """Return the folder of a run that is made of golden histories."""
        folder = self.scratch / name / "run"
        if not folder.exists():
            folder.mkdir(parents=True)
            every_kind.RUNS[name](folder)
            reports.write(folder)
        return folder

    def page_of(self, kind: str) -> Path | None:
        """Return the page of the first violation of a kind: of a campaign, if one shows it."""
        runs = (self.folder(sample) for sample in SAMPLES if sample.verdict == "invalid")
        for folder in itertools.chain(runs, map(self.golden_folder, every_kind.RUNS)):
            for page in () if folder is None else violation_view.read_index(folder / "violations"):
                if page.kind == kind:
                    return folder / "violations" / page.file
        return None

    def take(self, page: Path, target: Path, heights: dict[int, int]) -> None:
        """Take a page at each width, with few colours: they are kept in the repository."""
        target.parent.mkdir(exist_ok=True)
        colours = COLOURS_OF_HEAD if heights is KIND_HEIGHT_PX else COLOURS
        for width, height in heights.items():
            self.browser.open(page.as_uri(), width)
            self.browser.settle()
            path = target.with_name(f"{target.name}-{width}.png")
            self.browser.picture(path, height)
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                few = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
                few.save(path, optimize=True)
            sys.stdout.write(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB\n")


def main(asked: Sequence[str]) -> int:
    """Make the samples that are asked for; the exit code is 1 if one could not be made."""
    named = {sample.name: sample for sample in SAMPLES if sample.name}
    kinds = sorted(reported_kinds())
    known = (*named, "empty", *kinds)
    if strange := sorted(set(asked) - set(known)):
        sys.stderr.write(f"no such sample: {', '.join(strange)} (there are: {', '.join(known)})\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch) / "profile") as browser:
        studio = Studio(Path(scratch), browser)
        is_whole = True
        for name in asked or known:
            if name in kinds:
                page = studio.page_of(name)
                target = SAMPLES_FOLDER / "violations" / name.lower()
                heights = WHOLE_HEIGHT_PX if name in WHOLE else KIND_HEIGHT_PX
            else:
                folder = _empty(studio) if name == "empty" else studio.folder(named[name])
                page = None if folder is None else folder / "report.html"
                target, heights = SAMPLES_FOLDER / name, REPORT_HEIGHT_PX
            if page is None:
                sys.stderr.write(f"{name}: no such page was made\n")
                is_whole = False
            else:
                studio.take(page, target, heights)
    return 0 if is_whole else 1


def _empty(studio: Studio) -> Path:
    """Return the folder of a run in which nothing was written."""
    folder = studio.scratch / "empty" / "20261122T120000.000Z"
    folder.mkdir(parents=True)
    reports.write(folder)
    return folder


if __name__ == "__main__":
    if shutil.which("chromedriver") is None:
        sys.exit("no chromedriver on PATH (Debian: chromium, chromium-driver)")
    sys.exit(main(sys.argv[1:]))
