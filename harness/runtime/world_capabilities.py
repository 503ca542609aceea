"""The capabilities of each world, and the reason for each one that it lacks.

A table entry is None (supported), the reason why not, or a check of the target and the campaign's
options. A capability that is not in a world's table is not supported.

Source: DESIGN.md decision 8 (what a world cannot do is listed, never skipped in silence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shaketable.harness.contracts.abilities import LosesDisks, ShowsClock, SteersNodes
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json, Target
from shaketable.harness.network import probe
from shaketable.harness.runtime.processes import faketime

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


def _power(target: Target, options: Json) -> str | None:
    """Return why a kill is not a power loss whose lost bytes are known, or None."""
    if options.get("disk") != "volatile":
        return CACHED
    return _steered(target, options)


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
    **dict.fromkeys((Capability.DISK_ERRORS, Capability.DISK_FULL, Capability.DISK_SLOW), _steered),
    Capability.POWER: _power,
    Capability.DAMAGE: _stored,
    Capability.ROLLBACK: _stored,
}


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
        (Capability.WIPE, Capability.DELAY, Capability.RATE, Capability.RESET, Capability.HALF_OPEN)
    ),
    Capability.NAME_SERVERS: NOT_ON_THE_WAY,
    Capability.NAME_SERVER_PROCESSES: _name_servers,
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
    **dict.fromkeys((Capability.REORDER, Capability.CORRUPT)),
    Capability.NAME_SERVERS: _name_servers,
    Capability.NAME_SERVER_PROCESSES: _name_servers,
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
    **{capability: _packets(capability) for capability in probe.CAPABILITIES},
}

WORLDS: Mapping[str, Mapping[Capability, Support]] = {
    "process": PROCESS,
    "netns": NETNS,
    "sim": SIM,
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
