"""The fault, workload and checker of docs/extending.md, taken from there, installed and run."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from installed import install, shaketable

from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "extending.md"
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MODULES = ("locks", "one_winner", "successor")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("project")
    for name, text in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")):
        (project / name).write_text(text)
    assert {path.stem for path in project.glob("*.py")} == set(MODULES)
    site = tmp_path_factory.mktemp("site")
    install(project, site)
    return site


@pytest.fixture
def one_winner(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(site))
    discovery.clear_caches()
    yield importlib.import_module("one_winner")
    discovery.clear_caches()
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.e2e
@pytest.mark.spark
def test_they_are_listed_and_run(site: Path, tmp_path: Path) -> None:
    listed = " ".join(shaketable(site, "list").stdout.split())
    for name, what in (
        ("successor", "Kill the leader (SIGKILL), then the one that leads in its place."),
        ("locks", "Locks that each client tries to take once, by a swap of nothing"),
        ("one-winner", 'Checker "one-winner": no two clients have the same lock.'),
    ):
        assert f" {name} {what}" in listed
    done = shaketable(
        site, "run", "-w", "locks", "--faults", "successor", "--rate", "200", "--seed", "docs",
        "--nodes", "5", "--time-limit", "12", "--steady", "2", "--fault-duration-min", "3",
        "--store", tmp_path / "store", "--engine", "local",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "store" / "latest" / "results.json").read_text())
    assert results["checkers"]["one-winner"]["counts"]["won"] > 10
    assert re.search(r"fault 0 took effect: gone: n\d, n\d", done.stdout), done.stdout


def test_the_checker_refuses_two_winners(one_winner: ModuleType) -> None:
    def history(*outputs: int) -> pa.Table:
        rows = [
            {"op": n, "process": n, "f": "cas", "key": "locks-0/0", "input": n + 1,
             "output": output, "call_ns": n, "return_ns": n + 5, "outcome": "ok"}
            for n, output in enumerate(outputs)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, OPERATIONS)

    checker = discovery.get("checkers", "one-winner")
    assert checker is one_winner.PLUGIN
    promises = Promises(linearizable=frozenset({"cas"}))
    context = CheckContext(("n0",), {}, promises)
    found = checker.check({"operations": history(0, 1, 0)}, context)
    assert checker.conclude(found, context).outcome is Outcome.VALID
    found = checker.check({"operations": history(1, 0, 1)}, context)
    verdict = checker.conclude(found, context)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.findings[0].message == (
        "locks-0/0 was given to process 0 (op 0), process 2 (op 2)."
    )
    nothing_promised = CheckContext(("n0",), {}, Promises())
    verdict = checker.conclude(found, nothing_promised)
    assert (verdict.outcome, len(verdict.observed)) == (Outcome.VALID, 1)
