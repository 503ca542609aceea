"""Connections of clients are broken from within their process, whoever made them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.runtime.clients.worker import break_connections


def listener(stack: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    found.bind((host, 0))
    found.listen()
    found.settimeout(5)
    return found


def connected(stack: ExitStack, to: socket.socket) -> tuple[socket.socket, socket.socket]:
    near = stack.enter_context(socket.socket(to.family, socket.SOCK_STREAM))
    near.settimeout(5)
    near.connect(to.getsockname())
    far = stack.enter_context(to.accept()[0])
    far.settimeout(5)
    return near, far


def address_of(server: socket.socket, host: str | None = None) -> Address:
    name, port = server.getsockname()[:2]
    return Address(host or name, port)


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.1", None), ("::1", None), ("127.0.0.1", "localhost")]
)
def test_both_ends_see_the_end_of_a_broken_connection(host: str, name: str | None) -> None:
    with ExitStack() as stack:
        struck, spared = listener(stack, host), listener(stack, host)
        ours = [connected(stack, struck) for _ in range(3)]
        other, its_far_end = connected(stack, spared)
        assert break_connections([address_of(struck, name)]) == len(ours)
        for near, far in ours:
            assert near.recv(1) == b""
            assert far.recv(1) == b""
        other.sendall(b"x")
        assert its_far_end.recv(1) == b"x"


def test_what_is_no_connection_is_left_alone() -> None:
    with ExitStack() as stack:
        server = listener(stack)
        left, right = socket.socketpair()
        stack.enter_context(left)
        stack.enter_context(right)
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        assert break_connections([address_of(server), Address("no.such.host.invalid", 1)]) == 0
        left.sendall(b"x")
        assert right.recv(1) == b"x"


def test_a_broken_connection_is_broken_once() -> None:
    with ExitStack() as stack:
        server = listener(stack)
        near, _ = connected(stack, server)
        assert break_connections([address_of(server)]) == 1
        near.close()
        assert break_connections([address_of(server)]) == 0
