"""Scores of a mutation run, and its survivors with their reasons."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.mutation.journal import Journal
from tests.mutation.mutants import Mutant
from tests.mutation.trees import ROOT

REASONS = Path(__file__).with_name("survivors.toml")
FOUND = frozenset({"killed", "timeout"})
SIMULATED = ("core", "node")
MASTER_SLAVE = ("master_slave",)
"""Asked about what masters and slaves execute; not all mutants wait for it."""
CAMPAIGNS = ("campaigns", "processes")
HEADS = (
    "mutants",
    "core",
    "node",
    "campaign",
    "sim+camp",
    "noticed",
    "unit",
    "nothing",
    "open",
    "equal",
    "found",
)
"""What follows "sim+camp" is counted of what these did not find; "found" is their share of what is
not equivalent."""


def summarise(mutants: list[Mutant], journal: Journal) -> int:
    """Print the scores by package and by operator, and what was found by no shaking.

    Returns 1 where a survivor that all judges were asked about has no reason, or one that has
    was found after all; else 0. What was noticed needs none.
    """
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text())
    _table("package", mutants, lambda one: one.package, journal, reasons)
    _table("operator", mutants, lambda one: one.operator, journal, reasons)
    how = Counter(
        (judge, outcome.outcome)
        for (mutant, judge), outcome in journal.known.items()
        if mutant in {one.id for one in mutants}
    )
    for (judge, outcome), count in sorted(how.items()):
        _say(f"{judge:10} {outcome:12} {count:5}")
    code = 0
    _say("\nfound neither by simulation nor by campaigns, of those that were judged:")
    for mutant in mutants:
        if not _is_judged(mutant, journal):
            continue
        reason = reasons.get(mutant.id)
        if _is_shaken_out(mutant, journal):
            if reason:
                _say(f"{mutant.id} has a reason, and is found: take it out of {REASONS.name}")
                code = 1
            continue
        noticed = _noticed(mutant, journal)
        if noticed is not None:
            _say(f"\n{mutant.id} {mutant.path}:{mutant.line} is noticed by {noticed}")
            _say(mutant.diff(ROOT))
            continue
        unit = "unit tests find it" if _by(mutant, journal, "unit") else "NOTHING finds it"
        _say(f"\n{mutant.id} {mutant.path}:{mutant.line} {mutant.operator}: {unit}")
        _say(mutant.diff(ROOT))
        _say(f"  {reason or 'NO REASON GIVEN'}")
        code = code if reason else 1
    return code


def _table(
    title: str,
    mutants: list[Mutant],
    kind: Callable[[Mutant], str],
    journal: Journal,
    reasons: dict[str, str],
) -> None:
    _say(f"\n{title:18}" + "".join(f"{head:>11}" for head in HEADS))
    for name in [*sorted({kind(one) for one in mutants}), "all"]:
        some = [one for one in mutants if name in {kind(one), "all"}]
        _say(f"{name:18}" + "".join(f"{text:>11}" for text in _row(some, journal, reasons)))


def _row(mutants: list[Mutant], journal: Journal, reasons: dict[str, str]) -> list[str]:
    """Count. "found" is a lower bound as long as some are open, which count as not found."""
    judged = [one for one in mutants if _is_judged(one, journal)]
    shaken_out = [one for one in judged if _is_shaken_out(one, journal)]
    noticed = [one for one in judged if one not in shaken_out and _noticed(one, journal)]
    missed = [one for one in judged if one not in shaken_out and one not in noticed]
    equal = [
        one
        for one in mutants
        if reasons.get(one.id, "").startswith("equivalent") and one not in shaken_out
    ]
    relevant = len(mutants) - len(equal)
    return [
        str(len(mutants)),
        *(
            _share(mutants, journal, judges)
            for judges in (("core",), ("node", *MASTER_SLAVE), CAMPAIGNS)
        ),
        str(len(shaken_out)),
        str(len(noticed)),
        _share(mutants, journal, ("unit",)),
        str(sum(not _by(one, journal, "unit") for one in missed)),
        str(len(mutants) - len(judged)),
        str(len(equal)),
        f"{len(shaken_out) / relevant:.0%}" if relevant else "-",
    ]


def _share(mutants: Iterable[Mutant], journal: Journal, judges: tuple[str, ...]) -> str:
    asked = [one for one in mutants if all(journal.of(one.id, name) for name in judges[:1])]
    return f"{sum(any(_by(one, journal, name) for name in judges) for one in asked)}/{len(asked)}"


def _by(mutant: Mutant, journal: Journal, judge: str) -> bool:
    known = journal.of(mutant.id, judge)
    return known is not None and known.outcome in FOUND


def _is_shaken_out(mutant: Mutant, journal: Journal) -> bool:
    return any(_by(mutant, journal, judge) for judge in (*SIMULATED, *MASTER_SLAVE, *CAMPAIGNS))


def _noticed(mutant: Mutant, journal: Journal) -> str | None:
    """Return what a campaign said that knew that something was wrong, and not that it was false."""
    outcomes = (journal.of(mutant.id, judge) for judge in CAMPAIGNS)
    return next((one.by for one in outcomes if one and one.outcome == "noticed"), None)


def _is_judged(mutant: Mutant, journal: Journal) -> bool:
    """Say whether it was found by shaking, or simulation and campaigns have all been asked."""
    asked = [journal.of(mutant.id, judge) for judge in (*SIMULATED, "campaigns")]
    return _is_shaken_out(mutant, journal) or all(one is not None for one in asked)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
