"""Which of a campaign's faults can be injected into its group.

What cannot be done is listed with its reason, in the run's facts, its results and its report, and
never skipped in silence (DESIGN.md decision 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shaketable.harness import discovery, plugin_calls
from shaketable.harness.campaigns.campaign import Campaign, fault_options, faults_of, node_names
from shaketable.harness.contracts.abilities import LinksNodes, ShowsClock, SteersNodes
from shaketable.harness.contracts.capabilities import NETWORK, Capability, family_of, needs_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Fault, Json, Target
from shaketable.harness.runtime import world_capabilities


@dataclass(frozen=True, slots=True)
class Choice:
    """The faults to draw from, and the reasons why the other requested ones are not available."""

    faults: Mapping[str, Fault]
    unavailable: Mapping[str, str]


def choose(campaign: Campaign) -> Choice:
    """Configure the faults of a resolved campaign, and check each one's availability.

    Raises:
        UsageError: a fault refuses an option; or faults are requested, and none is available.
        HarnessError: a plug-in cannot be imported, or its check fails.
    """
    choice = look(campaign)
    if choice.unavailable and not choice.faults:
        reasons = "; ".join(tell(choice.unavailable))
        raise UsageError(f"none of the faults asked for is available: {reasons}")
    return choice


def look(campaign: Campaign) -> Choice:
    """As `choose`, but without an error if none of the faults is available.

    Raises:
        UsageError: a fault refuses an option.
        HarnessError: a plug-in cannot be imported, or its check fails.
    """
    target: Target = discovery.get("targets", campaign.target)
    nodes, options = node_names(campaign), {**fault_options(campaign), **clocks_of(target)}
    faults: dict[str, Fault] = {}
    unavailable: dict[str, str] = {}
    for name in faults_of(campaign):
        fault = plugin_calls.configured(discovery.get("faults", name), options)
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
        with plugin_calls.as_plugin_error():
            why = fault.unavailable(target, nodes)
            return why if why is None else plugin_calls.text(why, "it returned")
    except plugin_calls.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its unavailable fails: {error}") from error


def clocks_of(target: Target) -> Json:
    """Return the fault option for targets of which only wall clocks can be skewed; else {}."""
    is_foreign = isinstance(target, ShowsClock) and not isinstance(target, SteersNodes)
    return {"clocks": "wall"} if is_foreign else {}


def families(campaign: Campaign) -> dict[str, str]:
    """Return the family of each fault that a campaign asks for, by its name."""
    return {name: family_of(discovery.get("faults", name)) for name in faults_of(campaign)}


def lacking(fault: Fault, world: str, target: Target, options: Json) -> str | None:
    """Return which needed capability the world lacks, and why; None if it has all."""
    for capability in sorted(needs_of(fault)):
        why = world_capabilities.why_unsupported(world, capability, target, options)
        if why is not None:
            return why
    return None


def tell(unavailable: Mapping[str, str]) -> list[str]:
    """Return one line for each unavailable fault, with the reason."""
    return [f"fault {name} is not available: {why}" for name, why in unavailable.items()]
