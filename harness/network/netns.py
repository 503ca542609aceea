"""Links among nodes in network namespaces: the harness's client of the switch process.

The same interface as `harness.network.proxy`, for packets: a cut drops them, and a shape may too.

Source: DESIGN.md decision 8; `harness.network.switch`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from shaketable.harness import namespaces
from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.controlled_process import ControlledProcess

# Addresses of a run's nodes in network namespaces of their own.
#
#     nodes    10.77.0.<k>  of node k (counted from 1), 02:77:00:00:00:<k> towards the others
#     wires    10.77.<k>.1 of the harness and 10.77.<k>.2 of the node on the wire between them
#     harness  10.77.255.1  for what runs beside the nodes (name servers)
#
# A node listens at one address: other nodes reach it through the switch, clients over its veth pair
# to the harness.
#
# Every run uses the same addresses: they are not visible outside its namespaces.

NETWORK: Final = "10.77"
HARNESS: Final = f"{NETWORK}.255.1"


def node_address(number: int) -> str:
    """Return the address of the node of that number (from 0)."""
    return f"{NETWORK}.0.{number + 1}"


def wire_ends(number: int) -> tuple[str, str]:
    """Return the harness's and the node's address on the veth pair between them."""
    return f"{NETWORK}.{number + 1}.1", f"{NETWORK}.{number + 1}.2"


def hardware_address(number: int) -> str:
    """Return the hardware address of the node's interface towards the other nodes."""
    return f"02:77:00:00:00:{number + 1:02x}"


# The links.

ANSWER_TIMEOUT_S: Final = 5.0
"""A switch answers in less than a millisecond, but later on a machine that is overloaded."""


class PacketNetwork:
    """The links among nodes, each in its own namespace. Starts the switch at once.

    Create it in the main thread, from within the harness's own namespace (`harness.namespaces`):
    the switch ends with this thread's process.

    Args:
        nodes: their ids.
        log: the file for the switch's errors.

    Raises:
        HarnessError: the kernel refuses, or the switch does not start.
    """

    def __init__(self, nodes: Sequence[str], log: Path) -> None:
        self._switch = ControlledProcess(
            "the network's switch",
            "shaketable.harness.network.switch",
            nodes,
            log,
            ANSWER_TIMEOUT_S,
        )
        try:
            self._spaces: Mapping[str, int] = self._switch.ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The pid of the switch."""
        return self._switch.pid

    def enter_command(self, node: str) -> tuple[str, ...]:
        """Return the command prefix that runs a program in the node's namespace."""
        return tuple(namespaces.into(self.namespace(node)))

    def namespace(self, node: str) -> str:
        """Return the path of the node's namespace; valid while the switch runs."""
        return f"/proc/{self._switch.pid}/fd/{self._spaces[node]}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the switch until cancelled, then end it.

        Raises:
            HarnessError: the switch exited by itself.
        """
        try:
            pidfd = os.pidfd_open(self._switch.pid)
            try:
                task_status.started()
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            raise HarnessError(f"the network's switch ended (status {self._switch.status})")
        finally:
            self.close()

    def close(self) -> None:
        """End the switch (idempotent). The namespaces end with it and the nodes."""
        self._switch.close()

    def cut(self, links: Sequence[Link]) -> str:
        """Drop all packets from a to b, for each (a, b); return the cut's id."""
        name: str = self._switch.ask("cut", links=links)
        return name

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut (idempotent); "reset" ends the connections whose packets it dropped.

        There is nothing to "deliver": TCP retransmits what was dropped.
        """
        self._switch.ask("heal", name=cut, how=how)

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return tuple(self._switch.ask("open_cuts"))

    def held(self, cut: str) -> Json:
        """Return what the cut dropped so far: {"bytes", "packets", "connections"}."""
        found: Json = self._switch.ask("held", name=cut)
        return found

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `contracts.capabilities.ShapesLinks`."""
        name: str = self._switch.ask("shape", links=links, shape=shape.to_json())
        return name

    def unshape(self, shape: str) -> None:
        """Remove one shape (idempotent)."""
        self._switch.ask("unshape", name=shape)

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far; also after it was removed."""
        found: Json = self._switch.ask("shaped", name=shape)
        return found

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return tuple(self._switch.ask("open_shapes"))

    def counts(self) -> Json:
        """Return the switch's frame counts: {"sent", "unsent", "unread"}."""
        found: Json = self._switch.ask("counts")
        return found
