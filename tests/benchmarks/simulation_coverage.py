"""How much of consensus and storage simulation alone reaches: run by hand, prints a table.

    .venv/bin/python tests/benchmarks/simulation_coverage.py --seeds 200 --node-seeds 10

Runs seeds of the core world, and some of the whole-node world, in processes of their own with
line and branch coverage of system/raft and system/store. What is not reached must stand in
`not_reached.toml` beside this file with a reason: by file, function and source text, and for a
branch of a line that is reached by where it would lead. Exit code 1 where less than 95 % is
reached, a line or branch is missing without a reason, or a reason is out of date.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[2]
PACKAGES = ("shaketable.system.raft", "shaketable.system.store")
REASONS = Path(__file__).with_name("not_reached.toml")
GOAL_PERCENT = 95.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="seeds of the core world")
    parser.add_argument("--node-seeds", type=int, default=10, help="seeds of whole nodes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        world, first, step, last, data_file = arguments.part.split(",")
        return run_part(world, range(int(first), int(last), int(step)), data_file)
    with tempfile.TemporaryDirectory() as folder:
        found = collect(Path(folder), arguments.seeds, arguments.node_seeds, arguments.jobs)
        return judge(found, Path(folder))


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def collect(folder: Path, seeds: int, node_seeds: int, jobs: int) -> coverage.Coverage:
    """Run all seeds in `jobs` processes and join what they covered."""
    running = []
    for job in range(jobs):
        for world, count in (("core", seeds), ("node", node_seeds)):
            part = f"{world},{1 + job},{jobs},{count + 1},{folder}/.coverage.{world}.{job}"
            command = [sys.executable, __file__, "--part", part]
            running.append(
                subprocess.Popen(
                    command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
                )
            )
    codes = [process.wait() for process in running]  # each of them is waited for
    if any(codes):
        raise SystemExit("a process failed: see above")
    joined = coverage.Coverage(
        data_file=f"{folder}/.coverage", branch=True, source_pkgs=[*PACKAGES]
    )
    joined.combine([str(folder)])
    joined.load()
    return joined


def run_part(world: str, seeds: range, data_file: str) -> int:
    """Run some seeds under measurement."""
    measured = coverage.Coverage(data_file=data_file, branch=True, source_pkgs=[*PACKAGES])
    measured.start()
    module = (
        "shaketable.system.sim.world"
        if world == "core"
        else "shaketable.system.sim.trio_world.world"
    )
    run_seed = importlib.import_module(module).run_seed  # under measurement, so not before
    code = 0
    for seed in seeds:
        result = run_seed(seed)
        if result.violation is not None:
            say(f"{world} seed {seed}: {result.violation}")
            code = 1
    measured.stop()
    measured.save()
    return code


def judge(found: coverage.Coverage, folder: Path) -> int:
    """Print the table and what is not reached, each with its reason."""
    percent = found.report(file=sys.stdout, skip_covered=True)
    reasons = tomllib.loads(REASONS.read_text())
    report = folder / "coverage.json"
    with contextlib.redirect_stdout(io.StringIO()):
        found.json_report(outfile=str(report))
    files = json.loads(report.read_text())["files"]
    code = 0
    used = set()
    say("")
    for name in sorted(files):
        for line, key in unreached(Path(ROOT, name), files[name]):
            known = reasons.get(name, {}).get(key)
            used.add((name, key))
            if known is None:
                code = 1
            say(f"{name}:{line}: {key}\n    {known or 'NO REASON GIVEN'}")
    for name, keys in reasons.items():
        for key in keys:
            if (name, key) not in used:
                say(f"{name}: {key}\n    is reached, or gone: take it out of {REASONS.name}")
                code = 1
    say(f"\n{percent:.1f} % of lines and branches, the goal is {GOAL_PERCENT:g} %")
    return code if percent >= GOAL_PERCENT else 1


def unreached(path: Path, measured: dict[str, list]) -> list[tuple[int, str]]:
    """Return line and key of each line not reached, and of each branch of one that is."""
    text = path.read_text()
    lines, names = text.splitlines(), function_names(text)
    missing = set(measured["missing_lines"])
    found = [(line, f"{names.get(line, '')}: {lines[line - 1].strip()}") for line in missing]
    for line, target in measured["missing_branches"]:
        if line in missing or target in missing:
            continue
        to = "leaves" if target < 0 else lines[target - 1].strip()
        found.append((line, f"{names.get(line, '')}: {lines[line - 1].strip()} -> {to}"))
    return sorted(found)


def function_names(text: str) -> dict[int, str]:
    """Return the function, with its class, that each line stands in."""
    names: dict[int, str] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                inner = f"{prefix}.{child.name}" if prefix else child.name
                names.update(dict.fromkeys(range(child.lineno, child.end_lineno + 1), inner))
            walk(child, inner)

    walk(ast.parse(text), "")
    return names


if __name__ == "__main__":
    sys.exit(main())
