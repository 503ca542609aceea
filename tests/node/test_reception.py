"""Links and who reads them: nothing lost or mixed up, and each link's end is its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from shaketable.system.node.connections.link import Link, Reception
from shaketable.system.node.machine import KernelPoll
from shaketable.system.remoting.command import Frame, FrameError, encode_frame

OUT_BYTES_MAX = 8 << 20
WAIT_S = 20.0


def linked() -> tuple[Link, socket.socket]:
    """Return a link and the other end, which blocks, over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return Link(trio.socket.from_stdlib_socket(ours), OUT_BYTES_MAX), theirs


def run(
    story: Callable[[Reception, trio.Nursery], Any],
    pairs: Sequence[tuple[Link, socket.socket]] = (),
) -> None:
    """Tell a story beside a reception, and close `pairs` behind it."""

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                reception = Reception(KernelPoll())
                nursery.start_soon(reception.run)
                await story(reception, nursery)
                nursery.cancel_scope.cancel()
        for link, theirs in pairs:
            link.close()
            theirs.close()

    trio.run(main)


def test_what_a_socket_has_no_room_for_follows_in_order() -> None:
    """More than the kernel takes at once; what is queued behind it does not overtake it."""

    async def story(reception: Reception, nursery: trio.Nursery) -> None:
        link, theirs = linked()
        parts = [bytes([number]) * (300_000 + number) for number in range(20)]
        nursery.start_soon(link.write)
        for part in parts:
            assert link.send(part)
        assert not link.send(bytes(OUT_BYTES_MAX)), "the buffer has a limit"
        expected = b"".join(parts)
        found = await trio.to_thread.run_sync(read_exactly, theirs, len(expected))
        assert found == expected
        assert link.send(b"behind")
        assert await trio.to_thread.run_sync(read_exactly, theirs, 6) == b"behind"
        theirs.close()
        link.close()

    run(story)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += sock.recv(min(65536, count - len(data)))
    return bytes(data)


def test_each_link_gets_its_own_frames_and_its_own_end() -> None:
    async def story(reception: Reception, nursery: trio.Nursery) -> None:
        pairs = [linked() for _ in range(4)]
        bodies: list[list[bytes]] = [[] for _ in pairs]
        ends: list[object] = ["reads"] * 4
        over = [trio.Event() for _ in pairs]

        async def serve(number: int) -> None:
            def on_frames(frames: list[Frame]) -> None:
                bodies[number] += [bytes(frame.body) for frame in frames]
                if number == 3:
                    raise ValueError("of one link's frames")

            try:
                await reception.read(pairs[number][0], on_frames)
                ends[number] = "closed"
            except (FrameError, ValueError) as error:
                ends[number] = type(error)
            finally:
                pairs[number][0].close()
                over[number].set()

        for number in range(4):
            nursery.start_soon(serve, number)
        for step in range(3):
            for number, (_, theirs) in enumerate(pairs[:3]):
                theirs.sendall(encode_frame(b"{}", b"%d of %d" % (step, number)))
        pairs[0][1].close()
        await over[0].wait()
        pairs[1][1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        await over[1].wait()
        pairs[3][1].sendall(encode_frame(b"{}", b"bad"))
        await over[3].wait()
        pairs[2][1].sendall(encode_frame(b"{}", b"still read"))
        while len(bodies[2]) < 4:
            await trio.sleep(0.001)
        pairs[2][0].close()  # our side ends it
        await over[2].wait()
        assert ends == ["closed", FrameError, "closed", ValueError]
        assert bodies[:2] == [[b"%d of %d" % (step, n) for step in range(3)] for n in (0, 1)]
        assert bodies[2][3:] == [b"still read"]
        for _, theirs in pairs:
            theirs.close()

    run(story)


def test_a_client_that_comes_while_the_node_ends_is_no_error() -> None:
    """It was accepted in the very turn in which the reception ended: it waits to be cancelled."""

    async def main() -> None:
        link, theirs = linked()
        reception = Reception(KernelPoll())
        with trio.fail_after(WAIT_S):
            with trio.CancelScope() as scope:
                scope.cancel()
                await reception.run()
            with trio.CancelScope() as scope:
                scope.cancel()
                await reception.read(link, lambda _: None)
        link.close()
        theirs.close()

    trio.run(main)


def test_a_number_that_another_socket_took_over_stays_watched() -> None:
    """The kernel gives a closed socket's number to the next one, before we forget the first."""

    async def story(_: Reception, nursery: trio.Nursery) -> None:
        poll = KernelPoll()
        first, second = socket.socketpair()
        old = trio.socket.from_stdlib_socket(first)
        poll.add(old)
        number = old.fileno()
        old.close()
        second.close()
        third, fourth = socket.socketpair()
        new = trio.socket.from_stdlib_socket(third)
        if new.fileno() != number:
            pytest.fail("this test wants the number again")
        poll.add(new)
        poll.remove(old)
        fourth.send(b"x")
        assert await poll.wait() == [new]
        poll.remove(new)
        poll.close()
        new.close()
        fourth.close()

    run(story)


def test_everything_may_end_at_once() -> None:
    """A node that stops cancels who reads and who is served, in any order."""

    pairs: list[tuple[Link, socket.socket]] = []

    async def story(reception: Reception, nursery: trio.Nursery) -> None:
        pairs[:] = [linked() for _ in range(16)]
        for link, _ in pairs:
            nursery.start_soon(reception.read, link, lambda frames: None)
        await trio.sleep(0.01)

    for _ in range(5):  # trio draws the order in which tasks are cancelled
        run(story, pairs)


def test_a_broken_connection_is_said_by_the_writer() -> None:
    async def story(_: Reception, nursery: trio.Nursery) -> None:
        link, theirs = linked()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()  # with a reset
        await trio.sleep(0.01)
        assert link.send(b"lost")
        assert link.send(b"lost as well")
        with pytest.raises(OSError, match=r"reset|Broken"):
            await link.write()
        link.close()
        assert link.send(b"to nobody")

    run(story)
