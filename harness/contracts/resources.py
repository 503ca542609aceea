"""Resource exhaustion of one process: processor time, memory, file descriptors.

The capabilities `cpu`, `memory` and `descriptors` (`contracts.capabilities`).

Source: DESIGN.md decision 10; Chaos Mesh's StressChaos; setrlimit(2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What is taken from a process. None (or a share of 1.0) leaves a resource alone.

    Attributes:
        cpu_share: share of the time in which the process may run, in slices of `slice_ms`.
        slice_ms: length of a slice.
        memory_spare_bytes: how much more memory (address space) it may allocate than it has now.
        descriptors_spare: how many more files and connections it may open than it has now.
        callers: this many idle connections are opened to it meanwhile, since a limit on
            descriptors has no effect on a process that opens none.
    """

    cpu_share: float = 1.0
    slice_ms: float = 50.0
    memory_spare_bytes: int | None = None
    descriptors_spare: int | None = None
    callers: int = 0

    def to_json(self) -> Json:
        """Return it as JSON for a plan; `Resources(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class LimitsResources(Protocol):
    """A world that can limit processor time, memory and descriptors of a node's process.

    If the process exits because of a limit, the fault is the cause; `lift_limits` restarts it.
    """

    async def limit_resources(self, node: str, resources: Resources) -> str:
        """Apply these limits to the node's running process; return an id ("" if none runs)."""
        ...

    async def lift_limits(self, limits: str) -> None:
        """Lift exactly these limits; restart a node that exited because of them (idempotent)."""
        ...

    def limit_effects(self, limits: str) -> Json:
        """Return the effects so far, measured from outside; also after the limits were lifted.

        Always "node" and "ended" (how its process exited because of the limit; None if it did not).
        CPU: "stopped_ms", "stops", "cpu_ms" (time it ran), "wall_ms", and "cpu_share_before".
        Memory: "limit_bytes", "had_bytes", "refused" (lines in its log that report it), "silent"
        (running, but not answering). Descriptors: "limit", "open" (the most seen), "unaccepted"
        (connections that waited to be accepted with no descriptor free, the most seen), "refused".
        """
        ...
