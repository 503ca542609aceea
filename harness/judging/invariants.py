"""Judge whether the nodes kept their invariants, by the simulated world and the nodes' own reports.

Some evidence is in no history and no log: an invariant that a simulated world saw broken, a node
that stopped because a rule of its own was broken, a node that found its stored data damaged though
no fault had touched it. Each is a violation, whether or not a client noticed it.

Source: docs/adr/0037; Jepsen's log-file-pattern checker does this by text patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from shaketable.harness.contracts.abilities import ExplainsEnds
from shaketable.harness.contracts.broken_rules import (
    BROKE_RULE,
    ENDED_UNHARMED,
    FOUND_DAMAGE,
    Broken,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Target
from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX, Finding, Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import undisturbed
from shaketable.harness.runtime import liveness

NAME: Final = "invariants"
BROKEN: Final = "invariant-broken"
OWN: Final = "rule-broken"
DAMAGED: Final = "damage-found"
UNHARMED: Final = "ended-unharmed"
KINDS: Final[Mapping[str, str]] = {
    BROKE_RULE: OWN,
    FOUND_DAMAGE: DAMAGED,
    ENDED_UNHARMED: UNHARMED,
}
"""The finding kind for each cause of a node's exit."""
NS_PER_S: Final = 1e9
_ERROR_KEY: Final = " error="
"""Our nodes' last log line has the reason after this key."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A finding, and why it breaks no promise; None if it does break one."""

    finding: Finding
    excuse: str | None


def judge_invariants(
    folder: RunFolder,
    target: Target,
    context: CheckContext,
    client_violations: Sequence[Broken] = (),
) -> Verdict | None:
    """Judge by the broken rules in run.json and by `client_violations`.

    Return None where neither is known: outside the simulated world, if the target's nodes do not
    explain why they end.

    Raises:
        HarnessError: run.json cannot be read.
    """
    facts = folder.facts()
    if facts.get("world") != "sim" and not isinstance(target, ExplainsEnds):
        return None
    if not facts:
        return None  # `run-as-planned` reports it
    try:
        found = _found(facts, context, client_violations)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"cannot read {folder.run_json}: {error}") from error
    breaches = tuple(each.finding for each in found if each.excuse is None)
    observed = tuple(each.finding for each in found if each.excuse is not None)
    data = {"observed": _counted(observed)} if observed else {}
    if breaches:
        others = len(breaches) - 1
        more = f" (and {others} more broken rule{'s' if others > 1 else ''})" if others else ""
        summary = f"{breaches[0].message.rstrip('.')}{more}"
        outcome = Outcome.INVALID
    else:
        summary = "no node was seen to break its own invariants"
        outcome = Outcome.VALID
    if observed:
        summary += f"; observed, not counted: {len(observed)} ({_excuses(found)})"
    counts: dict[str, int | float] = dict(_counted(breaches))
    return Verdict(
        NAME, outcome, summary, breaches[:FINDINGS_KEPT_MAX], len(breaches), counts, data,
        observed[:FINDINGS_KEPT_MAX],
    )  # fmt: skip


def _found(
    facts: Mapping[str, Any], context: CheckContext, client_violations: Sequence[Broken]
) -> list[_Found]:
    """Return the findings in order of time, since later ones may follow from earlier ones."""
    found = [_of_world(each) for each in facts.get("broken", ())]
    found += [_of_world(asdict(each)) for each in client_violations]
    found += [
        _of_node(each)
        for each in facts.get("exits", ())
        if each.get("cause") in KINDS and not each.get("excuse")
    ]
    found.sort(key=lambda finding: finding.details["at_ns"])
    left = tuple(facts.get("left", ()))
    return [_Found(each, _why_excused(each, context, left)) for each in found]


def _why_excused(finding: Finding, context: CheckContext, left: tuple[str, ...]) -> str | None:
    """Return why a finding breaks no promise, or None; `left` are faults that were not undone."""
    invariant = finding.details.get("invariant") if finding.kind == BROKEN else None
    of_liveness = invariant in liveness.OF_NODES | liveness.OF_CALLS | undisturbed.OF_CLIENTS
    if of_liveness and (stuck := sorted({*left} - {liveness.NEW_DISK})):
        return f"{', '.join(stuck)} could not be undone"
    begins_anew = invariant in liveness.OF_NODES or finding.kind == UNHARMED
    withstood = {liveness.NEW_DISK} if begins_anew else frozenset()
    return _why_unpromised(context, finding.details["at_ns"], withstood)


def _of_world(broken: Mapping[str, Any]) -> Finding:
    at_s = broken["at_ns"] / NS_PER_S
    where = f" at {broken['node']}" if broken["node"] else ""
    message = (
        f"The invariant {broken['invariant']} was broken{where}, {at_s:.3f} s into the run:"
        f" {broken['finding']}."
    )
    details = {name: what for name, what in broken.items() if name != "operations"}
    if not broken["node"]:
        del details["node"]
    return Finding(BROKEN, message, operations=tuple(broken.get("operations", ())), details=details)


def _of_node(ended: Mapping[str, Any]) -> Finding:
    kind, at_s = KINDS[ended["cause"]], ended["at_ns"] / NS_PER_S
    who = f"Node {ended['node']} (incarnation {ended['incarnation']})"
    reason = ended["last_line"]
    reason = reason.partition(_ERROR_KEY)[2] or reason or "it did not say which"
    what = {
        OWN: f"{who} stopped because a rule of its own was broken, {at_s:.3f} s into the run:"
        f" {reason}",
        DAMAGED: f"{who} would not go on, {at_s:.3f} s into the run, because what it had stored is"
        f" damaged, and no fault had touched that: {reason}",
        UNHARMED: f"{who} ended by itself with status {ended['returncode']}, {at_s:.3f} s into the"
        f" run, and nothing had been done to it that ends a node: {reason}",
    }[kind]
    details = {name: ended[name] for name in ("node", "incarnation", "at_ns", "last_line")}
    details["exit_status"] = ended["returncode"]
    return Finding(kind, f"{what.rstrip('.')}.", details=details)


def _why_unpromised(context: CheckContext, at_ns: int, also: Iterable[str] = ()) -> str | None:
    """Return the excuse by faults that started until `at_ns` and that no promise covers, or None.

    `also` are faults that this promise covers besides those of the target's durability.
    """
    begun = tuple(window for window in context.windows if window.from_ns <= at_ns)
    beyond = replace(context, windows=begun).unpromised_faults(
        context.promises.durable_under.union(also)
    )
    return f"the target does not promise to survive {beyond}" if beyond else None


def _counted(findings: tuple[Finding, ...]) -> dict[str, int]:
    kinds = [finding.kind for finding in findings]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def _excuses(found: list[_Found]) -> str:
    return "; ".join(dict.fromkeys(each.excuse for each in found if each.excuse is not None))
