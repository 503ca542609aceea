"""results.json: what the checkers concluded, for machines.

Source: Jepsen's results.edn (`valid?` nested by checker); DESIGN.md section 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shaketable.harness import availability
from shaketable.harness.campaign import Campaign, faults_of
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.plugins import FaultWindow, Promises
from shaketable.harness.verdict import Finding, Outcome, Verdict, join

FORMAT = 1
"""Raised when a reader of older files would misread newer ones."""


@dataclass(frozen=True, slots=True)
class Results:
    """A judged run: the campaign, what it was judged by, and the verdicts.

    `failover`: how soon writes went on after kills of the leader, if there were any.
    `faults_unavailable`: faults that were asked for and cannot be done to the group, and why.
    """

    campaign: Campaign
    promises: Promises
    verdicts: tuple[Verdict, ...]
    windows: tuple[FaultWindow, ...]
    incomplete: str | None
    repeat: str
    engine: str
    failover: dict[str, Any] | None = None
    faults_unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """All verdicts joined."""
        return join(self.verdicts)


def write(folder: RunFolder, results: Results) -> None:
    """Write results.json.

    Raises:
        HarnessError: it cannot be written.
    """
    text = json.dumps(to_json(results), indent=2, default=_jsonable)
    write_atomically(folder.results_json, text + "\n")


def to_json(results: Results) -> dict[str, Any]:
    """Return the content of results.json."""
    campaign = results.campaign
    return {
        "format": FORMAT,
        "valid": results.outcome.json_value,
        "seed": campaign.seed,
        "target": campaign.target,
        "mutant": campaign.mutant,
        "workload": campaign.workload,
        "faults_asked": list(faults_of(campaign)),
        "faults": {
            "applied": len(results.windows),
            "bit": sum(window.bit for window in results.windows),
            "by_name": _by_name(campaign, results.windows),
        },
        "faults_unavailable": dict(results.faults_unavailable),
        "failover": results.failover,
        "incomplete": results.incomplete,
        "promises": _promises(results.promises),
        "engine": results.engine,
        "repeat": results.repeat,
        "checkers": {verdict.checker: _verdict(verdict) for verdict in results.verdicts},
    }


def _by_name(campaign: Campaign, windows: Sequence[FaultWindow]) -> dict[str, dict[str, Any]]:
    """Return of each fault asked for its family, how often it was done, and how often it bit."""
    return {
        name: {
            "family": family,
            "done": sum(window.name == name for window in windows),
            "bit": sum(window.name == name and window.bit for window in windows),
        }
        for name, family in availability.families(campaign).items()
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "valid": verdict.outcome.json_value,
        "summary": verdict.summary,
        "counts": verdict.counts,
        "findings_total": max(verdict.findings_total, len(verdict.findings)),
        "findings": _findings(verdict.findings),
        "observed": _findings(verdict.observed),
        "data": verdict.data,
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


def _promises(promises: Promises) -> dict[str, Any]:
    return {
        "durable_under": sorted(promises.durable_under),
        "linearizable": sorted(promises.linearizable),
        "committed_prefix": promises.committed_prefix,
        "excludes": sorted(promises.excludes),
        "note": promises.note,
        "copies": promises.copies,
        "delivered_under": sorted(promises.all_delivered_under),
        "documented": promises.documented,
    }


def _jsonable(value: object) -> Any:
    """Turn what JSON has no word for (numpy's numbers, sets) into what it has."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
