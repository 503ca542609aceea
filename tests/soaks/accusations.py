"""Proves accusations: for random invalid histories of each model, who is named is at fault.

    .venv/bin/python tests/soaks/accusations.py --count 5000

With the named operations, up to the last return of them, no order exists; without them one does;
and no smaller set has this property. Brute force says so, on plain objects of its own; where that
takes too long (`search` in the table) the search alone says the first two, `open` are too large
for both. Prints a line a model; ends with 1 at the first accusation that is not proven, and shows
its history.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from shaketable.harness import discovery
from tests.support.accusations import UnprovenError, examine, history
from tests.support.plain_objects import PLAIN

PROGRESS_S = 30.0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Examine all models, print a line for each and what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--count", type=int, default=5_000, help="invalid histories of each model")
    parser.add_argument("--from-seed", type=int, default=0)
    parser.add_argument("--search-only", action="store_true", help="without the special cases")
    asked = parser.parse_args()
    say(
        f"{'model':<16}{'invalid':>8}{'drawn':>8}{'one':>7}{'two':>6}{'more':>6}{'unnamed':>9}"
        f"{'brute':>8}{'search':>8}{'open':>6}{'unknown':>9}{'s':>6}  decided by"
    )
    total: Counter[str] = Counter()
    for name in asked.models or sorted(PLAIN):
        began = time.monotonic()
        seen = _examine(name, asked.count, asked.from_seed, not asked.search_only)
        if seen is None:
            return 1
        say(_line(name, seen, time.monotonic() - began))
        total.update(seen)
    say(_line("all", total, 0.0))
    return 0


def _examine(name: str, count: int, seed: int, use_special_cases: bool) -> Counter[str] | None:
    """Examine histories until so many were invalid; None where an accusation is not proven."""
    model, seen = discovery.get("models", name), Counter[str]()
    last = time.monotonic()
    while seen["findings"] < count:
        rows = history(name, seed)
        try:
            seen.update(examine(model, rows, use_special_cases=use_special_cases))
        except UnprovenError as found:
            say(f"{name}, seed {seed}: {found}")
            say("\n".join(json.dumps(row) for row in found.rows))
            return None
        seen["drawn"] += 1
        seed += 1
        if time.monotonic() - last > PROGRESS_S:
            last = time.monotonic()
            say(f"  {name}: {seen['findings']} of {count} invalid histories, seed {seed}")
    return seen


def _line(name: str, seen: Counter[str], seconds: float) -> str:
    sizes = {int(key[8:]): n for key, n in seen.items() if key.startswith("accused ")}
    more = sum(n for size, n in sizes.items() if size > 2)
    unknown = [int(key[8:]) for key in seen if key.startswith("unknown ")]
    methods = sorted((key[3:], n) for key, n in seen.items() if key.startswith("by ")
                     and key not in ("by brute force", "by the search alone"))  # fmt: skip
    return (
        f"{name:<16}{seen['findings']:>8}{seen['drawn']:>8}{sizes.get(1, 0):>7}{sizes.get(2, 0):>6}"
        f"{more:>6}{seen['unnamed']:>9}{seen['by brute force']:>8}{seen['by the search alone']:>8}"
        f"{seen['too large for both']:>6}"
        f"{f'{min(unknown)}..{max(unknown)}':>9}{seconds:>6.0f}"
        f"  {', '.join(f'{method} {n}' for method, n in methods)}"
    )


if __name__ == "__main__":
    sys.exit(main())
