"""Connections to the other members: one each, opened here, used to send only.

Whom to keep a connection with follows the group's membership. A lost message is the core's
business (it compares and sends again), so nothing is queued for a member that is not
connected, and what does not fit is dropped.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

import trio

from shaketable.system.node.clock import Clock, sleep
from shaketable.system.node.dial import dial
from shaketable.system.node.link import Link

PEER_OUT_BYTES_MAX = 32 << 20
CONNECT_TIMEOUT_MS = 1000.0
UNACKNOWLEDGED_MAX_MS = 3000
"""How long the other machine may leave bytes unacknowledged before we connect anew. By itself TCP
tries more and more seldom, so that the end of a long partition would be noticed minutes later."""
RECONNECT_AFTER_MIN_MS = 50.0
RECONNECT_AFTER_MAX_MS = 500.0

Address = tuple[str, int]
"""(host, port) of a member's DLedger port."""

log = logging.getLogger("shaketable.node")


class Peers:
    """Sends to the other members by id. `keep` says who these are, at any time."""

    def __init__(self, clock: Clock, addresses: Mapping[str, Address]) -> None:
        self._clock = clock
        self._addresses = dict(addresses)
        self._links: dict[str, Link] = {}
        self._scopes: dict[str, tuple[Address, trio.CancelScope]] = {}
        self._changed = trio.Event()

    def keep(self, addresses: Mapping[str, Address]) -> None:
        """Keep connections with these members from now on, and with no others."""
        if dict(addresses) != self._addresses:
            self._addresses = dict(addresses)
            self._changed.set()

    def send(self, peer: str, data: bytes) -> None:
        """Send one frame, or drop it where there is no connection or no room."""
        link = self._links.get(peer)
        if link is not None and not link.send(data):
            log.warning("event=peer_too_slow peer=%s action=dropped bytes=%d", peer, len(data))

    async def run(self) -> None:
        """Keep a connection to each member, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for peer, (address, scope) in list(self._scopes.items()):
                    if self._addresses.get(peer) != address:
                        scope.cancel()
                        del self._scopes[peer]
                for peer, address in self._addresses.items():
                    if peer not in self._scopes:
                        scope = trio.CancelScope()
                        self._scopes[peer] = (address, scope)
                        nursery.start_soon(self._keep_connected, peer, address, scope)
                await self._changed.wait()
                self._changed = trio.Event()

    async def _keep_connected(self, peer: str, address: Address, scope: trio.CancelScope) -> None:
        pause_ms = RECONNECT_AFTER_MIN_MS
        with scope:
            while True:
                try:
                    if await self._serve_connection(peer, address):
                        pause_ms = RECONNECT_AFTER_MIN_MS
                except (OSError, UnicodeError) as error:  # no name at all is a UnicodeError
                    log.debug("event=peer_lost peer=%s error=%r", peer, str(error))
                await sleep(self._clock, pause_ms)
                pause_ms = min(pause_ms * 2, RECONNECT_AFTER_MAX_MS)

    async def _serve_connection(self, peer: str, address: Address) -> bool:
        """Connect and send until the connection breaks; True if it was ever open."""
        with self._clock.move_on_at(self._clock.now_ms() + CONNECT_TIMEOUT_MS) as connecting:
            stream = await dial(*address)
        if connecting.cancelled_caught:
            return False
        link = Link(stream.socket, PEER_OUT_BYTES_MAX)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MAX_MS)
        self._links[peer] = link
        log.info("event=peer_connected peer=%s", peer)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, link, nursery.cancel_scope)
                await self._watch(stream.socket)
                nursery.cancel_scope.cancel()
        finally:
            if self._links.get(peer) is link:
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
