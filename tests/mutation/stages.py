"""The three judges of a mutant: unit tests, simulation, campaigns; each by itself."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation import children
from tests.mutation.campaigns import last_line, verdict_line
from tests.mutation.mutants import Mutant
from tests.mutation.reach import PYTEST_OPTIONS, Reach

UNIT_TESTS_S_MAX = 60.0
"""Of all tests that execute the line, those that are fastest, as many as take this long."""
UNIT_TESTS_MAX = 150
UNIT_CPU_S = 90.0
SIMULATED_CPU_S = 600.0
"""For all seeds or campaigns; each has a limit of its own, in the program that runs it."""
PROCESS_CPU_S = 150.0
PROCESS_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a judge found.

    Attributes:
        outcome: "killed"; "timeout", which counts as killed; "survived"; "not-reached" if nothing
            of the judge's executes the line; "not-started" if the program could not be imported;
            "noticed" if a campaign knew that something ended, and not what was wrong.
        by: What killed it, in one line.
        tried: Which seeds or campaigns were run, to go on behind them.
    """

    outcome: str
    by: str = ""
    tried: list[str] = field(default_factory=list)
    seconds: float = 0.0


FOUND = ("killed", "timeout", "not-started")
"""Outcomes after which nobody else is asked."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far each judge goes."""

    core_seeds: int = 25
    node_seeds: int = 6
    master_slave_seeds: int = 16
    virtual_s: float = 20.0
    campaigns: int = 12
    process_s: float = 10.0

    def seeds_of(self, world: str) -> int:
        """How many seeds of a simulated world are run."""
        of = {
            "core": self.core_seeds,
            "node": self.node_seeds,
            "master_slave": self.master_slave_seeds,
        }
        return of[world]


PROCESS_CAMPAIGNS = {
    "process-log": ("--workload", "log"),
    "process-queue": ("--workload", "queue"),
    **{
        mode: ("--target", mode, "--workload", "queue")
        for mode in ("multi_master", "async_replication", "sync_double_write")
    },
}
MASTER_SLAVE = frozenset({"multi_master", "async_replication", "sync_double_write"})


def unit_tests(mutant: Mutant, tree: Path, reach: Reach) -> Outcome:
    """Run the tests that execute the line, the fastest first, until one fails."""
    tests = reach.of(mutant.path, mutant.line, mutant.last_line)
    if not tests:
        return Outcome("not-reached")
    chosen: list[str] = []
    seconds = 0.0
    for test in tests[:UNIT_TESTS_MAX]:
        seconds += reach.everybody[test]
        if chosen and seconds > UNIT_TESTS_S_MAX:
            break
        chosen.append(test)
    options = (*PYTEST_OPTIONS, "-x", "--tb=line")
    ended = children.run([sys.executable, "-m", "pytest", *options, *chosen], tree, UNIT_CPU_S)
    tried = [f"{len(chosen)} of {len(tests)} tests"]
    if ended.code is None:
        return Outcome("timeout", last_line(ended.output), tried, ended.seconds)
    if ended.code == 0:
        return Outcome("survived", "", tried, ended.seconds)
    failed = re.search(r"^FAILED (\S+)|^ERROR (\S+::\S+)", ended.output, re.MULTILINE)
    if ended.code == 1 and failed:
        return Outcome("killed", failed.group(1) or failed.group(2), tried, ended.seconds)
    return Outcome("not-started", last_line(ended.output), tried, ended.seconds)


def simulation(
    world: str, mutant: Mutant, tree: Path, reach: Reach, limits: Limits, tried: Sequence[str]
) -> Outcome:
    """Run the seeds that execute the line, but those that were tried, until one is violated."""
    reached = reach.of(mutant.path, mutant.line, mutant.last_line)
    if not reached:
        return Outcome("not-reached")
    limit = limits.seeds_of(world)
    seeds = [seed for seed in reached if seed not in tried][: max(0, limit - len(tried))]
    if not seeds:
        return Outcome("survived", "", list(tried))
    program = [sys.executable, "-m", "tests.mutation.seeds", world, str(limits.virtual_s)]
    ended = children.run([*program, *seeds], tree, SIMULATED_CPU_S)
    lines = [line for line in ended.output.splitlines() if line.startswith('{"seed"')]
    ran = [*tried, *(str(json.loads(line)["seed"]) for line in lines)]
    if ended.code == 0:
        return Outcome("survived", "", ran, ended.seconds)
    if ended.code is None:
        return Outcome("timeout", f"in the seed after {len(ran)}", ran, ended.seconds)
    if lines and (broken := json.loads(lines[-1])["violation"]):
        return Outcome("killed", broken[:200], ran, ended.seconds)
    is_started = any(line == "started" for line in ended.output.splitlines())
    what = "killed" if is_started else "not-started"
    return Outcome(what, f"crash: {last_line(ended.output)}", ran, ended.seconds)


def campaigns(
    mutant: Mutant, tree: Path, reach: Reach, limits: Limits, tried: Sequence[str]
) -> Outcome:
    """Run the simulated campaigns that execute the line, but those that were tried."""
    reached = reach.of(mutant.path, mutant.line, mutant.last_line)
    if not reached:
        return Outcome("not-reached")
    names = [name for name in reached if name not in tried][: max(0, limits.campaigns - len(tried))]
    if not names:
        return Outcome("survived", "", list(tried))
    program = [sys.executable, "-m", "tests.mutation.campaigns", *names]
    ended = children.run(program, tree, SIMULATED_CPU_S)
    lines = [json.loads(one) for one in ended.output.splitlines() if one.startswith('{"campaign"')]
    ran = [*tried, *(line["campaign"] for line in lines)]
    if ended.code is None:
        return Outcome("timeout", f"in the campaign after {len(lines)}", ran, ended.seconds)
    said = [f"{line['campaign']}: {line['verdict']}" for line in lines if line["code"]]
    if ended.code == 1 and lines and lines[-1]["code"] == 1:
        return Outcome("killed", said[-1], ran, ended.seconds)
    if ended.code != 0:
        return Outcome("not-started", last_line(ended.output), ran, ended.seconds)
    return Outcome("noticed" if said else "survived", "; ".join(said)[:300], ran, ended.seconds)


def processes(mutant: Mutant, tree: Path, limits: Limits, tried: Sequence[str]) -> Outcome:
    """Run campaigns on real processes, but those that were tried, until one is invalid."""
    ran, seconds, noticed = list(tried), 0.0, ""
    for name, arguments in PROCESS_CAMPAIGNS.items():
        unlike = "raft" if name in MASTER_SLAVE else "master_slave"
        if mutant.package == unlike or name in tried:
            continue
        command = [
            *(sys.executable, "-P", "-m", "shaketable", "run", *arguments, "--engine", "local"),
            *("--seed", "1", "--time-limit", f"{limits.process_s:g}", "--steady", "2"),
            *("--store", "runs", "--name", name),
        ]
        ended = children.run(command, tree, PROCESS_CPU_S, PROCESS_S_MAX)
        ran.append(name)
        seconds += ended.seconds
        if ended.code is None:
            return Outcome("timeout", name, ran, seconds)
        if ended.code == 1:
            return Outcome("killed", f"{name}: {verdict_line(ended.output)}", ran, seconds)
        if ended.code != 0:
            noticed = noticed or f"{name}, exit {ended.code}: {verdict_line(ended.output)}"
    return Outcome("noticed" if noticed else "survived", noticed, ran, seconds)


UNIT = "unit"
SHAKING = ("core", "node", "master_slave", "campaigns", "processes")
"""Judges that know nothing of the code, the cheapest first."""
JUDGES: tuple[str, ...] = (*SHAKING, UNIT)


def judge(
    name: str, mutant: Mutant, tree: Path, reach: Reach | None, limits: Limits, tried: Sequence[str]
) -> Outcome:
    """Ask one judge about a mutant, whose tree it is. Processes need no `reach`."""
    if name == "processes":
        return processes(mutant, tree, limits, tried)
    assert reach is not None
    if name == UNIT:
        return unit_tests(mutant, tree, reach)
    if name == "campaigns":
        return campaigns(mutant, tree, reach, limits, tried)
    return simulation(name, mutant, tree, reach, limits, tried)
