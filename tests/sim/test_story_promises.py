"""Every invariant of members and of the simulated worlds is explained, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

from shaketable.system import invariants as of_steps
from shaketable.system import node as of_nodes
from shaketable.system import sim
from shaketable.system.sim.stories.promises import PROMISES, promise_of


def invariants() -> set[str]:
    """The names that `Violated` and `Violation` are raised and made with."""
    found = set()
    folders = [Path(next(iter(package.__path__))) for package in (of_steps, of_nodes, sim)]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Violated", "Violation")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found


def test_every_invariant_has_its_promise() -> None:
    assert invariants() - set(PROMISES) == set()
    assert set(PROMISES) - invariants() == set()


def test_promises_are_whole_sentences() -> None:
    for promise in PROMISES.values():
        assert promise.statement.endswith(".")
        assert promise.impact.endswith(".")


def test_an_unknown_one_is_called_by_its_name() -> None:
    assert promise_of("no-such-thing").statement == "No such thing."
