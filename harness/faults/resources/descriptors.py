"""Take descriptors from nodes: a process can open few more files and connections, or none.

The limit is the process's own (RLIMIT_NOFILE). Meanwhile a few connections are asked for at its
door, as by clients that come back all at once; a node that has none left lets them wait there.

Source: setrlimit(2); accept(2), EMFILE.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.resources import Resources
from shaketable.harness.contracts.words import Word
from shaketable.harness.faults.taken_resources import ResourceFault, how_it_ended

SPARES = (0, 0, 1, 3)
CALLERS = 8


def _draw(rng: Random, turn: int) -> Json:
    return {"descriptors_spare": rng.choice(SPARES) if turn else 0, "callers": CALLERS}


def _tell(resources: Resources) -> str:
    return f"leave {resources.descriptors_spare} more descriptors to"


def _judge(resources: Resources, did: Json) -> str | None:
    ended = how_it_ended(did)
    waiting, refused = did.get("unaccepted", 0), did.get("refused", 0)
    is_full = did.get("open", 0) >= did.get("limit", 1)
    if ended is None and not (is_full and (waiting or refused)):
        return None
    what = f"had all of its {did.get('limit')} descriptors in use"
    if waiting:
        what += f", {waiting} connections waited at its door"
    if refused:
        what += f", it said so {refused} times"
    return what if ended is None else f"{what}, and {ended}"


PLUGIN = ResourceFault(
    name="descriptors",
    summary="Let nodes open 0 to 3 more files and connections than they have (RLIMIT_NOFILE).",
    needs=frozenset({Word.DESCRIPTORS}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
    measures=("unaccepted", "refused"),
)
