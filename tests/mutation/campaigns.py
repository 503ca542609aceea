"""Runs campaigns in the simulated world until the first INVALID, all in one process.

A program of its own, started in the copy of the tree that has the mutant: prints one line of
JSON for each campaign as it ends. All are short, and as deterministic as their seeds: imports
and compiled kernels, which take longer than a campaign, are loaded once.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.mutation import children

OF_ALL = (
    *("run", "--world", "sim", "--engine", "local"),
    *("--store", "runs", "--name", "mutant"),
)
SECONDS, SECONDS_OF_ALL = 6, 12
"""Of clients, in virtual time: enough for each of the target's faults to be done once, and where
clients do everything at once, for all that they do to be seen."""
CAMPAIGN_CPU_S = 25.0
"""Ten times what one takes."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign with its seed. `name` is what the journal and the measured reach call it."""

    name: str
    arguments: tuple[str, ...]


def _campaigns() -> Iterator[Campaign]:
    for seed in ("1", "2"):
        for name, options in _KINDS.items():
            is_long = name.endswith(LONG) or name in STEADY
            seconds = SECONDS_OF_ALL if is_long else SECONDS
            steady, rate = ("4", "100") if name in QUIET else ("1", "300")
            steady = "6" if name in STEADY else steady
            times = ("--time-limit", str(seconds), "--steady", steady, "--rate", rate)
            given = (*times, *options.split())
            yield Campaign(f"{name}.{seed}", (*given, "--seed", seed))


LONG = ("everything", "clients", "alone", "late", "settled", "keys", "operators", "limits")
QUIET = ("everything-clients", "held", "push-settled", "operators", "low-limits")
"""Where polls are to find nothing, and to wait while no fault is in force; where a group is to be
settled, or operators are to be answered."""
STEADY = ("offsets",)
"""Where commits that no node answers are judged: beside no fault."""
LATE = "--faults partition,disk-stall --fault-duration-min 6 --fault-duration-max 7 --op-timeout 8"
"""A broker's own patience, five seconds, ends before the fault and the client's do."""
DISKS = "disk-full,disk-errors,wipe,kill"
_KINDS = {
    # Those that see most come first.
    "log": "--workload log",
    "everything-clients": "--workload everything-clients",
    "push": "--workload queue-push",
    "push-settled": "--workload queue-push --faults none",
    "sync-everything": "--target sync-double-write --workload everything-clients",
    "async-everything": "--target async-replication --workload everything-clients",
    "masters-everything": "--target multi-master --workload everything-clients",
    "sync-queue": "--target sync-double-write --workload queue",
    "async-queue": "--target async-replication --workload queue",
    "masters-queue": "--target multi-master --workload queue",
    "resources": "--workload log --faults disk-full,disk-errors,disk-stall,damage,power",
    "network": "--workload queue --faults delay,duplicate,loss,reorder,flap,half-open,reset",
    "process": "--workload queue --faults clock,crash-loop,rolling-restart,wipe,pause",
    "push-ordered": "--workload queue-push-ordered",
    "ordered": "--workload queue-ordered",
    "offsets": "--workload queue-offsets",
    "held": "--workload queue-held",
    "delays": "--workload queue-delays",
    "sync-push": "--target sync-double-write --workload queue-push",
    "async-disks": f"--target async-replication --workload queue --faults {DISKS}",
    "sync-disks": f"--target sync-double-write --workload queue --faults {DISKS}",
    "five-nodes": "--workload queue --nodes 5",
    "register": "--workload register",
    "group-offsets": "--workload offsets",
    "set": "--workload set",
    "sync-late": f"--target sync-double-write --workload queue {LATE}",
    "names": "--workload queue --faults kill,pause,name-servers",
    "masters-names": "--target multi-master --workload queue --faults kill,pause,name-servers",
    "names-alone": "--workload everything-clients --faults name-servers",
    "masters-late": f"--target multi-master --workload queue {LATE}",
    "one-node": "--workload queue-operators --nodes 1 --faults clock,disk-slow,delay",
    "operators": "--workload queue-operators",
    "low-limits": "--workload queue-operators --limits low",
    "sync-operators": "--target sync-double-write --workload queue-operators",
    "keys": "--workload queue-keys --faults transfer,kill,partition,clock",
    "sync-keys": "--target sync-double-write --workload queue-keys",
    "masters-keys": "--target multi-master --workload queue-keys --faults kill,pause,clock",
}

COMPILING = ("log.1", "everything-clients.1", "register.1", "set.1", "group-offsets.1", "push.1")
"""After these every kernel is compiled that a healthy run needs."""
UNLIMITED = "--unlimited"
"""Before the names: each may take as long as it does, as where kernels are compiled."""

CAMPAIGNS = {one.name: one for one in _campaigns()}
"""By name, in the order in which they are run."""


def run(campaign: Campaign) -> tuple[int, str]:
    """Run a campaign in this process; return its exit code, and what it printed.

    What is run is imported only here: who measures or only names campaigns does not need it.
    """
    judge = importlib.import_module("shaketable.harness.judging.judge")
    view = importlib.import_module("shaketable.reports.run_page.view")
    report = importlib.import_module("shaketable.reports").Report
    # No page is written, which takes longer than the checks; the summary needs what it shows.
    judge.render = lambda folder: report(view.build_view(folder.path), [])
    with tempfile.TemporaryFile("w+") as output:
        with _printing_to(output.fileno()):
            code = importlib.import_module("shaketable.harness.cli").run(
                [*OF_ALL, *campaign.arguments]
            )
        output.seek(0)
        return int(code), output.read()


@contextmanager
def _printing_to(file: int) -> Iterator[None]:
    """Send what is printed, by whomever, to a file."""
    kept = os.dup(1), os.dup(2)
    sys.stdout.flush()
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        for number, before in enumerate(kept, 1):
            os.dup2(before, number)
            os.close(before)


def verdict_line(output: str) -> str:
    """Return what a campaign printed as its verdict, in one line."""
    found = re.search(r"^\s*((?:IN)?VALID|UNKNOWN)\b.*", output, re.MULTILINE)
    return " ".join((found.group(0) if found else last_line(output)).split())[:200]


def last_line(output: str) -> str:
    """Return the last line that says something."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""


def main(names: list[str]) -> int:
    """Run the campaigns of these names; return 1 at the first that is INVALID."""
    sys.stdout.write("started\n")
    is_limited = UNLIMITED not in names[:1]
    for name in names if is_limited else names[1:]:
        began = time.monotonic()
        if is_limited:
            children.limit_part(CAMPAIGN_CPU_S)
        code, output = run(CAMPAIGNS[name])
        line = {"campaign": name, "code": code, "verdict": verdict_line(output)}
        seconds = round(time.monotonic() - began, 1)
        sys.stdout.write(json.dumps({**line, "seconds": seconds}) + "\n")
        sys.stdout.flush()
        if code == 1:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
