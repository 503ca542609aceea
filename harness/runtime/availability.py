"""Which of the faults that a campaign asks for can be done to its group.

What cannot be done is listed with its reason, in the run's facts, its results and its
report, and never skipped in silence (DESIGN.md decision 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shaketable.harness import blame, discovery
from shaketable.harness.campaigns.campaign import Campaign, fault_options, faults_of, node_names
from shaketable.harness.contracts.abilities import LinksNodes, ShowsClock, SteersNodes
from shaketable.harness.contracts.capabilities import NETWORK, Capability, family_of, needs_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Fault, Json, Target
from shaketable.harness.runtime import world_capabilities


@dataclass(frozen=True, slots=True)
class Choice:
    """The faults that will be drawn from, and why the others of those asked for will not."""

    faults: Mapping[str, Fault]
    unavailable: Mapping[str, str]


def choose(campaign: Campaign) -> Choice:
    """Configure the faults of a resolved campaign, and ask each whether it can be done.

    Raises:
        UsageError: an option that a fault cannot take; or faults are asked for, and none of
            them can be done.
        HarnessError: a plug-in cannot be imported, or cannot be asked.
    """
    choice = look(campaign)
    if choice.unavailable and not choice.faults:
        told = "; ".join(tell(choice.unavailable))
        raise UsageError(f"none of the faults asked for is available: {told}")
    return choice


def look(campaign: Campaign) -> Choice:
    """Do as `choose`, where it may be that none of the faults can be done.

    Raises:
        UsageError: an option that a fault cannot take.
        HarnessError: a plug-in cannot be imported, or cannot be asked.
    """
    target: Target = discovery.get("targets", campaign.target)
    nodes, options = node_names(campaign), {**fault_options(campaign), **clocks_of(target)}
    faults: dict[str, Fault] = {}
    unavailable: dict[str, str] = {}
    for name in faults_of(campaign):
        fault = blame.configured(discovery.get("faults", name), options)
        why = lacking(fault, campaign.world, target, options)
        why = why if why is not None else _unavailable(fault, target, nodes)
        if why is None:
            faults[name] = fault
        else:
            unavailable[name] = why
    return Choice(faults, unavailable)


def _unavailable(fault: Fault, target: Target, nodes: Sequence[str]) -> str | None:
    is_of_nodes = family_of(fault) == NETWORK and Capability.NAME_SERVERS not in needs_of(fault)
    if is_of_nodes and isinstance(target, LinksNodes):
        why = target.why_no_links(nodes)
        if why is not None:
            return why
    try:
        with blame.blamed():
            why = fault.unavailable(target, nodes)
            return why if why is None else blame.text(why, "it returned")
    except blame.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its unavailable fails: {error}") from error


def clocks_of(target: Target) -> Json:
    """Say to faults which clocks of such nodes can be wrong, if these are not all."""
    is_foreign = isinstance(target, ShowsClock) and not isinstance(target, SteersNodes)
    return {"clocks": "wall"} if is_foreign else {}


def families(campaign: Campaign) -> dict[str, str]:
    """Return the family of each fault that a campaign asks for, by its name."""
    return {name: family_of(discovery.get("faults", name)) for name in faults_of(campaign)}


def lacking(fault: Fault, world: str, target: Target, options: Json) -> str | None:
    """Say which word a fault needs that its world cannot do, and why; None if there is none."""
    for capability in sorted(needs_of(fault)):
        why = world_capabilities.why_unsupported(world, capability, target, options)
        if why is not None:
            return why
    return None


def tell(unavailable: Mapping[str, str]) -> list[str]:
    """Say of each such fault in one line that it is not available, and why."""
    return [f"fault {name} is not available: {why}" for name, why in unavailable.items()]
