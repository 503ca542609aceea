"""SIGKILL of the harness in the middle of each fault, heal, and what is left then: a table.

    .venv/bin/python tests/soaks/killed_harness.py
    .venv/bin/python tests/soaks/killed_harness.py --faults pause,clock --worlds netns

For each fault on each world: a campaign is started, and when the ledger says that the fault is in
force its harness is killed. In a second variant the nodes have been told not to die with it, and
everything else of the run is killed at the same time: what would clean up, too. In a third that
happens as soon as the ledger says that the fault is being applied. Then `heal` is run,
and processes, namespaces, mounts, interfaces, rules of the packet filter, preloads and scratch
folders are compared with what was there before. "check" is the time when Spark judges. Ends with 0
if nothing is left of any trial.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from killed_harness import HEADING, SPARK, Trial, show, try_one, worst

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.runtime import availability

VARIANTS = ("harness", "unguarded", "applying")
WORLDS = ("process", "netns", "sim")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Try all, print a line for each and what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", default="", help="names, by commas; all of them by default")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(255))  # what was started is ended
    every = (*discovery.find("faults"), SPARK)
    faults = asked.faults.split(",") if asked.faults else every
    trials: list[Trial] = []
    say(HEADING)
    with tempfile.TemporaryDirectory(prefix="killed-harness-") as folder:
        for world in asked.worlds.split(","):
            for fault in faults:
                why = _lacking(fault, world)
                if why is not None:
                    say(f"{fault:<16}{world:<9}skipped: {why}")
                    continue
                for variant in asked.variants.split(","):
                    if world == "sim" and variant != VARIANTS[0]:
                        continue  # its nodes are no processes
                    trials.append(try_one(fault, world, variant, Path(folder)))
                    say(show(trials[-1]))
    clean = sum(trial.is_clean for trial in trials)
    survivors = sum(trial.survived > 0 for trial in trials)
    half = sum(trial.is_half for trial in trials)
    say(
        f"\n{clean} of {len(trials)} trials are clean after heal; in {survivors} something survived"
        f" the kill, in {half} the fault was half applied"
    )
    return worst(trials)


def _lacking(fault: str, world: str) -> str | None:
    if fault == SPARK:
        return None
    campaign = Campaign(faults=(fault, "kill"), world=world)  # type: ignore[arg-type]
    return availability.choose(campaign).unavailable.get(fault)


if __name__ == "__main__":
    sys.exit(main())
