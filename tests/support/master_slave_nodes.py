"""Real processes of brokers without a group: masters, and slaves of them."""

from __future__ import annotations

from pathlib import Path

from shaketable.system.client.connection import Connection
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import QueryConsumerOffset, UpdateConsumerOffset
from tests.support.node_group import HOST, NodeGroup

ASK_TIMEOUT_S = 5.0


class MasterSlaveNodes(NodeGroup):
    """Brokers by name; each is started with its own keys beside `settings`."""

    def ha_address(self, name: str) -> str:
        """Where a master listens for its slaves."""
        return f"{HOST}:{self.peer_ports[name]}"

    def _write_conf(self, name: str, more: dict[str, str]) -> Path:
        values = {
            "brokerName": "broker-a",
            "listenPort": str(self.client_ports[name]),
            "haListenPort": str(self.peer_ports[name]),
            "storePathRootDir": str(self.store(name)),
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            **self.settings,
            **more,
        }
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    async def ask(self, name: str, request: Command) -> Command:
        """Ask a node once, whatever it is."""
        connection = await Connection.open(*self.client_address(name), ASK_TIMEOUT_S)
        try:
            return await connection.call(request, ASK_TIMEOUT_S)
        finally:
            connection.close()

    async def commit(self, name: str, group: str, topic: str, offset: int) -> None:
        """Commit an offset of queue 0."""
        ext = UpdateConsumerOffset(group, topic, 0, offset).to_ext()
        request = Command(RequestCode.UPDATE_CONSUMER_OFFSET, 1, ext=ext)
        assert (await self.ask(name, request)).code == 0

    async def committed(self, name: str, group: str, topic: str) -> int | None:
        """Return what a node says that a group committed of queue 0."""
        ext = QueryConsumerOffset(group, topic, 0, set_zero_if_not_found=False).to_ext()
        answer = await self.ask(name, Command(RequestCode.QUERY_CONSUMER_OFFSET, 1, ext=ext))
        return int(answer.ext["offset"]) if answer.code == 0 else None
