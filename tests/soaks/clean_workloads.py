"""Runs workloads many times on systems without planted bugs: how many runs are valid.

    .venv/bin/python -m tests.soaks.clean_workloads queue-delays queue-held --runs 20

Each run is a campaign of its own seed on processes, with the default faults or those of --faults.
Prints a line for each and how many were valid; ends with 0 if all were. Runs that were not are
kept in --store.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERDICTS = {0: "VALID", 1: "INVALID", 2: "UNKNOWN"}
RUN_TIMEOUT_S = 600.0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run all, print a line for each and what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "workloads", nargs="+", help="their names, as `./shaketable list workloads` has them"
    )
    parser.add_argument("--runs", type=int, default=20, help="of each workload on each target")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument(
        "--time-limit", help="seconds of each run; `run`'s default if it is not given"
    )
    parser.add_argument("--targets", nargs="+", default=["dledger"], metavar="TARGET")
    parser.add_argument("--world", help="as `run` takes it; its default if it is not given")
    parser.add_argument("--faults", help="as `run` takes them; its default if it is not given")
    parser.add_argument("--store", type=Path, help="keep the runs that were not valid here")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.runs)
    sums = []
    with tempfile.TemporaryDirectory() as folder:
        for target, workload in itertools.product(asked.targets, asked.workloads):
            about = f"{target}-{workload}"
            store = (asked.store or Path(folder)) / about
            say(f"{workload} on {target}")
            valid = sum(_run(seed, target, workload, store / f"{seed}", asked) for seed in seeds)
            sums.append((valid, f"{workload} on {target}: {valid} of {asked.runs} runs are valid"))
    say("\n" + "\n".join(line for _, line in sums))
    return 0 if all(valid == asked.runs for valid, _ in sums) else 1


def _run(seed: int, target: str, workload: str, store: Path, asked: argparse.Namespace) -> bool:
    """Do one campaign, say how it ended, return whether it is valid; a valid run is not kept."""
    command = [
        str(ROOT / "shaketable"), "run", "--workload", workload, "--target", target,
        "--seed", f"soak-{seed}", "--engine", "local", "--store", str(store),
    ]  # fmt: skip
    if asked.time_limit:
        command += ["--time-limit", asked.time_limit]
    if asked.world:
        command += ["--world", asked.world]
    if asked.faults:
        command += ["--faults", asked.faults]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        say(f"  {seed:<8}ended by the soak: no verdict within {RUN_TIMEOUT_S:g} s")
        return False
    say(
        f"  {seed:<8}{VERDICTS.get(done.returncode, f'exit {done.returncode}'):<9}"
        f"{time.monotonic() - began:>5.0f} s  {_told(store)}"
    )
    if done.returncode == 0:
        shutil.rmtree(store)
    elif not (store / "latest").exists():
        say(done.stderr.strip() or done.stdout.strip())
    return done.returncode == 0


def _told(store: Path) -> str:
    """Say what the checkers of a run found, or how many they counted."""
    path = store / "latest" / "results.json"
    if not path.exists():
        return "no results"
    checkers = json.loads(path.read_text())["checkers"]
    bad = [
        f"{name}: {each['summary']}" for name, each in checkers.items() if each["valid"] is not True
    ]
    return "; ".join(bad) or checkers["stats"]["summary"]


if __name__ == "__main__":
    sys.exit(main())
