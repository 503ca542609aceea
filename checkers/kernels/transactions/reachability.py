"""Which nodes of a graph without cycles reach which: a row of bits for each node."""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import compiled

_BITS = 64
_ONE = np.uint64(1)


@compiled
def reachable(sources: Any, targets: Any, nodes: int, order: Any) -> Any:
    """Return the bits: node v is reached from u if bit v % 64 of word [u, v // 64] is set.

    `order`: the nodes, each after all that lead to it.
    """
    starts = np.zeros(nodes + 2, np.int64)
    for source in sources:
        starts[source + 2] += 1
    for node in range(nodes):
        starts[node + 2] += starts[node + 1]
    after = np.empty(len(sources), np.int64)
    for edge in range(len(sources)):
        after[starts[sources[edge] + 1]] = targets[edge]
        starts[sources[edge] + 1] += 1
    found = np.zeros((nodes, (nodes + _BITS - 1) // _BITS), np.uint64)
    for place in range(nodes - 1, -1, -1):
        node = order[place]
        for at in range(starts[node], starts[node + 1]):
            target = after[at]
            for word in range(found.shape[1]):
                found[node, word] |= found[target, word]
            found[node, target // _BITS] |= _ONE << np.uint64(target % _BITS)
    return found


@compiled
def closing(found: Any, sources: Any, targets: Any, closes: Any) -> None:
    """Say of each edge whether it would close a cycle: its target reaches its source."""
    for edge in range(len(sources)):
        source = sources[edge]
        bit = _ONE << np.uint64(source % _BITS)
        closes[edge] = found[targets[edge], source // _BITS] & bit != 0
