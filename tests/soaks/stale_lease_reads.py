"""Leases that trust a clock which goes too slowly, beside reads by read index: a table.

    .venv/bin/python tests/soaks/stale_lease_reads.py --runs 20

Each run lets the leader's clocks go at a twentieth of their rate and cuts it off from the others
while clients work. With leases it answers reads that are stale, and the workload's checker finds
them; by read index there is none in any run. Ends with 0 if that is what came out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lease_drift import LEASE_MS, Run, campaign, play

from shaketable.harness.contracts.verdict import Outcome


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run all, print a line for each and what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="so many with leases and without")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--world", default="process", choices=("process", "sim"))
    parser.add_argument("--workload", default="register", choices=("register", "log"))
    parser.add_argument("--store", type=Path, help="keep the runs here")
    asked = parser.parse_args()
    say(f"{'reads by':<12}{'seed':<8}{'ok':>7}{'bit':>6}  {'verdict':<9}evidence")
    with tempfile.TemporaryDirectory() as folder:
        store = asked.store or Path(folder)
        runs = [
            _run(f"{number}", leases_ms, asked.world, asked.workload, store)
            for leases_ms in (LEASE_MS, 0)
            for number in range(asked.first, asked.first + asked.runs)
        ]
    leased = [run for run in runs if run.leases_ms]
    stale = sum(run.has_stale_reads for run in leased)
    others = [run for run in runs if not run.leases_ms]
    stale_without = sum(run.has_stale_reads for run in others)
    valid = sum(run.linearizable.outcome is Outcome.VALID for run in others)
    say(f"\nleases of {LEASE_MS} ms: stale reads found in {stale} of {len(leased)} runs")
    say(f"read index:       stale reads found in {stale_without} of {len(others)} runs")
    say(f"                  valid are {valid} of them")
    return 0 if stale and valid == len(others) else 1


def _run(seed: str, leases_ms: int, world: str, workload: str, store: Path) -> Run:
    run = play(campaign(seed, leases_ms, world, workload), store)
    by = f"lease {leases_ms} ms" if leases_ms else "read index"
    verdict, faults = run.linearizable, run.result.faults
    say(
        f"{by:<14}{seed:<6}{run.result.counts.ok:>7}{f'{faults.took_effect}/{faults.applied}':>6}"
        f"  {verdict.outcome.name:<9}{verdict.summary[:120]}"
    )
    return run


if __name__ == "__main__":
    sys.exit(main())
