"""One address of a node for all its peers: the link is that of whoever called."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from proxy_rig import PATIENCE_S, run

from shaketable.harness.contracts.abilities import AdvertisesAddresses
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.network import proxy
from shaketable.harness.network.proxy import Callers, ProxyNetwork
from shaketable.harness.targets import dledger

SPEAKS = (
    "import socket, sys\n"
    "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as peer:\n"
    "    peer.sendall(sys.argv[2].encode())\n"
    "    print(repr(peer.recv(100).decode()), flush=True)\n"
)
STARTS_ONE = (
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', sys.argv[3], *sys.argv[1:3]], check=True)\n"
)


@contextmanager
def speaking(
    address: Address, word: str, *, by_a_child: bool = False
) -> Iterator[subprocess.Popen]:
    """A process, of a session of its own, that says a word and prints the answer."""
    program, more = (STARTS_ONE, [SPEAKS]) if by_a_child else (SPEAKS, [])
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, str(address.port), word, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


async def said(process: subprocess.Popen) -> str:
    return (await trio.to_thread.run_sync(process.stdout.readline)).strip()


async def until(is_so) -> None:
    with trio.fail_after(PATIENCE_S):
        while not is_so():
            await trio.sleep(0.005)


@pytest.mark.parametrize("by_a_child", [False, True])
def test_each_callers_link_is_its_own(by_a_child: bool) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        word = await stream.receive_some(100)
        if word:
            await stream.send_all(b"heard " + word)

    async def scenario() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        there = Address("127.0.0.1", listener.socket.getsockname()[1])
        known = Callers()
        network = ProxyNetwork({"a": there, "b": there, "c": there}, callers=known)
        assert network.address("a", "c") == network.address("b", "c") == network.advertised("c")
        assert network.advertised("b") != network.advertised("c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, answer, [listener])
            await nursery.start(network.run)
            at = network.advertised("c")
            cut = network.cut([("a", "c")])
            with speaking(at, "from a", by_a_child=by_a_child) as a, speaking(at, "from b") as b:
                known.pids = lambda: {"a": a.pid, "b": b.pid}
                assert await said(b) == "'heard from b'", "only a's link is cut"
                await until(lambda: network.held(cut)["connections"] == 1)
                assert network.forwarded_bytes("a", "c") == 0
                assert network.forwarded_bytes("b", "c") == 6
                network.heal(cut, "deliver")
                assert await said(a) == "'heard from a'"
                with speaking(at, "from a stranger") as stranger:
                    assert await said(stranger) in ("", "''"), "it is closed, or reset"
            assert network.forwarded_bytes("a", "c") == 6
            nursery.cancel_scope.cancel()

    run(scenario)


def test_a_cut_is_of_both_addresses_and_never_of_a_node_and_itself() -> None:
    async def answer(stream: trio.SocketStream, word: bytes) -> None:
        if await stream.receive_some(100):
            await stream.send_all(word)

    async def scenario() -> None:
        (peers,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        (quorum,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        there, voters = (
            Address("127.0.0.1", listener.socket.getsockname()[1]) for listener in (peers, quorum)
        )
        known = Callers()
        network = ProxyNetwork(
            {"a": there, "b": there},
            callers=known,
            further={"quorum": {"a": voters, "b": voters}},
        )
        assert (
            len(
                {
                    *map(network.advertised, "ab"),
                    *(network.further("quorum", node) for node in "ab"),
                }
            )
            == 4
        )
        with pytest.raises(KeyError):
            network.cut([("b", "b")])
        async with trio.open_nursery() as nursery:
            for listener, word in ((peers, b"peer"), (quorum, b"voter")):
                nursery.start_soon(trio.serve_listeners, partial(answer, word=word), [listener])
            await nursery.start(network.run)
            cut = network.cut([("a", "b"), ("b", "a")])
            with (
                speaking(network.advertised("b"), "to a peer") as a_peer,
                speaking(network.further("quorum", "b"), "to a voter") as a_voter,
                speaking(network.further("quorum", "b"), "to itself") as own,
            ):
                known.pids = lambda: {"a": a_peer.pid, "b": own.pid}
                assert await said(own) == "'voter'", "b hears itself"
                await until(lambda: network.held(cut)["connections"] == 1)
                network.heal(cut, "deliver")
                assert await said(a_peer) == "'peer'"
                assert await said(a_voter) in ("", "''"), "it is no node"
                cut = network.cut([("a", "b")])
                with speaking(network.further("quorum", "b"), "to a voter") as voter:
                    known.pids = lambda: {"a": voter.pid}
                    await until(lambda: network.held(cut)["connections"] == 1)
                    network.heal(cut, "deliver")
                    assert await said(voter) == "'voter'"
            nursery.cancel_scope.cancel()

    run(scenario)


def test_the_list_says_what_the_kernel_says_when_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as caller:
            accepted, _ = server.accept()
            with accepted:
                ends = accepted.getpeername(), accepted.getsockname()
                inode = os.fstat(caller.fileno()).st_ino
                assert proxy._inode_from_proc(*ends) == inode
                assert proxy._inode_from_netlink(*ends) in (inode, None), (
                    "None: a kernel that cannot be asked"
                )
        unused = ("127.0.0.1", 1), ("127.0.0.1", 2)
        assert proxy._inode_from_netlink(*unused) is None
        assert proxy._inode_from_proc(*unused) is None


def test_our_own_nodes_ask_for_no_such_address() -> None:
    assert not isinstance(dledger.PLUGIN, AdvertisesAddresses)


def test_a_caller_that_has_gone_before_it_is_looked_at_is_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()  # a reset
        accepted, _ = listener.accept()
        with accepted:
            assert Callers().who(accepted) is None


def test_without_a_descriptor_to_look_with_a_caller_is_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(proxy, "_inode_from_netlink", full)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert Callers().who(accepted) is None
