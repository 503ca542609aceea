"""Compares the checker with brute force on many random small histories of each model.

    python tests/benchmarks/fuzz_models.py [--count 20000] [--from-seed 0] [MODEL...]

Each history is judged three times: by brute force, by the checker as it is (a special case where
one applies), and by the search alone. Prints one line a model; ends with 1 at the first
disagreement, and shows its history. Needs the repository's root on the path.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from shaketable.harness import discovery
from tests.support.model_fuzz import DisagreementError, compare
from tests.support.random_objects import OBJECTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--from-seed", type=int, default=0)
    asked = parser.parse_args()
    say("model             agreed  valid  invalid  unknown outcomes  decided by")
    for name in asked.models or OBJECTS:
        model, seen = discovery.get("models", name), Counter()
        for seed in range(asked.from_seed, asked.from_seed + asked.count):
            try:
                seen.update(compare(model, seed))
            except DisagreementError as found:
                say(f"{name}, seed {seed}: {found}")
                say("\n".join(json.dumps(row) for row in found.rows))
                return 1
        methods = ", ".join(f"{k[3:]} {n}" for k, n in sorted(seen.items()) if k[:3] == "by_")
        say(
            f"{name:16} {seen['histories']:7} {seen['valid']:6} {seen['invalid']:8}"
            f" {seen['with_unknown']:17}  {methods}"
        )
    return 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
