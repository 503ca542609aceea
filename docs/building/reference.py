"""The reference: pages made of the code, so that nothing in them is written a second time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

import shaketable
from docs.building import commands, files
from docs.building.tables import code, prose, table
from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns.scenarios import SCENARIOS
from shaketable.harness.contracts.abilities import PlantedBug, planted_bugs
from shaketable.harness.contracts.capabilities import family_of, needs_of
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.harness.museum import published_bugs

_INTRODUCTIONS: Final[Mapping[str, str]] = {
    "targets": "What can be shaken. `docs/your-own-system.md` adds your own, `docs/promises.md` has"
    " what these promise.",
    "faults": "What is done to nodes, links, clocks and disks. `docs/faults.md` has their victims,"
    " timing and evidence.",
    "workloads": "What clients do, and which checkers judge it. `docs/workloads.md` explains them.",
    "checkers": "What judges a history. `docs/anomalies.md` has the anomalies that they find.",
    "models": "Sequential objects that a history is compared with. `docs/models.md` explains them,"
    " and how to write your own.",
}


def pages() -> Mapping[str, str]:
    """Return the pages of the reference: places on the site -> Markdown."""
    made: dict[str, Callable[[], str]] = {
        "commands": commands.page,
        "exit-codes": commands.exit_codes,
        "shaketable-toml": files.target_file,
        "campaign-toml": files.campaign_file,
        **{kind: partial(plugins, kind) for kind in _INTRODUCTIONS},
        "scenarios": scenarios,
        "campaigns": campaigns,
        "planted-bugs": bugs,
        "published-bugs": published,
        "findings": findings,
        "python": python,
    }
    return {f"docs/reference/{name}.md": page() for name, page in made.items()}


def plugins(kind: str) -> str:
    """Return the page of all built-in plug-ins of a kind."""
    parts = [f"# {kind.capitalize()}\n", f"{_INTRODUCTIONS[kind]}\n"]
    for name in sorted(discovery.built_ins(kind)):
        plugin = discovery.built_in(kind, name)
        parts += [f"## {name}\n", f"{prose(discovery.summary(plugin))}\n", _facts(kind, plugin)]
    return "\n".join(parts)


def _facts(kind: str, plugin: Any) -> str:
    """Return what is known of a plug-in beside its summary, as a list."""
    facts = []
    if kind == "faults":
        needs = ", ".join(sorted(code(str(need)) for need in needs_of(plugin)))
        facts = [f"family: {family_of(plugin)}", f"needs of a world: {needs}" if needs else ""]
    if kind == "workloads":
        judged = ", ".join(f"[{name}](checkers.md#{name})" for name in plugin.checkers)
        facts = [f"judged by {judged}" if judged else ""]
    if kind == "targets" and plugin.mutants:
        facts = [f"{len(plugin.mutants)} [planted bugs](planted-bugs.md)"]
    if kind == "models":
        facts = [f"operations: {', '.join(map(code, _operations(plugin)))}"]
    return "".join(f"- {fact}\n" for fact in facts if fact)


def _operations(model: Any) -> Iterable[str]:
    return sorted(model.fs)


def scenarios() -> str:
    """Return the page of the scenarios."""
    parts = [
        "# Scenarios\n",
        "Sequences of faults that have triggered real bugs; `docs/faults.md` explains them.\n",
    ]
    for name, scenario in SCENARIOS.items():
        made_of = ", ".join(f"[{fault}](faults.md#{fault})" for fault in sorted(scenario.faults))
        parts += [f"## {name}\n", f"{prose(scenario.summary)} Faults: {made_of}.\n"]
    return "\n".join(parts)


def campaigns() -> str:
    """Return the page of the built-in campaigns and matrices."""
    parts = [
        "# Built-in campaigns\n",
        "`shaketable run NAME` runs one; `docs/campaigns.md` explains them.\n",
    ]
    for heading, folder in (("", built_in.CAMPAIGNS), ("Matrices", built_in.MATRICES)):
        if heading:
            parts += [f"# {heading}\n", "`shaketable matrix NAME` runs one.\n"]
        for name in built_in.names(folder):
            parts += [f"## {name}\n", f"{prose(built_in.summary(name, folder))}\n"]
    return "\n".join(parts)


def bugs() -> str:
    """Return the page of all planted bugs, by family."""
    names = discovery.built_ins("targets")
    targets: list[Any] = [discovery.built_in("targets", name) for name in names]
    parts = [
        "# Planted bugs\n",
        "Mistakes built in on purpose, to see them found: `shaketable run --mutant NAME`."
        " `docs/calibration.md` says how many are.\n",
    ]
    for family, members in groupby(planted_bugs(targets), key=lambda bug: bug.family):
        parts += [f"## {family.capitalize()}\n", _bugs(members)]
    return "\n".join(parts)


def _bugs(members: Iterable[PlantedBug]) -> str:
    rows = [(code(bug.name), prose(bug.breaks), prose(bug.source or "")) for bug in members]
    return table(("bug", "what it breaks", "after"), rows)


def published() -> str:
    """Return the page of the published bugs of real systems."""
    parts = [
        "# Published bugs\n",
        "Bugs of real systems that `shaketable museum NAME` shows again; `docs/museum.md` has how"
        " often.\n",
    ]
    for bug in published_bugs().values():
        told = bug.told
        parts += [f"## {bug.name}\n", f"**{prose(told.title)}.**\n"]
        parts += [f"**Promised.** {prose(told.promised)}\n"]
        parts += [f"**What happens.** {prose(told.happens)}\n"]
        parts += [f"**Where a client sees it.** {prose(told.seen)}\n"]
        parts += [f"**Fixed by** {prose(told.fixed_by)}.\n"]
        parts += [f"Published: {', '.join(f'<{source}>' for source in told.sources)}\n"]
    return "\n".join(parts)


def findings() -> str:
    """Return the page of all kinds of findings."""
    parts = [
        "# Kinds of findings\n",
        "What a finding is called in `results.json`, JUnit and SARIF, and the promise that it"
        " breaks. `docs/anomalies.md` has the definitions of anomalies.\n",
    ]
    for kind in sorted(FINDING_KINDS.values(), key=lambda kind: kind.name):
        parts += [f"## {kind.name}\n", f"One of them: {prose(kind.one)}.\n"]
        parts += [f"The promise: {prose(kind.promise)}\n"]
        parts += [f"What it implies: {prose(kind.meaning)}\n"] if kind.meaning else []
    return "\n".join(parts)


def python() -> str:
    """Return the page of the public Python interface, whose docstrings Sphinx reads."""
    parts = [
        "# Python interface\n",
        "Everything here is imported from `shaketable`, as `from shaketable import check`."
        " `docs/python.md` shows it at work.\n",
    ]
    for name in shaketable.__all__:
        thing = getattr(shaketable, name)
        directive = "autoclass" if inspect.isclass(thing) else "autofunction"
        members = "\n   :members:" if directive == "autoclass" else ""
        parts += [
            f"## {name}\n",
            f"```{{eval-rst}}\n.. {directive}:: shaketable.{name}{members}\n```\n",
        ]
    return "\n".join(parts)
