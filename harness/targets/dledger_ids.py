"""Ids of a DLedger group's members: a node that lost its disk comes back under a new one.

In a group of n nodes, node k is member n<k> at first and n<k + g*n> after its g-th lost disk, so
that an id says which node it is. Nothing here talks to anybody: readers of files import it too.

Source: DESIGN.md decision 2.
"""

from __future__ import annotations

from pathlib import Path

from shaketable.harness.plugins import NodeLayout

GENERATIONS_MAX = 16
"""So often a node may lose its disk in one run."""
SELF_ID = "dLegerSelfId="


def member_of(node: str, generation: int, size: int) -> str:
    """Return the id of a node's member."""
    return f"n{_number(node) + generation * size}"


def node_of(member: str, size: int) -> str:
    """Return the node whose member that is, or was. A node alone, or of unknown size, stays one."""
    if size == 1:
        return member
    return f"n{_number(member) % size}"


def last_member(directory: Path, node: str) -> str:
    """Return the member that a node was last: of others it keeps no files."""
    conf = directory / "broker.conf"
    if not conf.is_file():
        return node
    said = [line for line in conf.read_text().splitlines() if line.startswith(SELF_ID)]
    return said[0].removeprefix(SELF_ID) if said else node


def reach(layout: NodeLayout) -> str:
    """Return where a node finds all members that other nodes may become, as DLedger lists peers."""
    size = len(layout.peers) + 1
    return ";".join(
        f"{member_of(peer, generation, size)}-{at.host}:{at.port}"
        for peer, at in sorted(layout.peers.items())
        for generation in range(1, GENERATIONS_MAX + 1)
    )


def _number(member: str) -> int:
    return int(member.removeprefix("n"))
