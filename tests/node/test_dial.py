"""A node's own connections: never to itself."""

from __future__ import annotations

import socket

import pytest
import trio

from shaketable.system.node.connections.link import dial


async def _open_to_itself(host: str, port: int) -> trio.SocketStream:
    """What the kernel does when it draws the very port that is dialled."""
    sock = trio.socket.socket()
    await sock.bind((host, port))
    await sock.connect((host, port))
    return trio.SocketStream(sock)


def test_a_connection_to_itself_is_refused_and_gives_the_port_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trio, "open_tcp_stream", _open_to_itself)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"nothing listens on 127.0.0.1:{port}"):
        trio.run(dial, "127.0.0.1", port)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nodes do
        listener.bind(("127.0.0.1", port))
        listener.listen()


def test_a_connection_to_a_listener_stands() -> None:
    async def story() -> bytes:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, await dial(*listener.socket.getsockname()) as stream:
            accepted = await listener.accept()
            async with accepted:
                await stream.send_all(b"x")
                return await accepted.receive_some(1)

    assert trio.run(story) == b"x"
