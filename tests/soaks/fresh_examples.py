"""Property tests with examples that nobody has run yet.

CI runs the same examples each time, so that a failure there belongs to the change under test. This
soak runs the same tests with a fresh Hypothesis seed each round, until its time is over or a test
fails. Hypothesis prints how to reproduce a failure and keeps the example in `.hypothesis/`, so that
the next run starts with it.

    .venv/bin/python -m tests.soaks.fresh_examples --minutes 30
    .venv/bin/python -m tests.soaks.fresh_examples --minutes 5 tests/store tests/raft

Exit codes: 0 no test failed, 1 one did, 254 there are no property tests in these folders.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
NO_TESTS = 254
SEEDS = 2**32


def property_tests(folders: Sequence[Path]) -> list[Path]:
    """Return the test files in `folders` that use Hypothesis."""
    files = (path for folder in folders for path in sorted(folder.rglob("test_*.py")))
    return [path for path in files if "from hypothesis" in path.read_text(encoding="utf-8")]


def run_round(files: Sequence[Path], seed: int) -> bool:
    """Run the tests with one Hypothesis seed; return whether all passed."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "auto", "--hypothesis-profile", "fresh",
            "--hypothesis-seed", str(seed), *map(str, files),
        ],
        check=False,
    )  # fmt: skip
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds until the time is over or a test fails; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="start no round after these")
    parser.add_argument("folders", nargs="*", type=Path, default=[TESTS], metavar="FOLDER")
    given = parser.parse_args(arguments)
    files = property_tests(given.folders)
    if not files:
        print("no property tests in", *given.folders, file=sys.stderr)  # noqa: T201 - a command
        return NO_TESTS
    seeds = random.SystemRandom()
    end_s = time.monotonic() + given.minutes * 60
    rounds = 0
    while time.monotonic() < end_s:
        rounds += 1
        seed = seeds.randrange(SEEDS)
        print(f"round {rounds}: {len(files)} files, Hypothesis seed {seed}", flush=True)  # noqa: T201
        if not run_round(files, seed):
            return 1
    print(f"{rounds} rounds of {len(files)} files: no test failed")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
