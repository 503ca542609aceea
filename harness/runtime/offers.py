"""What each world offers, word by word, and why it lacks what it lacks.

An answer is None (the world has that word), a reason in a few words, or a question that is put to
the target and the campaign's options. What a world's table does not name it lacks.

Source: DESIGN.md decision 8 (what a world cannot do is listed, never skipped in silence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shaketable.harness.contracts.abilities import LosesDisks, ShowsClock, SteersNodes
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json, Target
from shaketable.harness.contracts.words import Word
from shaketable.harness.network import probe
from shaketable.harness.runtime.processes import faketime

Question = Callable[[Target, Json], str | None]
"""Asked where it depends on the target or the campaign: None if it can, else why not."""
Offer = str | Question | None

STREAM_LOSES_NOTHING = "a TCP stream between proxies loses nothing: packets are those of netns, sim"
NOT_ON_THE_WAY = "nodes reach name servers directly; world sim has links to them"
CACHED = "disk real: what a killed process wrote stays in the page cache"
NOT_SIMULATED = "a simulated process has none of its own"

_EVERYWHERE: Mapping[Word, Offer] = dict.fromkeys((Word.KILL, Word.PAUSE, Word.CUT, Word.TRANSFER))
"""The methods that `World` itself has, in each world."""


def _steered(target: Target, _options: Json) -> str | None:
    """Whether a target's nodes obey orders."""
    if isinstance(target, SteersNodes):
        return None
    return f"nodes of {target.name} take no orders about their clocks and disks"


def _clocks(target: Target, options: Json) -> str | None:
    """Whether a target's nodes obey orders, or their clocks can be faked from outside."""
    if isinstance(target, SteersNodes) or not isinstance(target, ShowsClock):
        return _steered(target, options)
    try:
        faketime.library()
    except HarnessError as error:
        return str(error)
    return None


def _power(target: Target, options: Json) -> str | None:
    """Whether a kill of a target's node is a power loss, and what is lost is known."""
    if options.get("disk") != "volatile":
        return CACHED
    return _steered(target, options)


def _stored(target: Target, _options: Json) -> str | None:
    """Whether a target says where its nodes keep what they store."""
    if isinstance(target, LosesDisks):
        return None
    return f"{target.name} does not say where its nodes keep their store"


def _name_servers(_target: Target, options: Json) -> str | None:
    """Whether a name server runs beside the nodes."""
    return None if options.get("has_name_server") else "the campaign has no name server"


_CLOCKS_AND_DISKS: Mapping[Word, Offer] = {
    Word.CLOCK: _clocks,
    **dict.fromkeys((Word.DISK_ERRORS, Word.DISK_FULL, Word.DISK_SLOW), _steered),
    Word.POWER: _power,
    Word.DAMAGE: _stored,
    Word.ROLLBACK: _stored,
}


def _packets(word: Word) -> Question:
    """Whether packets between namespaces can be made to suffer that here: it is tried."""

    def ask(_target: Target, _options: Json) -> str | None:
        found = probe.probed()[word]
        return None if found.works else found.what

    return ask


_OPERATORS: Mapping[Word, Offer] = dict.fromkeys((Word.STOP, Word.MEMBERS))
_RESOURCES: Mapping[Word, Offer] = dict.fromkeys((Word.CPU, Word.MEMORY, Word.DESCRIPTORS))
PROCESS: Mapping[Word, Offer] = {
    **_EVERYWHERE,
    **_CLOCKS_AND_DISKS,
    **_OPERATORS,
    **_RESOURCES,
    **dict.fromkeys((Word.WIPE, Word.DELAY, Word.RATE, Word.RESET, Word.HALF_OPEN)),
    Word.NAME_SERVERS: NOT_ON_THE_WAY,
    Word.NAME_SERVER_PROCESSES: _name_servers,
    Word.LOSS: STREAM_LOSES_NOTHING,
    Word.DUPLICATE: STREAM_LOSES_NOTHING,
    Word.REORDER: STREAM_LOSES_NOTHING,
    Word.CORRUPT: STREAM_LOSES_NOTHING,
}
SIM: Mapping[Word, Offer] = {
    **_EVERYWHERE,
    **_OPERATORS,
    Word.CPU: None,
    **dict.fromkeys((Word.DELAY, Word.LOSS, Word.RATE, Word.RESET, Word.HALF_OPEN)),
    **dict.fromkeys((Word.REORDER, Word.CORRUPT)),
    Word.NAME_SERVERS: _name_servers,
    Word.NAME_SERVER_PROCESSES: _name_servers,
    Word.DUPLICATE: "its connections are simulated, not their packets: TCP drops what comes twice",
    **dict.fromkeys((Word.CLOCK, Word.DISK_ERRORS, Word.DISK_FULL, Word.DISK_SLOW)),
    **dict.fromkeys((Word.POWER, Word.WIPE)),
    Word.DAMAGE: "campaigns do not edit the files of simulated nodes: `simulate` damages them",
    Word.ROLLBACK: "its invariants are those of Raft's model",
    Word.MEMORY: NOT_SIMULATED,
    Word.DESCRIPTORS: NOT_SIMULATED,
}
NETNS: Mapping[Word, Offer] = {
    **_EVERYWHERE,
    **_OPERATORS,
    **_RESOURCES,
    **_CLOCKS_AND_DISKS,
    Word.WIPE: None,
    Word.NAME_SERVERS: NOT_ON_THE_WAY,
    Word.NAME_SERVER_PROCESSES: _name_servers,
    **{word: _packets(word) for word in probe.WORDS},
}

WORLDS: Mapping[str, Mapping[Word, Offer]] = {"process": PROCESS, "netns": NETNS, "sim": SIM}


def why_not(world: str, word: Word, target: Target, options: Json) -> str | None:
    """Say why a world cannot do that to such a target; None if it can.

    Args:
        world: its name, as the campaign gives it.
        word: what is to be done.
        target: what it is to be done to.
        options: what the campaign tells its faults (`harness.campaigns.campaign.fault_options`).
    """
    offer = WORLDS[world].get(word, f"{word} is not one of its words")
    if callable(offer):
        return offer(target, options)
    return None if offer is None else f"world {world} cannot do it: {offer}"
