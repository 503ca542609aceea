"""Addresses of a run's nodes in network namespaces of their own.

    nodes    10.77.0.<k>  of node k (counted from 1), 02:77:00:00:00:<k> towards the others
    wires    10.77.<k>.1 of the harness and 10.77.<k>.2 of the node on the wire between them
    harness  10.77.255.1  for what runs beside the nodes (name servers)

A node listens at its one address for everybody: other nodes reach it through the switch, clients
over its wire to the harness.

Every run has the same: nobody outside its namespaces ever sees them.
"""

from __future__ import annotations

from typing import Final

NETWORK: Final = "10.77"
HARNESS: Final = f"{NETWORK}.255.1"


def node_address(number: int) -> str:
    """Where everybody reaches the node of that number (from 0)."""
    return f"{NETWORK}.0.{number + 1}"


def wire_ends(number: int) -> tuple[str, str]:
    """The harness's and the node's end of the wire between them."""
    return f"{NETWORK}.{number + 1}.1", f"{NETWORK}.{number + 1}.2"


def hardware_address(number: int) -> str:
    """The hardware address of the node's interface towards the other nodes."""
    return f"02:77:00:00:00:{number + 1:02x}"
