"""What can be taken from one process: processor time, memory, descriptors.

The words `cpu`, `memory` and `descriptors` (`contracts.words`), apart for their length.

Source: DESIGN.md decision 10; Chaos Mesh's StressChaos; setrlimit(2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What is taken from a process. What is None (or 1.0) is left to it.

    Attributes:
        cpu_share: the share of the time in which it may run at all, in slices of `slice_ms`.
        memory_spare_bytes: how much more memory (address space) it may take than it has now.
        descriptors_spare: how many more files and connections it may open than it has now.
        callers: so many connections are asked for at its door meanwhile, and say nothing: what
            a process does not want it does not miss.
    """

    cpu_share: float = 1.0
    slice_ms: float = 50.0
    memory_spare_bytes: int | None = None
    descriptors_spare: int | None = None
    callers: int = 0

    def to_json(self) -> Json:
        """For a plan; `Resources(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class TakesResources(Protocol):
    """A world that can take processor time, memory and descriptors from a node's process.

    An incarnation that ends for want of them while they are taken ended by that fault, and not
    by itself; `give_back` starts the node again.
    """

    async def take(self, node: str, resources: Resources) -> str:
        """Take that from the node's process that runs now; return an id ("" if none runs)."""
        ...

    async def give_back(self, taken: str) -> None:
        """Give exactly that back, and start what ended for want of it (idempotent)."""
        ...

    def taken(self, taken: str) -> Json:
        """What that did so far, as measured from outside; also after it was given back.

        Always "node" and "ended" (how its process ended for want of it; None if it did not). Of
        the processor: "stopped_ms", "stops", "cpu_ms" (time it ran), "wall_ms", and
        "cpu_share_before". Of memory: "limit_bytes", "had_bytes", "refused" (lines in its log
        that say so), "silent" (it runs, and answers nothing). Of descriptors: "limit", "open" (the
        most seen), "unaccepted" (connections that waited at its door with none free, the most
        seen), "refused".
        """
        ...
