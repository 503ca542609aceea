"""The three judges of a mutant: unit tests, simulation, campaigns; each by itself."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation import children
from tests.mutation.mutants import Mutant
from tests.mutation.reach import PYTEST_OPTIONS, Reach

UNIT_TESTS_S_MAX = 60.0
"""Of all tests that execute the line, those that are fastest, as many as take this long."""
UNIT_TESTS_MAX = 150
UNIT_CPU_S = 90.0
SEED_CPU_S = {"core": 8.0, "node": 20.0}
"""Ten times what a seed of 20 virtual seconds takes: a mutant that needs more turns in circles."""
START_CPU_S = 20.0
CAMPAIGN_CPU_S = 150.0
CAMPAIGN_S_MAX = 600.0


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


@dataclass(frozen=True, slots=True)
class Limits:
    """How far each judge goes."""

    core_seeds: int = 25
    node_seeds: int = 6
    virtual_s: float = 20.0
    campaign_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign that hunts the mutants of some packages."""

    name: str
    packages: frozenset[str]
    arguments: tuple[str, ...]


GROUP = frozenset({"raft", "store", "broker", "client"})
NATIVE = frozenset({"store", "broker", "client", "native"})

CAMPAIGNS = (
    Campaign("sim-log", GROUP, ("--world", "sim", "--workload", "log")),
    Campaign("process-log", GROUP, ("--workload", "log")),
    Campaign("process-queue", GROUP | NATIVE, ("--workload", "queue")),
    *(
        Campaign(mode, NATIVE, ("--target", mode, "--workload", "queue"))
        for mode in ("multi_master", "async_replication", "sync_double_write")
    ),
)


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
        return Outcome("timeout", _last_line(ended.output), tried, ended.seconds)
    if ended.code == 0:
        return Outcome("survived", "", tried, ended.seconds)
    failed = re.search(r"^FAILED (\S+)|^ERROR (\S+::\S+)", ended.output, re.MULTILINE)
    if ended.code == 1 and failed:
        return Outcome("killed", failed.group(1) or failed.group(2), tried, ended.seconds)
    return Outcome("not-started", _last_line(ended.output), tried, ended.seconds)


def simulation(
    world: str, mutant: Mutant, tree: Path, reach: Reach, limits: Limits, tried: Sequence[str]
) -> Outcome:
    """Run the seeds that execute the line, but those that were tried, until one is violated."""
    reached = reach.of(mutant.path, mutant.line, mutant.last_line)
    if not reached:
        return Outcome("not-reached")
    limit = limits.core_seeds if world == "core" else limits.node_seeds
    seeds = [seed for seed in reached if seed not in tried][: max(0, limit - len(tried))]
    if not seeds:
        return Outcome("survived", "", list(tried))
    program = [sys.executable, "-m", "tests.mutation.seeds", world, str(limits.virtual_s)]
    ended = children.run([*program, *seeds], tree, START_CPU_S + SEED_CPU_S[world] * len(seeds))
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
    return Outcome(what, f"crash: {_last_line(ended.output)}", ran, ended.seconds)


def campaigns(mutant: Mutant, tree: Path, limits: Limits, tried: Sequence[str]) -> Outcome:
    """Run the campaigns of the package, but those that were tried, until one is invalid."""
    ran, seconds, noticed = list(tried), 0.0, ""
    for campaign in CAMPAIGNS:
        if mutant.package not in campaign.packages or campaign.name in tried:
            continue
        command = [
            *(sys.executable, "-P", "-m", "harness.cli", "run", *campaign.arguments),
            *("--seed", "1", "--time-limit", f"{limits.campaign_s:g}", "--steady", "2"),
            *("--store", "runs", "--name", campaign.name),
        ]
        ended = children.run(command, tree, CAMPAIGN_CPU_S, CAMPAIGN_S_MAX)
        ran.append(campaign.name)
        seconds += ended.seconds
        if ended.code is None:
            return Outcome("timeout", campaign.name, ran, seconds)
        if ended.code == 1:
            by = f"{campaign.name}: {verdict_line(ended.output)}"
            return Outcome("killed", by, ran, seconds)
        if ended.code != 0:
            noticed = noticed or f"{campaign.name}, exit {ended.code}: {verdict_line(ended.output)}"
    return Outcome("noticed" if noticed else "survived", noticed, ran, seconds)


JUDGES: tuple[str, ...] = ("unit", "core", "node", "campaigns")


def judge(
    name: str, mutant: Mutant, tree: Path, reach: Reach | None, limits: Limits, tried: Sequence[str]
) -> Outcome:
    """Ask one judge about a mutant, whose tree it is. Campaigns need no `reach`."""
    if name == "campaigns":
        return campaigns(mutant, tree, limits, tried)
    assert reach is not None
    if name == "unit":
        return unit_tests(mutant, tree, reach)
    return simulation(name, mutant, tree, reach, limits, tried)


def verdict_line(output: str) -> str:
    """Return what a campaign printed as its verdict, in one line."""
    found = re.search(r"^\s*((?:IN)?VALID|UNKNOWN)\b.*", output, re.MULTILINE)
    return " ".join((found.group(0) if found else _last_line(output)).split())[:200]


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""
