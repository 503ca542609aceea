"""Connections to the other members: one each, opened here, used to send only.

A lost message is the core's business (it compares and sends again), so nothing is
queued for a member that is not connected, and what does not fit is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from system.node.link import Link

PEER_OUT_BYTES_MAX = 32 << 20
CONNECT_TIMEOUT_S = 1.0
RECONNECT_AFTER_MIN_S = 0.05
RECONNECT_AFTER_MAX_S = 0.5

log = logging.getLogger("shaketable.node")


class Peers:
    """Sends to the other members by id."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        self._addresses = dict(addresses)
        self._links: dict[str, Link] = {}

    def send(self, peer: str, data: bytes) -> None:
        """Send one frame, or drop it where there is no connection or no room."""
        link = self._links.get(peer)
        if link is not None and not link.send(data):
            log.warning("event=peer_too_slow peer=%s action=dropped bytes=%d", peer, len(data))

    async def run(self) -> None:
        """Keep a connection to each member, until cancelled."""
        async with trio.open_nursery() as nursery:
            for peer in self._addresses:
                nursery.start_soon(self._keep_connected, peer)

    async def _keep_connected(self, peer: str) -> None:
        pause_s = RECONNECT_AFTER_MIN_S
        while True:
            try:
                if await self._serve_connection(peer):
                    pause_s = RECONNECT_AFTER_MIN_S
            except OSError as error:
                log.debug("event=peer_lost peer=%s error=%r", peer, str(error))
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_AFTER_MAX_S)

    async def _serve_connection(self, peer: str) -> bool:
        """Connect and send until the connection breaks; True if it was ever open."""
        host, port = self._addresses[peer]
        with trio.move_on_after(CONNECT_TIMEOUT_S) as connecting:
            stream = await trio.open_tcp_stream(host, port)
        if connecting.cancelled_caught:
            return False
        link = Link(stream.socket, PEER_OUT_BYTES_MAX)
        self._links[peer] = link
        log.info("event=peer_connected peer=%s", peer)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, link, nursery.cancel_scope)
                await self._watch(stream.socket)
                nursery.cancel_scope.cancel()
        finally:
            del self._links[peer]
            link.close()
        log.info("event=peer_disconnected peer=%s", peer)
        return True

    async def _send(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            await link.write()
        except OSError:
            scope.cancel()

    async def _watch(self, sock: trio.socket.SocketType) -> None:
        """Return when the other side closes: nothing else ever comes on this connection."""
        try:
            while await sock.recv(1024):
                pass
        except OSError:
            return
