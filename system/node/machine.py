"""What a node is given of the machine it runs on: disk, clock, dice and a place for disk work.

A process gets the real ones (`system.node.__main__`, `system.node.disk_threads`), a simulated
node those of its world; the node itself is the same (DESIGN.md decision 9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from shaketable.system.node.clock import Clock
from shaketable.system.node.direct_socket import KernelPoll, Poll
from shaketable.system.raft.protocol import Message
from shaketable.system.store.disk import Disk

Result = TypeVar("Result")


class DiskWork(Protocol):
    """Runs functions that wait for the disk, one after the other, off the hot path."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return what it returns, or raise what it raises."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's surroundings.

    `dice` makes a stream of random numbers for a named purpose, `new_poll` what watches many
    connections at once. `on_message`, if there is one, is told of each message to another member
    before it goes.
    """

    disk: Disk
    clock: Clock
    dice: Callable[[str], Random]
    run_disk_work: DiskWork
    new_poll: Callable[[], Poll] = KernelPoll
    on_message: Callable[[Message], None] | None = None
