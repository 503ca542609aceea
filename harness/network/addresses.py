"""Addresses of a run's nodes in network namespaces of their own.

    nodes    10.77.0.<k>  of node k (counted from 1), 02:77:00:00:00:<k> towards the others
    wires    10.77.<k>.1 of the harness and 10.77.<k>.2 of the node on the wire between them
    harness  10.77.255.1  for what runs beside the nodes (name servers)

A node listens at one address: other nodes reach it through the switch, clients over its veth pair
to the harness.

Every run uses the same addresses: they are not visible outside its namespaces.
"""

from __future__ import annotations

from typing import Final

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
