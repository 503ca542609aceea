"""Compares what is said of stacks, priority queues, deques, semaphores and sets with brute force.

    .venv/bin/python tests/soaks/structures.py --count 20000

Small random histories, valid and not, with indeterminate and failed operations, answers that
nothing was there, and repeated values, are judged by brute force on plain objects, by the search
alone, and by the special case; accusations by brute force too. Then --middle histories of some
hundred operations are judged by the search and by the special case. Prints a line a model; ends
with 1 at the first disagreement, and shows its history.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.model_fuzz import DisagreementError
from tests.support.structure_fuzz import STRUCTURES, examine, examine_middle

PROGRESS_S = 60.0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Examine all models, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--count", type=int, default=20_000, help="small histories of each model")
    parser.add_argument("--middle", type=int, default=100, help="larger histories of each model")
    parser.add_argument("--from-seed", type=int, default=0)
    asked = parser.parse_args()
    for name in asked.models or STRUCTURES:
        for what, count, judge in (
            ("small", asked.count, examine),
            ("middle", asked.middle, examine_middle),
        ):
            began = time.monotonic()
            seen = _examine(name, judge, asked.from_seed, count)
            if seen is None:
                return 1
            counts = ", ".join(f"{key} {n}" for key, n in sorted(seen.items()))
            say(f"{name:<20}{what:<8}{counts}, {time.monotonic() - began:.0f} s")
    return 0


def _examine(
    name: str, judge: Callable[[str, int], Counter[str]], start: int, count: int
) -> Counter[str] | None:
    """Judge some histories; None where not all agree."""
    seen: Counter[str] = Counter()
    last = time.monotonic()
    for seed in range(start, start + count):
        try:
            seen.update(judge(name, seed))
        except DisagreementError as found:
            say(f"{name}, seed {seed}: {found}")
            say("\n".join(json.dumps(row) for row in found.rows))
            return None
        if time.monotonic() - last > PROGRESS_S:
            last = time.monotonic()
            say(f"  {name}: {seed - start + 1} of {count}")
    return seen


if __name__ == "__main__":
    sys.exit(main())
