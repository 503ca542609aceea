"""Tests of which CI runs a part, as a whole: thousands of random cases, campaigns that are alike.

    .venv/bin/python -m tests.soaks.whole_volumes
    .venv/bin/python -m tests.soaks.whole_volumes tests/checkers/models

Takes about half an hour of two cores. Exit codes: those of pytest, 254 where there are no such
tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import volume

TESTS = Path(__file__).parents[1]
NO_TESTS = 254
IMPORT = f"from {volume.__name__} import "


def tests_of_volume(folders: Sequence[Path]) -> list[Path]:
    """Return the test files in `folders` whose cases CI runs a part of."""
    files = (path for folder in folders for path in sorted(folder.rglob("test_*.py")))
    return [path for path in files if IMPORT in path.read_text(encoding="utf-8")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; return pytest's exit code, or NO_TESTS if there are none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[TESTS], metavar="FOLDER")
    given = parser.parse_args(arguments)
    files = tests_of_volume(given.folders)
    if not files:
        print("no tests of volume in", *given.folders, file=sys.stderr)  # noqa: T201 - a command
        return NO_TESTS
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--timeout", "3600", *map(str, files)],
        env=os.environ | {volume.VARIABLE: volume.WHOLE},
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
