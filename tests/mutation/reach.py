"""Measures which tests and which seeds execute which lines of the five packages.

A run that does not execute the mutated line is the healthy run: simulated worlds are
deterministic, and so are these tests. So only what executes the line has to be run again.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

from tests.mutation import campaigns, children
from tests.mutation.trees import (
    MEASURED_BY_CAMPAIGNS,
    ROOT,
    copy_of_tree,
    digest_of,
)

PACKAGES = ("raft", "store", "broker", "client", "master_slave")
SOURCES = tuple(f"shaketable.system.{package}" for package in PACKAGES)
TEST_FOLDERS = (
    "tests/raft",
    "tests/store",
    "tests/broker",
    "tests/client",
    "tests/master_slave",
    "tests/node",
)
"""Unit tests. tests/sim is left out: it runs the simulation, which is scored by itself."""


WORLDS = {"core": 40, "node": 8, "master_slave": 24}
"""How many seeds of each world are measured: more than are run, for what is rarely reached."""
CAMPAIGNS = "campaigns"
VALID = "valid-campaigns.json"
CPU_S_MAX = 7_200.0
PYTEST_OPTIONS = ("-q", "-n", "0", "--fast", "-p", "no:cacheprovider", "--timeout", "0")
"""Without the limit on each test: it is of time that passes, which a busy machine stretches."""

Lines = dict[str, dict[str, list[str]]]
"""For each file, for each line (as text), who executes it. On import nobody does."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Who of one kind executes which line.

    Attributes:
        everybody: The tests that pass on the healthy tree, as pytest names them, with the seconds
            that each took; or the seeds, with 0; or the campaigns that are VALID on the healthy
            tree, with their place in the list.
    """

    lines: Lines
    everybody: dict[str, float]

    def of(self, path: str, line: int, last_line: int) -> list[str]:
        """Return who executes a statement, the fastest first.

        For a statement that runs on import alone, that is who executes anything of its file.
        """
        lines = self.lines.get(path, {})
        known = [lines[str(n)] for n in range(line, last_line + 1) if str(n) in lines]
        found = {who for some in known for who in some}
        if known and not found:
            found = {who for some in lines.values() for who in some}
        return sorted(found, key=lambda who: (self.everybody[who], _natural(who)))


def _natural(who: str) -> tuple[int, str]:
    return (int(who), "") if who.isdecimal() else (0, who)


def load(work: Path, kind: str, seeds: int = 0, virtual_s: float = 0.0) -> Reach:
    """Return what was measured of this very tree, measuring it first where it was not.

    `kind` is "unit" for the tests, or the world whose first `seeds` seeds are meant.
    """
    key = {"tree": digest_of(ROOT), "seeds": seeds, "virtual_s": virtual_s}
    path = work / f"reach-{kind}.json"
    kept = _kept(path)
    if kept.get("key") == key:
        return Reach(kept["lines"], kept["everybody"])
    say(f"measuring which lines are executed: {kind}")
    with copy_of_tree() as tree:
        reach = of_tests(tree) if kind == "unit" else of_seeds(tree, kind, seeds, virtual_s)
    _keep(path, key, reach)
    return reach


def load_campaigns(work: Path) -> Reach:
    """Return what was measured of this tree's simulated campaigns, measuring those that are new."""
    asked = {name: list(one.arguments) for name, one in campaigns.CAMPAIGNS.items()}
    key = {"tree": digest_of(ROOT, MEASURED_BY_CAMPAIGNS), "asked": asked}
    path = work / f"reach-{CAMPAIGNS}.json"
    kept = _kept(path)
    old: dict[str, list[str]] = {}
    if kept and kept["key"]["tree"] == key["tree"]:
        old = kept["key"]["asked"]
    same = {name for name in asked if old.get(name) == asked[name]}
    lines, valid = _only(kept["lines"], same) if same else {}, same & set(kept.get("everybody", ()))
    new = [name for name in asked if name not in same]
    if new:
        say(f"measuring which lines are executed: {CAMPAIGNS}")
        with copy_of_tree() as tree:
            found, new_valid = of_campaigns(tree, new)
        lines, valid = _joined(lines, found), valid | new_valid
    places = {name: float(at) for at, name in enumerate(asked) if name in valid}
    reach = Reach(lines, places)
    _keep(path, key, reach)
    return reach


def _kept(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _keep(path: Path, key: dict[str, Any], reach: Reach) -> None:
    partial = path.with_suffix(".partial")
    new = {"key": key, "lines": reach.lines, "everybody": reach.everybody}
    partial.write_text(json.dumps(new))
    partial.rename(path)


def _only(lines: Lines, names: set[str]) -> Lines:
    return {
        path: {line: [who for who in some if who in names] for line, some in of_file.items()}
        for path, of_file in lines.items()
    }


def _joined(before: Lines, found: Lines) -> Lines:
    joined: Lines = {}
    for path in (*before, *found):
        one, other = before.get(path, {}), found.get(path, {})
        joined[path] = {
            line: sorted({*one.get(line, ()), *other.get(line, ())}) for line in (*one, *other)
        }
    return joined


def of_tests(tree: Path) -> Reach:
    """Run all unit tests of the healthy tree under coverage."""
    data = tree / ".coverage"
    tests = [
        *(sys.executable, "-m", "coverage", "run", "--data-file", str(data)),
        *("--source", ",".join(SOURCES)),
        *("-m", "pytest", *PYTEST_OPTIONS, "-p", "tests.mutation.reach_plugin"),
        *("--junitxml", "tests.xml", "-o", "junit_family=xunit1"),
        *TEST_FOLDERS,
    ]
    done = children.run(tests, tree, CPU_S_MAX)
    if done.code not in (0, 1):  # 1: some failed, perhaps for want of something here
        raise SystemExit(done.output[-3000:])
    seconds, failed = _timings(tree / "tests.xml")
    for test in failed:
        say(f"fails on the healthy tree, is not used: {test}")
    return Reach(_lines(tree, data, set(seconds)), seconds)


def of_campaigns(tree: Path, names: Sequence[str]) -> tuple[Lines, set[str]]:
    """Run simulated campaigns of the healthy tree under coverage; return also which are VALID."""
    data = _measured(tree, CAMPAIGNS, *names)
    valid = set(json.loads((tree / VALID).read_text()))
    for name in names:
        if name not in valid:
            say(f"is not valid on the healthy tree, is not used: {name}")
    return _lines(tree, data, valid), valid


def _measured(tree: Path, *what: str) -> Path:
    """Measure in a process of its own; return the file with what was found."""
    data = tree / ".coverage"
    program = [sys.executable, "-m", "tests.mutation.reach", str(data), *what]
    done = children.run(program, tree, CPU_S_MAX)
    if done.code != 0:
        raise SystemExit(f"{' '.join(what)[:60]} could not be measured: {done.output[-3000:]}")
    return data


def of_seeds(tree: Path, world: str, count: int, virtual_s: float) -> Reach:
    """Run seeds of the healthy tree under coverage."""
    data = _measured(tree, world, str(count), str(virtual_s))
    seeds = {str(seed): 0.0 for seed in range(1, count + 1)}
    return Reach(_lines(tree, data, set(seeds)), seeds)


def _lines(tree: Path, data_file: Path, known: set[str]) -> Lines:
    measured = coverage.CoverageData(str(data_file))
    measured.read()
    if not measured.measured_files():
        raise SystemExit(
            f"nothing was measured of {', '.join(SOURCES)}: are they called otherwise?"
        )
    lines: Lines = {}
    for name in measured.measured_files():
        of_file = lines.setdefault(str(Path(name).relative_to(tree)), {})
        for line, contexts in measured.contexts_by_lineno(name).items():
            of_file[str(line)] = sorted(known.intersection(contexts))
    return lines


def _timings(path: Path) -> tuple[dict[str, float], set[str]]:
    """Return the seconds of each test, all its parameters together, and the tests that failed."""
    seconds: dict[str, float] = {}
    failed = set()
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('file')}::{(case.get('name') or '').partition('[')[0]}"
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time") or 0)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return {name: took for name, took in seconds.items() if name not in failed}, failed


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def measure_seeds(data_file: str, world: str, count: int, virtual_s: float) -> None:
    """Run seeds of one world of this tree under coverage."""
    measured = _coverage(data_file)
    measured.start()
    seeds = importlib.import_module("tests.mutation.seeds")  # under measurement, so not before
    run = seeds.runner_of(world, virtual_s)
    for seed in range(1, count + 1):
        measured.switch_context(str(seed))
        violation = run(seed)
        if violation is not None:
            raise SystemExit(f"{world} seed {seed} of the healthy tree: {violation}")
    measured.stop()
    measured.save()


def measure_campaigns(data_file: str, names: Sequence[str]) -> None:
    """Run simulated campaigns of this tree under coverage, and note which are VALID."""
    measured = _coverage(data_file)
    measured.start()
    valid = []
    for name in names:
        measured.switch_context(name)
        code, output = campaigns.run(campaigns.CAMPAIGNS[name])
        if code == 0:
            valid.append(name)
        else:
            say(f"{name}: {campaigns.verdict_line(output)}")
        if code == 1:
            raise SystemExit("the healthy tree is accused")
    measured.stop()
    measured.save()
    Path(VALID).write_text(json.dumps(valid))


def _coverage(data_file: str) -> coverage.Coverage:
    return coverage.Coverage(data_file=data_file, source_pkgs=list(SOURCES))


if __name__ == "__main__":
    if sys.argv[2] == CAMPAIGNS:
        measure_campaigns(sys.argv[1], sys.argv[3:])
    else:
        measure_seeds(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
