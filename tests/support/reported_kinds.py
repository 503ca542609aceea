"""Which kinds of violations the checkers of this repository can report, read off their sources.

A checker names a kind where it adds findings. Where that is a text or a constant it is taken from
there; the others take their kinds from a table, and fail on a kind that is not in it.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shaketable import checkers
from shaketable.checkers.anomalies.log_rules import ANOMALIES
from shaketable.checkers.logs import linearizable_log
from shaketable.harness.contracts.finding_kinds import kinds_where

FOLDER: Final = Path(next(iter(checkers.__path__)))
TABLES: Final = {
    "shaketable.checkers.anomalies": ANOMALIES,
    "shaketable.checkers.queues": ANOMALIES,
    "shaketable.checkers.logs.append_fates": kinds_where(lambda kind: kind.became),
    "shaketable.checkers.logs.linearizable_log": frozenset(linearizable_log._MESSAGES),
}
"""Kinds by where they are reported (a module, or all in a package)."""
NO_VIOLATION: Final = frozenset({"checked", "undecided", "unfit"})
"""Kinds of rows that leave a verdict unknown, or carry counts."""
NOT_OF_RUNS: Final = "shaketable.checkers.transactions"
"""A package whose checkers judge transactions, which no sample run has."""
PASSED_ON: Final = frozenset(
    {"shaketable.checkers.findings", "shaketable.checkers.linearizability.linearizable"}
)
"""Modules that pass findings on whose kind others have named."""


def reported_kinds() -> frozenset[str]:
    """Return them all.

    Raises:
        AssertionError: a module names a kind in a way that is not known here.
    """
    found = set().union(*TABLES.values())
    for path in sorted(FOLDER.rglob("*.py")):
        relative = path.relative_to(FOLDER.parent).with_suffix("")
        module = ".".join(("shaketable", *relative.parts))
        if module.startswith(NOT_OF_RUNS):
            continue
        for named in _named(ast.parse(path.read_text())):
            kind = _text(module, named)
            if kind is not None:
                found.add(kind)
            else:
                is_told = any(module.startswith(each) for each in (*TABLES, *PASSED_ON))
                assert is_told, f"{module}:{named.lineno}: which kinds does it report?"
    return frozenset(found - NO_VIOLATION)


def _named(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what stands for a kind: Finding(KIND, ...) and findings.add(KIND, rows, describe)."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        is_finding = isinstance(call.func, ast.Name) and call.func.id == "Finding"
        is_added = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "add"
            and len(call.args) == len(("kind", "rows", "describe"))
        )
        if is_finding or is_added:
            yield call.args[0]


def _text(module: str, named: ast.expr) -> str | None:
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        return named.value
    if isinstance(named, ast.Name):
        known = getattr(importlib.import_module(module), named.id, None)
        return known if isinstance(known, str) else None
    return None
