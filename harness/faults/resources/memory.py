"""Take memory from nodes: a process gets little more than it has, or nothing, whatever it asks.

The limit is the process's own (RLIMIT_AS). Meanwhile a crowd asks for connections at its door, as
clients do that come back all at once, so that it wants more. A program that is refused carries on
without, or ends, or loses a part of itself and stands still: in the end it has its limit as it
was, and is started again if it does not run or does not answer.

Source: setrlimit(2); Chaos Mesh's memory stress; openraft and etcd out-of-memory reports.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.resources import Resources
from shaketable.harness.contracts.words import Word
from shaketable.harness.faults.taken_resources import ResourceFault, how_it_ended

MIB = 1 << 20
SPARES_BYTES = (0, 0, 0, MIB)
CALLERS = 400
"""Each of them costs a program some memory, all of them more than it has in hand."""


def _draw(rng: Random, turn: int) -> Json:
    return {"memory_spare_bytes": rng.choice(SPARES_BYTES) if turn else 0, "callers": CALLERS}


def _tell(resources: Resources) -> str:
    return f"leave {(resources.memory_spare_bytes or 0) // MIB} MiB more of memory to"


def _judge(resources: Resources, did: Json) -> str | None:
    ended, refused = how_it_ended(did), did.get("refused", 0)
    if ended is None and did.get("silent"):
        ended = "it runs, and answers nothing"
    if ended is None and not refused:
        return None
    limit = f"was refused memory beyond {did.get('limit_bytes', 0) // MIB} MiB"
    return f"{limit} {refused} times" if ended is None else f"{limit}: {ended}"


PLUGIN = ResourceFault(
    name="memory",
    summary="Let nodes have 0 or 1 MiB more memory than they have now (RLIMIT_AS).",
    needs=frozenset({Word.MEMORY}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
    measures=("refused",),
)
