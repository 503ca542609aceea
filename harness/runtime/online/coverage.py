"""Which of a campaign's checkers can judge while it runs: those with a model that is judged online.

A violation that is told during a run has to break a promise, whichever faults are still to come.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, faults_of, promises_of, target_of
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.clients import topics_of
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow
from shaketable.harness.history.run_folder import RunFolder

if TYPE_CHECKING:
    from shaketable.checkers.linearizability.linearizable import Linearizable

OF_LOGS: Final = "linearizable-log"
"""The checker of which live sightings (ADR 35) find a part."""


@dataclass(frozen=True, slots=True)
class OnlinePlan:
    """What the process judges; picklable.

    Attributes:
        checker: the checker that judges the same at the end.
        model: what each key has to behave like.
        topics: the topics whose keys are judged; None: all.
        folder: the run's folder.
        parent_pid: the process that it ends with.
    """

    checker: str
    model: str
    topics: frozenset[str] | None
    folder: Path
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a campaign is judged while it runs.

    Attributes:
        checker, model, topics: see `OnlinePlan`; None if nothing is judged.
        at_end: the checkers that judge at the end: all.
        why_not: why nothing is judged; "" if something is.
    """

    at_end: tuple[str, ...]
    checker: str | None = None
    model: str | None = None
    topics: frozenset[str] | None = None
    why_not: str = ""

    @property
    def line(self) -> str:
        """What the user is told before the run."""
        at_end = f"at the end: {', '.join(self.at_end)}"
        watched = f"{OF_LOGS} is watched for contradictions"
        if self.checker is None and OF_LOGS in self.at_end:
            return f"online: {watched} as operations come; {at_end}"
        if self.checker is None:
            return f"online: nothing is judged before the end: {self.why_not}"
        beside = f", and {watched}," if OF_LOGS in self.at_end else ""
        return f"online: {self.checker} is judged{beside} as operations come; {at_end}"

    def plan(self, folder: RunFolder) -> OnlinePlan:
        """Return what the process is given; only if something is judged."""
        assert self.checker is not None, self.why_not
        assert self.model is not None, self.why_not
        return OnlinePlan(self.checker, self.model, self.topics, folder.path, os.getpid())


def coverage_of(campaign: Campaign) -> Coverage:
    """Return what of a resolved campaign can be judged while it runs, or why nothing can.

    Raises:
        UsageError: a plug-in that it names is unknown.
    """
    workload = discovery.get("workloads", campaign.workload)
    names = tuple(workload.checkers)
    if campaign.world == "sim":
        return Coverage(names, why_not="in world sim all is over before it could be told")
    checkers = ((name, discovery.get("checkers", name)) for name in names)
    for name, checker in checkers:
        if not _is_online(checker):
            continue
        observed = _why_observed(campaign, checker)
        if observed is not None:
            return Coverage(names, why_not=f"{name} can find no broken promise: {observed}")
        return Coverage(names, name, checker.model.name, topics_of(workload).get(name))
    why = f"{campaign.workload} is judged by {', '.join(names)} alone"
    return Coverage(names, why_not=why)


def _is_online(checker: Any) -> bool:
    """Return whether a checker has a model that is judged event by event, from its usual start."""
    from shaketable.checkers.linearizability.linearizable import Linearizable  # noqa: PLC0415 - takes time to load; most runs need it at their end
    from shaketable.checkers.online import MODELS  # noqa: PLC0415 - likewise

    return (
        isinstance(checker, Linearizable)
        and checker.model.name in MODELS
        and checker.initial == checker.model.initial(None)
    )


def _why_observed(campaign: Campaign, checker: Linearizable) -> str | None:
    """Return why what the checker finds may break no promise; None if it breaks one.

    What is told during a run has to be certain, whichever of its faults take effect.
    """
    target = target_of(campaign)
    faults = {name: discovery.get("faults", name) for name in faults_of(campaign)}
    as_if_all = CheckContext(
        nodes=(),
        committed={},
        promises=promises_of(campaign, target) or target.promises,
        windows=tuple(FaultWindow(n, name, "", 0, 0, True, "") for n, name in enumerate(faults)),
        families={name: family_of(fault) for name, fault in faults.items()},
    )
    return checker.why_observed(as_if_all)
