"""What the commands cost that are used a hundred times a day: processor time, by two checkouts.

Runs `--version`, `--help`, `check` of a valid and of an invalid history of 20 operations, and with
--campaign a short run of three nodes, so that caches are warm; then again in turn, this checkout
and the one that it is compared with, each by its own `./shaketable` with its own .venv. Prints
medians of user and system time, of all processes that a command started and waited for, and their
ratio. Processor time also grows on a busy machine: only what was measured in turn is to be
compared.

    python tests/benchmarks/start_up.py --runs 5 --against ../older-checkout
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITES = 10
CAMPAIGN = [
    "run", "--engine", "local", "--time-limit", "8", "--faults", "kill,partition", "--seed", "1",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that one command took: of processors, and by the clock."""

    cpu_s: float
    wall_s: float


def history(folder: Path, *, is_valid: bool) -> Path:
    """Write a register's history: writes, each read by another client while it may be open."""
    rows = []
    for n in range(WRITES):
        at = 30 * n
        found = n if is_valid or n < WRITES - 2 else n - 4
        rows += [
            {"process": 0, "f": "write", "call_ns": at, "return_ns": at + 15, "input": n},
            {"process": 1, "f": "read", "call_ns": at + 10, "return_ns": at + 25, "output": found},
        ]
    path = folder / f"{'valid' if is_valid else 'invalid'}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def spent(checkout: Path, arguments: list[str], folder: Path) -> Spent:
    """Run a command of a checkout; return what it took."""
    environment = {**os.environ}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH"):  # a path would bring another's code
        environment.pop(name, None)
    start_s = time.monotonic()
    process = subprocess.Popen(
        [checkout / "shaketable", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 2:
        sys.exit(f"{' '.join(arguments)} of {checkout} ended with {process.returncode}")
    return Spent(usage.ru_utime + usage.ru_stime, time.monotonic() - start_s)


def shown(many: list[Spent]) -> str:
    cpu_s = [each.cpu_s for each in many]
    wall_s = statistics.median(each.wall_s for each in many)
    return f"{statistics.median(cpu_s):.2f} CPU-s (least {min(cpu_s):.2f}, wall {wall_s:.2f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--campaign", action="store_true", help="also a run of eight seconds")
    given = parser.parse_args()
    checkouts = [ROOT] if given.against is None else [ROOT, given.against.resolve()]
    for checkout in checkouts:  # else its first command would install, perhaps into another's
        venv = checkout / ".venv"
        if venv.is_symlink() or not (venv / "installed-base").exists():
            sys.exit(f"{checkout} has no .venv of its own: call its ./shaketable --help first")
    with tempfile.TemporaryDirectory(prefix="shaketable-start-up-") as name:
        folder = Path(name)
        cases = {
            "--version": ["--version"],
            "--help": ["--help"],
            "check, valid": ["check", str(history(folder, is_valid=True))],
            "check, invalid": ["check", str(history(folder, is_valid=False))],
        }
        if given.campaign:
            cases["run"] = CAMPAIGN
        for case, arguments in cases.items():
            measured: dict[Path, list[Spent]] = {checkout: [] for checkout in checkouts}
            for round_ in range(given.runs + 1):
                for checkout in checkouts:
                    one = spent(checkout, arguments, folder)
                    if round_:  # the first fills caches
                        measured[checkout].append(one)
            line = f"{case:<16}{shown(measured[ROOT])}"
            if len(checkouts) > 1:
                other = measured[checkouts[1]]
                medians = [
                    statistics.median(each.cpu_s for each in many)
                    for many in (other, measured[ROOT])
                ]
                line += f"; there {shown(other)}: {medians[0] / medians[1]:.2f} times as much"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
