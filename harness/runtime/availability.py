"""Which of a campaign's faults can be injected into its group.

What cannot be done is listed with its reason, in the run's facts, its results and its report, and
never skipped in silence (DESIGN.md decision 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shaketable.harness import discovery, plugin_calls
from shaketable.harness.campaigns.campaign import (
    EXISTING,
    HOSTS,
    Campaign,
    fault_options,
    faults_of,
    node_names,
    target_of,
)
from shaketable.harness.contracts.abilities import (
    HasVolatileDisk,
    LinksNodes,
    LosesDisks,
    LosesNothingAtAKill,
    RunsAlready,
    RunsOnHosts,
    ShowsClock,
    SteersNodes,
    TellsOwnAddresses,
)
from shaketable.harness.contracts.capabilities import (
    NETWORK,
    OUTER_LINKS,
    Capability,
    family_of,
    needs_of,
)
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Fault, Json, Target
from shaketable.harness.network import probe
from shaketable.harness.runtime.processes import faketime
from shaketable.harness.volatile_disk.disk import why_no_volatile_disk


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
        raise UsageError(f"none of the requested faults is available: {reasons}")
    return choice


def look(campaign: Campaign) -> Choice:
    """As `choose`, but without an error if none of the faults is available.

    Raises:
        UsageError: a fault refuses an option.
        HarnessError: a plug-in cannot be imported, or its check fails.
    """
    target = target_of(campaign)
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
    is_of_nodes = family_of(fault) == NETWORK and not needs_of(fault) & OUTER_LINKS
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
        why = why_unsupported(world, capability, target, options)
        if why is not None:
            return why
    return None


def tell(unavailable: Mapping[str, str]) -> list[str]:
    """Return one line for each unavailable fault, with the reason."""
    return [f"fault {name} is not available: {why}" for name, why in unavailable.items()]


# ---- the capabilities of each world, and the reason for each one that it lacks -----------------
#
# A table entry is None (supported), the reason why not, or a check of the target and the campaign's
# options. A capability that is not in a world's table is not supported.

SupportCheck = Callable[[Target, Json], str | None]
"""For support that depends on the target or the campaign: None if supported, else why not."""
Support = str | SupportCheck | None

STREAM_LOSES_NOTHING = "a TCP stream between proxies loses nothing: packets are those of netns, sim"
NOT_ON_THE_WAY = "nodes reach name servers directly; world sim has links to them"
CACHED = "disk real: what a killed process wrote stays in the page cache"
NOT_SIMULATED = "a simulated process has none of its own"

_EVERYWHERE: Mapping[Capability, Support] = dict.fromkeys(
    (Capability.KILL, Capability.PAUSE, Capability.CUT, Capability.TRANSFER)
)
"""The methods of `World` itself: every world has them."""


def _steered(target: Target, _options: Json) -> str | None:
    """Return why the target's nodes cannot be steered, or None."""
    if isinstance(target, SteersNodes):
        return None
    return f"nodes of {target.name} take no orders about their clocks and disks"


def _clocks(target: Target, options: Json) -> str | None:
    """Return why clocks can be neither steered nor faked from outside (libfaketime), or None."""
    if isinstance(target, SteersNodes) or not isinstance(target, ShowsClock):
        return _steered(target, options)
    try:
        faketime.library()
    except HarnessError as error:
        return str(error)
    return None


def _disk(target: Target, options: Json) -> str | None:
    """Return why neither the target's nodes nor a disk of the harness take orders, or None."""
    if isinstance(target, SteersNodes):
        return None
    if not isinstance(target, HasVolatileDisk):
        return (
            f"{_steered(target, options)}, and {target.name} has no disk of the harness"
            ' (disk = "volatile" in shaketable.toml)'
        )
    if options.get("disk") != "volatile":
        return "disk real: the harness has no part in it"
    return why_no_volatile_disk()


def _power(target: Target, options: Json) -> str | None:
    """Return why a kill is not a power loss whose lost bytes are known, or None."""
    if isinstance(target, LosesNothingAtAKill):
        return target.why_no_power_loss
    if options.get("disk") != "volatile":
        return CACHED
    return _disk(target, options)


def _stored(target: Target, _options: Json) -> str | None:
    """Return why the target's store directories are unknown, or None."""
    if isinstance(target, LosesDisks):
        return None
    return f"{target.name} does not say where its nodes keep their store"


def _name_servers(_target: Target, options: Json) -> str | None:
    """Return why there is no name server, or None."""
    return None if options.get("has_name_server") else "the campaign has no name server"


_CLOCKS_AND_DISKS: Mapping[Capability, Support] = {
    Capability.CLOCK: _clocks,
    **dict.fromkeys((Capability.DISK_ERRORS, Capability.DISK_FULL, Capability.DISK_SLOW), _disk),
    Capability.POWER: _power,
    Capability.DAMAGE: _stored,
    Capability.ROLLBACK: _stored,
}


def _proxied(target: Target, _options: Json) -> str | None:
    """Return why the target's nodes cannot be given proxies as their peers, or None."""
    if isinstance(target, TellsOwnAddresses) and target.tells_own_addresses:
        return (
            f"nodes of {target.name} tell each other where they listen, and pass by proxies:"
            " --world netns has such links"
        )
    return None


def _packets(capability: Capability) -> SupportCheck:
    """Return a check that reports what a trial on this machine found (`network.probe`)."""

    def ask(_target: Target, _options: Json) -> str | None:
        found = probe.probed()[capability]
        return None if found.works else found.what

    return ask


_OPERATORS: Mapping[Capability, Support] = dict.fromkeys((Capability.STOP, Capability.MEMBERS))
_RESOURCES: Mapping[Capability, Support] = dict.fromkeys(
    (Capability.CPU, Capability.MEMORY, Capability.DESCRIPTORS)
)
PROCESS: Mapping[Capability, Support] = {
    **_EVERYWHERE,
    **_CLOCKS_AND_DISKS,
    **_OPERATORS,
    **_RESOURCES,
    **dict.fromkeys(
        (
            Capability.CUT,
            Capability.DELAY,
            Capability.RATE,
            Capability.MTU,
            Capability.RESET,
            Capability.HALF_OPEN,
        ),
        _proxied,
    ),
    Capability.WIPE: None,
    Capability.NAME_SERVERS: NOT_ON_THE_WAY,
    Capability.NAME_SERVER_PROCESSES: _name_servers,
    Capability.CLIENT_LINKS: None,
    Capability.LOSS: STREAM_LOSES_NOTHING,
    Capability.DUPLICATE: STREAM_LOSES_NOTHING,
    Capability.REORDER: STREAM_LOSES_NOTHING,
    Capability.CORRUPT: STREAM_LOSES_NOTHING,
}
SIM: Mapping[Capability, Support] = {
    **_EVERYWHERE,
    **_OPERATORS,
    Capability.CPU: None,
    **dict.fromkeys(
        (Capability.DELAY, Capability.LOSS, Capability.RATE, Capability.RESET, Capability.HALF_OPEN)
    ),
    **dict.fromkeys((Capability.MTU, Capability.REORDER, Capability.CORRUPT)),
    Capability.NAME_SERVERS: _name_servers,
    Capability.NAME_SERVER_PROCESSES: _name_servers,
    Capability.CLIENT_LINKS: None,
    Capability.DUPLICATE: (
        "its connections are simulated, not their packets: TCP drops what comes twice"
    ),
    **dict.fromkeys(
        (Capability.CLOCK, Capability.DISK_ERRORS, Capability.DISK_FULL, Capability.DISK_SLOW)
    ),
    **dict.fromkeys((Capability.POWER, Capability.WIPE)),
    Capability.DAMAGE: (
        "campaigns do not edit the files of simulated nodes: `simulate` damages them"
    ),
    Capability.ROLLBACK: "its invariants are those of Raft's model",
    Capability.MEMORY: NOT_SIMULATED,
    Capability.DESCRIPTORS: NOT_SIMULATED,
}
NETNS: Mapping[Capability, Support] = {
    **_EVERYWHERE,
    **_OPERATORS,
    **_RESOURCES,
    **_CLOCKS_AND_DISKS,
    Capability.WIPE: None,
    Capability.NAME_SERVERS: NOT_ON_THE_WAY,
    Capability.NAME_SERVER_PROCESSES: _name_servers,
    Capability.CLIENT_LINKS: None,
    **{capability: _packets(capability) for capability in probe.CAPABILITIES},
}


def _elsewhere(capability: Capability) -> SupportCheck:
    """Return a check of what the target knows of its nodes, which are not of this machine."""

    def ask(target: Target, _options: Json) -> str | None:
        assert isinstance(target, RunsAlready | RunsOnHosts), "as the campaign was resolved"
        return target.why_not(capability)

    return ask


_ELSEWHERE: Mapping[Capability, Support] = {
    **{capability: _elsewhere(capability) for capability in Capability},
    Capability.CLIENT_LINKS: None,  # the clients are ours, wherever the nodes are
}


WORLDS: Mapping[str, Mapping[Capability, Support]] = {
    "process": PROCESS,
    "netns": NETNS,
    "sim": SIM,
    EXISTING: _ELSEWHERE,
    HOSTS: _ELSEWHERE,
}


def why_unsupported(
    world: str, capability: Capability, target: Target, options: Json
) -> str | None:
    """Return why a world lacks a capability for this target; None if it has it.

    Args:
        world: the world's name, as in the campaign.
        capability: the capability.
        target: the system under test.
        options: the campaign's fault options (`harness.campaigns.campaign.fault_options`).
    """
    support = WORLDS[world].get(capability, f"{capability} is not one of its words")
    if callable(support):
        return support(target, options)
    return None if support is None else f"world {world} cannot do it: {support}"
