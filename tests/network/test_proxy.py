"""The proxies: a cut holds bytes, never drops one; what one cut holds, no other heal lets go."""

import select
import socket
import struct
from contextlib import suppress

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proxy_rig import PATIENCE_S, Peer, Rig, rig, run, settle

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.network import proxy
from shaketable.harness.network.proxy import BUFFER_BYTES, Connection, ProxyNetwork

CHUNK_BYTES_MAX = 3000


def test_bytes_cross_in_order_both_ways_and_an_end_crosses_too() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            payload = bytes(range(256)) * 2000
            r.nursery.start_soon(a.stream.send_all, payload)
            r.nursery.start_soon(b.stream.send_all, payload[::-1])
            await b.until(lambda peer: len(peer.got) == len(payload))
            await a.until(lambda peer: len(peer.got) == len(payload))
            assert bytes(b.got) == payload
            assert bytes(a.got) == payload[::-1]
            await a.stream.send_eof()
            await b.until(lambda peer: peer.end is not None)
            assert b.end == "eof"
            await b.stream.send_all(b"half-closed still answers")
            await b.stream.aclose()
            await a.until(lambda peer: peer.end is not None)
            assert bytes(a.got) == payload[::-1] + b"half-closed still answers"
            assert r.network.forwarded_bytes("a", "b") == len(payload)

    run(scenario)


def test_one_way_cut_holds_requests_on_a_and_replies_on_b() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a_asks, b_answers = await r.pair("a", "b")
            b_asks, a_answers = await r.pair("b", "a")
            cut = r.network.cut([("a", "b")])
            assert r.network.held(cut) == {"bytes": 0, "connections": 0}
            await a_asks.stream.send_all(b"request of a")
            await b_asks.stream.send_all(b"request of b")
            await b_answers.stream.send_all(b"reply of b")
            await a_answers.stream.send_all(b"reply of a")
            await a_answers.until(lambda peer: peer.got == b"request of b")
            await a_asks.until(lambda peer: peer.got == b"reply of b")
            await settle()
            assert b_answers.got == b""
            assert b_asks.got == b""
            assert r.network.held(cut) == {"bytes": 22, "connections": 2}
            assert r.network.waiting_bytes("a", "b") == 22
            r.network.heal(cut, "deliver")
            await b_answers.until(lambda peer: peer.got == b"request of a")
            await b_asks.until(lambda peer: peer.got == b"reply of a")
            assert r.network.held(cut) == {"bytes": 22, "connections": 2}

    run(scenario)


def test_cuts_are_counted_and_mending_is_idempotent() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            first = r.network.cut([("a", "b"), ("b", "a")])
            await a.stream.send_all(b"x")
            await settle()
            second = r.network.cut([("a", "b")])
            assert r.network.held(second) == {"bytes": 1, "connections": 1}, "already waiting"
            r.network.heal(first, "deliver")
            r.network.heal(first, "deliver")
            r.network.heal("cut-of-another-life", "reset")
            await b.stream.send_all(b"y")
            await a.until(lambda peer: peer.got == b"y")
            await settle()
            assert b.got == b""
            r.network.heal(second, "deliver")
            await b.until(lambda peer: peer.got == b"x")

    run(scenario)


def test_new_connection_under_a_cut_is_held_with_its_end() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            cut = r.network.cut([("a", "b")])
            a = await r.dial("a", "b")
            await a.stream.send_all(b"hello and goodbye")
            await a.stream.aclose()
            await settle()
            assert r.network.held(cut)["connections"] == 1
            with pytest.raises(trio.WouldBlock):
                r.arrivals["b"][1].receive_nowait()
            r.network.heal(cut, "deliver")
            b = await r.arrival("b")
            await b.until(lambda peer: peer.end == "eof")
            assert b.got == b"hello and goodbye"

    run(scenario)


def close_with_reset(peer: Peer) -> None:
    peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.stream.socket.close()


@pytest.mark.parametrize("how", ["deliver", "reset"])
def test_a_reset_does_not_cross_a_cut(how: str) -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            cut = r.network.cut([("a", "b")])
            close_with_reset(a)
            for _ in range(5):  # b's writes meet a closed socket: that news must not reach b
                with suppress(trio.BrokenResourceError):
                    await b.stream.send_all(b"anyone there?")
                await settle()
            assert b.end is None
            r.network.heal(cut, how)
            await b.until(lambda peer: peer.end is not None)
            assert b.end == "reset"

    run(scenario)


def test_mend_by_reset_ends_what_crossed_the_cut_and_nothing_else() -> None:
    async def scenario() -> None:
        async with rig("a", "b", "c") as r:
            a, b = await r.pair("a", "b")
            a_idle, b_idle = await r.pair("b", "a")
            a_other, c = await r.pair("a", "c")
            cut = r.network.cut([("a", "b")])
            late = await r.dial("a", "b")
            await late.stream.send_all(b"never sees b")
            await a.stream.send_all(b"lost with its connection")
            await settle()
            r.network.heal(cut, "reset")
            for peer in (a, b, a_idle, b_idle, late):
                await peer.until(lambda peer: peer.end is not None)
                assert peer.end == "reset"
            assert b.got == b""
            await a_other.stream.send_all(b"untouched")
            await c.until(lambda peer: peer.got == b"untouched")
            again, b_again = await r.pair("a", "b")
            await again.stream.send_all(b"open")
            await b_again.until(lambda peer: peer.got == b"open")

    run(scenario)


def test_mend_by_reset_stays_behind_another_cut() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            first = r.network.cut([("a", "b")])
            second = r.network.cut([("b", "a")])
            r.network.heal(first, "reset")
            await b.until(lambda peer: peer.end == "reset")
            await settle()
            assert a.end is None
            r.network.heal(second, "deliver")
            await a.until(lambda peer: peer.end == "reset")

    run(scenario)


def test_a_cut_keeps_a_bounded_number_of_bytes_and_pushes_back() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            cut = r.network.cut([("a", "b")])
            block = bytes(range(251)) * 1000
            sent = 0
            with trio.move_on_after(PATIENCE_S / 2) as gave_up:
                while True:
                    try:
                        # below trio: one write that says how much the kernel took
                        sent += socket.socket.send(
                            a.stream.socket._sock, block[sent % len(block) :]
                        )
                    except BlockingIOError:
                        await settle()
                        if not is_writable(a.stream.socket._sock):
                            break
            assert not gave_up.cancelled_caught, "the sender was never held up"
            (connection,) = r.network._connections
            (waiter,) = r.network._gates._gates["a", "b"].waiting
            assert waiter.size_bytes <= BUFFER_BYTES
            assert r.network.held(cut)["bytes"] <= sent
            r.network.heal(cut, "deliver")
            await b.until(lambda peer: len(peer.got) == sent)
            assert bytes(b.got) == (block * (sent // len(block) + 1))[:sent]
            assert connection in r.network._connections

    run(scenario)


def is_writable(sock: socket.socket) -> bool:
    return bool(select.select([], [sock], [], 0)[1])


def test_a_refusal_closes_the_connection_at_once() -> None:
    async def scenario() -> None:
        with socket.socket() as bound:  # bound, not listening: connecting to it is refused
            bound.bind(("127.0.0.1", 0))
            address = Address("127.0.0.1", bound.getsockname()[1])
            network = ProxyNetwork({"a": address, "b": address})
            async with trio.open_nursery() as nursery:
                await nursery.start(network.run)
                where = network.address("a", "b")
                stream = await trio.open_tcp_stream(where.host, where.port)
                assert await stream.receive_some() == b""
                await stream.aclose()
                nursery.cancel_scope.cancel()

    run(scenario)


def test_more_connections_than_allowed_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CONNECTIONS_PER_LINK_MAX", 2)

    async def scenario() -> None:
        async with rig("a", "b") as r:
            first, _ = await r.pair("a", "b")
            await r.pair("a", "b")
            third = await r.dial("a", "b")
            await third.stream.send_all(b"in turn")
            await settle()
            with pytest.raises(trio.WouldBlock):
                r.arrivals["b"][1].receive_nowait()
            close_with_reset(first)
            b = await r.arrival("b")
            await b.until(lambda peer: peer.got == b"in turn")

    run(scenario)


def test_bad_mend_mode_is_refused() -> None:
    network = ProxyNetwork({"a": Address("127.0.0.1", 1), "b": Address("127.0.0.1", 2)})
    try:
        with pytest.raises(ValueError, match="none of deliver, reset"):
            network.heal(network.cut([("a", "b")]), "drop")
    finally:
        network.close()


# ---- the property: whatever the order of cuts and heals, no byte is lost or moved ---------

AB, BA = ("a", "b"), ("b", "a")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("ab"), st.integers(1, CHUNK_BYTES_MAX)),
        st.tuples(st.just("cut"), st.sampled_from(((AB,), (BA,), (AB, BA)))),
        st.tuples(st.just("heal"), st.integers(0, 3)),
        st.tuples(st.just("reset"), st.integers(0, 3)),
        st.tuples(st.just("settle")),
    ),
    max_size=14,
)


async def expect_all(r: Rig, ends: dict[str, Peer], sent: dict, cuts: list) -> None:
    """Mend all cuts and end both directions: each side has got all, in order."""
    for name, _ in cuts:
        r.network.heal(name, "deliver")
    for end in ends.values():
        await end.stream.send_eof()
    for source, sink in (AB, BA):
        await ends[sink].until(lambda peer: peer.end is not None)
        assert ends[sink].end == "eof"
        assert ends[sink].got == sent[source], f"bytes of {source} were lost or moved"


async def expect_reset(r: Rig, ends: dict[str, Peer], sent: dict, cuts: list) -> None:
    """Mend the other cuts: both ends see the reset, and what had come before it is a prefix."""
    for name, _ in cuts:
        r.network.heal(name, "deliver")
    for source, sink in (AB, BA):
        await ends[sink].until(lambda peer: peer.end is not None)
        assert ends[sink].end == "reset"
        assert sent[source].startswith(ends[sink].got), f"bytes of {source} were moved"


async def no_byte_is_lost(steps: list[tuple]) -> None:
    """Drive one connection through `steps`; each byte arrives, in order, not through a cut."""
    async with rig("a", "b") as r:
        a, b = await r.pair("a", "b")
        ends = {"a": a, "b": b}
        sent = {"a": bytearray(), "b": bytearray()}
        frozen: dict[str, int] = {}  # while a direction is cut: how much was sent before that
        cuts: list[tuple[str, tuple]] = []
        for step in steps:
            match step:
                case ("send", who, size):
                    data = bytes((len(sent[who]) + i) % 251 for i in range(size))
                    await ends[who].stream.send_all(data)
                    sent[who] += data
                case ("cut", links):
                    cuts.append((r.network.cut(links), links))
                    for source, _ in links:
                        frozen.setdefault(source, len(sent[source]))
                case ("heal", which) if cuts:
                    name, _ = cuts.pop(which % len(cuts))
                    r.network.heal(name, "deliver")
                    still_cut = {source for _, links in cuts for source, _ in links}
                    frozen = {k: v for k, v in frozen.items() if k in still_cut}
                case ("reset", which) if cuts:
                    r.network.heal(cuts.pop(which % len(cuts))[0], "reset")
                    await expect_reset(r, ends, sent, cuts)
                    return
                case ("settle",):
                    await settle()
            for source, sink in (AB, BA):
                limit = frozen.get(source, len(sent[source]))
                assert len(ends[sink].got) <= limit, f"bytes of {source} crossed a cut"
        await expect_all(r, ends, sent, cuts)


HELD_THEN_HEALED = [("cut", (AB,)), ("send", "a", 10), ("settle",), ("heal", 0), ("send", "a", 5)]


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
@example(steps=HELD_THEN_HEALED)
def test_any_order_of_cuts_and_mends_keeps_every_byte(steps: list[tuple]) -> None:
    run(lambda: no_byte_is_lost(steps))


def test_planted_bug_a_cut_that_drops_bytes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Connection._forward

    async def forward(self, source, sink, data, link) -> bool:  # type: ignore[no-untyped-def]
        return (
            True if not self._gates.is_open(link) else await honest(self, source, sink, data, link)
        )

    monkeypatch.setattr(Connection, "_forward", forward)
    with pytest.raises(AssertionError, match="lost or moved"):
        run(lambda: no_byte_is_lost(HELD_THEN_HEALED))


def test_planted_bug_a_cut_that_leaks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy.Gates, "is_open", lambda self, link: True)
    with pytest.raises(AssertionError, match="crossed a cut"):
        run(lambda: no_byte_is_lost(HELD_THEN_HEALED))
