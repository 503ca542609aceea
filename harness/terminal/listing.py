"""The command `list`: plug-ins by kind, built-in campaigns, and planted bugs by family."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Final, Literal

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns.scenarios import SCENARIOS
from shaketable.harness.contracts.abilities import PlantedBug, planted_bugs
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.terminal.output import out, show_rows


def list_(
    kind: Annotated[
        Literal[
            "targets",
            "faults",
            "scenarios",
            "workloads",
            "checkers",
            "models",
            "campaigns",
            "bugs",
            "mutants",
        ]
        | None,
        Parameter(name="KIND", show_default=False),
    ] = None,
    /,
) -> int:
    """List targets, faults, scenarios, workloads, checkers, ... or the planted bugs.

    Example: ./shaketable list faults

    Args:
        kind: What to list; default: all but bugs. "bugs" (or "mutants") lists each planted bug with
            its family, its targets and the real bug that it is modelled on.
    """
    if kind in ("bugs", "mutants"):
        _list_bugs()
        return ExitCode.VALID
    for name in (kind,) if kind else (*discovery.PACKAGES, *_ROWS):
        rows = _ROWS[name]() if name in _ROWS else _plugin_rows(name)
        out.print(Text(name.capitalize(), style="bold"))
        show_rows(out, rows)
        out.print()
    return ExitCode.VALID


def _plugin_rows(kind: str) -> list[tuple[str, str]]:
    rows = []
    for name, plugin in discovery.find(kind).items():
        rows.append((name, discovery.summary(plugin)))
        if mutants := getattr(plugin, "mutants", {}):
            rows.append(("", f"--mutant plants one of {len(mutants)} bugs in it (list mutants)."))
    return rows


def _scenario_rows() -> list[tuple[str, str]]:
    return [
        (name, f"{scenario.summary} Faults: {', '.join(sorted(scenario.faults))}.")
        for name, scenario in SCENARIOS.items()
    ]


def _campaign_rows() -> list[tuple[str, str]]:
    folder = built_in.CAMPAIGNS
    return [(name, built_in.summary(name, folder)) for name in built_in.names(folder)]


_ROWS: Final = {"scenarios": _scenario_rows, "campaigns": _campaign_rows}
"""What is listed besides plug-ins."""


def _list_bugs() -> None:
    """Print all planted bugs of all targets."""
    found = planted_bugs(discovery.find("targets").values())
    width = max((len(bug.name) for bug in found), default=0)
    for family, bugs in groupby(found, key=lambda bug: bug.family):
        out.print(Text((family or "Of no family").capitalize(), style="bold"))
        for bug in bugs:
            show_rows(out, _bug_rows(bug), label_width=width)
        out.print()


def _bug_rows(bug: PlantedBug) -> list[tuple[str, str]]:
    rows = [(bug.name, bug.breaks), ("", f"in {', '.join(bug.targets)}")]
    return rows + ([("", f"after {bug.source}")] if bug.source else [])
