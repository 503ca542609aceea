r"""Runs workloads many times on systems without planted bugs: how many runs are valid.

    .venv/bin/python -m tests.soaks.clean_workloads queue-delays queue-held --runs 20
    .venv/bin/python -m tests.soaks.clean_workloads register --targets pysyncobj --runs 10 \
        --option compaction_entries=off --time-limit 60 --faults kill,pause

Each run is a campaign of its own seed on processes, with the default faults or those of --faults.
Prints a line for each, how many were valid and how long they took; ends with 0 if all were. With
--store, runs that were not valid are kept there, and what has ended at this commit is not run
again.
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
from typing import Any

ROOT = Path(__file__).parents[2]
VERDICTS = {0: "VALID", 1: "INVALID", 2: "UNKNOWN"}
RUN_TIMEOUT_S = 600.0
ENDED = "ended.jsonl"
"""In the store: a line for each run that has ended."""


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
    parser.add_argument("--option", help="as `run` takes it, several by commas; of all targets")
    parser.add_argument(
        "--store", type=Path, help="keep what has ended, and runs that were not valid, here"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(asked, asked.store or Path(folder))
        sums = [
            soak.run_all(target, workload)
            for target, workload in itertools.product(asked.targets, asked.workloads)
        ]
    say("\n" + "\n".join(line for _, line in sums))
    return 0 if all(is_clean for is_clean, _ in sums) else 1


class Soak:
    """A folder with the runs that were not valid, and a line for each that has ended."""

    def __init__(self, asked: argparse.Namespace, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._asked, self._store, self._file = asked, store, store / ENDED
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        self._tree = subprocess.check_output(described, text=True).strip()
        ended = [each for each in map(json.loads, lines) if each["tree"] == self._tree]
        self._ended = {(each["about"], each["seed"]): each for each in ended}

    def run_all(self, target: str, workload: str) -> tuple[bool, str]:
        """Run a workload's seeds; return whether all were valid, and a line about it."""
        asked = self._asked
        options = (target, workload, asked.option, asked.world, asked.faults, asked.time_limit)
        about = "-".join(filter(None, options)).replace("/", "_")
        say(f"{workload} on {target}")
        runs = [
            self._ended.get((about, seed)) or self._run(seed, target, workload, about)
            for seed in range(asked.first, asked.first + asked.runs)
        ]
        valid = sum(run["exit"] == 0 for run in runs)
        took_s = sum(run["took_s"] for run in runs)
        line = f"{about}: {valid} of {asked.runs} runs are valid, {took_s / 60:.0f} min"
        return valid == asked.runs, line

    def _run(self, seed: int, target: str, workload: str, about: str) -> dict[str, Any]:
        """Do one campaign, say how it ended; a valid run is not kept."""
        began = time.monotonic()
        store = self._store / about / f"{seed}"
        exit_code, output = _campaign(seed, target, workload, store, self._asked)
        ended = {
            "tree": self._tree, "about": about, "seed": seed, "exit": exit_code,
            "took_s": round(time.monotonic() - began, 1), "told": _told(store),
        }  # fmt: skip
        verdict = VERDICTS.get(exit_code, f"exit {exit_code}")
        say(f"  {seed:<8}{verdict:<9}{ended['took_s']:>5.0f} s  {ended['told']}")
        if exit_code == 0:
            shutil.rmtree(store)
        elif not (store / "latest").exists():
            say(output)
        if exit_code in VERDICTS:  # what could not be run, or not be judged, is run again
            with self._file.open("a") as file:
                file.write(json.dumps(ended) + "\n")
        return ended


def _campaign(
    seed: int, target: str, workload: str, store: Path, asked: argparse.Namespace
) -> tuple[int, str]:
    """Run one campaign; return its exit code, and what it printed where that tells why it ended."""
    command = [
        str(ROOT / "shaketable"), "run", "--workload", workload, "--target", target,
        "--seed", f"soak-{seed}", "--engine", "local", "--store", str(store),
    ]  # fmt: skip
    for option in ("option", "time_limit", "world", "faults"):
        if value := getattr(asked, option):
            command += [f"--{option.replace('_', '-')}", value]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"ended by the soak: no verdict within {RUN_TIMEOUT_S:g} s"
    return done.returncode, done.stderr.strip() or done.stdout.strip()


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
