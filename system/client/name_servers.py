"""Asks name servers which brokers there are.

Source: RocketMQ's clusterList of MQAdminStartup; DLEDGER.md A.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shaketable.system.client.channels import Channels, NameService


async def brokers(
    name_servers: str | Sequence[str], timeout_s: float = 3.0
) -> Mapping[str, Mapping[int, str]]:
    """Return "host:port" by broker id (0: it takes messages) by broker name.

    Raises RefusedError where no name server answers.
    """
    channels = Channels()
    try:
        found = await NameService(channels, name_servers).cluster(timeout_s)
    finally:
        channels.close()
    return {name: data.broker_addrs for name, data in found.broker_addr_table.items()}
