"""Leave connections between nodes half open: one side's end, and the other is not told.

As after a power cut of one machine, or of a firewall on the way that forgot its connections: who
was not told goes on writing into nothing, until a timeout of its own, or until the fault's end.
New connections work.

Source: RFC 9293 section 3.5.1 (half-open connections); HARNESSES.md section 5.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault


def _draw(_rng: Random) -> Json:
    return {"half_open": True}


def _tell(_shape: LinkShape) -> str:
    return "half-open connections"


def _judge(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    halves, unread = did.get("half_open", 0), did.get("unread", 0)
    what = f"{halves} connections left half open, {unread} bytes sent into nothing"
    return halves > 0 and unread > 0, what


PLUGIN = LinkFault(
    name="half-open",
    summary="End one side of connections between nodes, and do not tell the other.",
    needs=frozenset({Word.HALF_OPEN}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
    directions=("out", "in"),
)
