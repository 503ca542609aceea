"""The scorecard that is kept with the project: every planted bug, hunted by every method.

Its plan is made anew from the bugs that there are; hunts whose outcome is in
tests/calibration/scorecard/hunts.jsonl are not repeated, so it can be run in parts. All of it takes
two cores some five hours.

    .venv/bin/python -m tests.soaks.scorecard --jobs 2
    .venv/bin/python -m tests.soaks.scorecard --again lease-after-restart

With `--again` hunts that missed one of these bugs, on an older tree, are repeated.

Exit codes: those of `calibrate`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness import cli
from shaketable.harness.calibration import CLEAN, OUTCOMES, Method, Plan, read_outcomes
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.terminal.calibrate import PLAN, CalibrateOptions

KEPT: Final = Path(__file__).parents[1] / "calibration" / "scorecard"
SEED: Final = 17
REPEATS: Final = 1
ORDER: Final[tuple[Method, ...]] = ("default", "sim", "family", "default-sim")
"""The default campaign first: what it misses is what a user would miss."""


def plan_of_all() -> Plan:
    """Return the plan for the planted bugs that there are now."""
    plan = CalibrateOptions(seed=SEED, repeats=REPEATS).plan()
    hunts = sorted(plan.hunts, key=lambda hunt: ORDER.index(hunt.method))
    return msgspec.structs.replace(plan, hunts=tuple(hunts))


def unfound_first(plan: Plan) -> Plan:
    """Return the plan with the hunts first of bugs that nothing found yet."""
    found = {
        outcome.hunt.bug
        for outcome in read_outcomes(KEPT, plan).values()
        if outcome.found is not None
    }
    found.add(CLEAN)
    hunts = tuple(sorted(plan.hunts, key=lambda hunt: hunt.bug in found))
    return msgspec.structs.replace(plan, hunts=hunts)


def forget_misses(bugs: frozenset[str]) -> None:
    """Remove the outcomes of hunts that did not find one of these bugs."""
    file = KEPT / OUTCOMES
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            outcome = json.loads(line)
        except ValueError:  # it was cut off: not there
            continue
        if outcome["hunt"]["bug"] not in bugs or outcome["found"] is not None:
            kept.append(line)
    write_atomically(file, "".join(f"{line}\n" for line in kept))


def main() -> int:
    """Run the hunts that are missing; return the exit code of `calibrate`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="hunts at once")
    parser.add_argument("--again", nargs="+", default=[], metavar="BUG", help="repeat its misses")
    options = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    plan = plan_of_all()
    if strange := sorted({*options.again} - {hunt.bug for hunt in plan.hunts}):
        parser.error(f"there is no planted bug {', '.join(strange)}")
    if options.again:
        forget_misses(frozenset(options.again))
    write_atomically(KEPT / PLAN, msgspec.json.encode(unfound_first(plan)).decode() + "\n")
    return cli.run(["calibrate", "--resume", str(KEPT), "--jobs", str(options.jobs)])


if __name__ == "__main__":
    sys.exit(main())
