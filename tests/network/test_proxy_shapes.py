"""Shaped links: late, slow, reset, half-open; what is taken away leaves no byte behind."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_rig import Rig, rig, run, settle

from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.network.links import LATE_BYTES_MAX, Lane, Shapes

AB, BA = ("a", "b"), ("b", "a")
DELAY_MS = 60.0


def test_a_delay_holds_what_flows_one_way_and_not_the_other() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            shape = r.network.shape([AB], LinkShape(delay_ms=DELAY_MS))
            began = trio.current_time()
            await a.stream.send_all(b"late")
            await b.stream.send_all(b"prompt")
            await a.until(lambda peer: peer.got == b"prompt")
            assert b.got == b""
            await b.until(lambda peer: peer.got == b"late")
            assert trio.current_time() - began >= DELAY_MS / 1e3
            did = r.network.shaped(shape)
            assert (did["bytes"], did["chunks"], did["delayed"]) == (4, 1, 1)
            assert did["delay_ms_mean"] >= DELAY_MS
            r.network.unshape(shape)
            r.network.unshape(shape)
            await a.stream.send_all(b"!")
            await b.until(lambda peer: peer.got == b"late!")
            assert r.network.shaped(shape) == did, "gone, it counts no more"
            assert r.network.open_shapes() == ()

    run(scenario)


def test_shapes_of_a_link_add_up_and_go_one_by_one() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            first = r.network.shape([AB], LinkShape(delay_ms=3600_000))
            second = r.network.shape([AB], LinkShape(delay_ms=DELAY_MS))
            began = trio.current_time()
            await a.stream.send_all(b"x")
            await settle()
            r.network.unshape(first)
            await b.until(lambda peer: peer.got == b"x")
            assert trio.current_time() - began >= DELAY_MS / 1e3
            r.network.unshape(second)

    run(scenario)


def test_a_slow_link_lets_little_through_and_all_at_once_when_it_is_well() -> None:
    rate, payload = 20_000.0, bytes(range(250)) * 200

    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            shape = r.network.shape([AB], LinkShape(rate_bytes_s=rate))
            began = trio.current_time()
            r.nursery.start_soon(a.stream.send_all, payload)
            await b.until(lambda peer: len(peer.got) >= 3000)
            took_s = trio.current_time() - began
            assert len(b.got) <= rate * (took_s + 0.05) + 1, "more than the rate and one piece"
            assert r.network.shaped(shape)["delayed"] > 0
            r.network.unshape(shape)
            await b.until(lambda peer: len(peer.got) == len(payload))
            assert bytes(b.got) == payload

    run(scenario)


def test_what_is_too_large_stalls_its_connection_until_the_fault_is_over() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            other, far = await r.pair("a", "b")
            shape = r.network.shape([AB], LinkShape(mtu_bytes=600))
            await a.stream.send_all(b"small")
            await b.until(lambda peer: bytes(peer.got) == b"small")
            await a.stream.send_all(bytes(1000))
            await settle()
            await a.stream.send_all(b"small too")
            await other.stream.send_all(b"elsewhere")
            await far.until(lambda peer: bytes(peer.got) == b"elsewhere")
            assert bytes(b.got) == b"small"
            assert r.network.shaped(shape)["dropped"] == 1
            r.network.unshape(shape)
            await b.until(lambda peer: len(peer.got) == 5 + 1000 + 9)
            assert bytes(b.got) == b"small" + bytes(1000) + b"small too"

    run(scenario)


def test_the_end_of_a_stream_is_late_as_well() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            r.network.shape([AB], LinkShape(delay_ms=DELAY_MS))
            began = trio.current_time()
            await a.stream.send_all(b"last words")
            await a.stream.send_eof()
            await b.until(lambda peer: peer.end == "eof")
            assert trio.current_time() - began >= DELAY_MS / 1e3
            assert b.got == b"last words"

    run(scenario)


def test_resets_strike_now_and_then_and_no_other_link() -> None:
    async def scenario() -> None:
        async with rig("a", "b", "c") as r:
            a, b = await r.pair("a", "b")
            b_own, a_served = await r.pair("b", "a")
            a_other, c = await r.pair("a", "c")
            shape = r.network.shape([AB], LinkShape(reset_every_ms=20, seed="7"))
            for peer in (a, b, b_own, a_served):
                await peer.until(lambda peer: peer.end == "reset")
            again, _ = await r.pair("a", "b")
            await again.until(lambda peer: peer.end == "reset")
            assert r.network.shaped(shape)["resets"] >= 3
            r.network.unshape(shape)
            await settle()
            late, b_late = await r.pair("a", "b")
            await late.stream.send_all(b"whole")
            await b_late.until(lambda peer: peer.got == b"whole")
            assert (a_other.end, c.end, late.end) == (None, None, None)

    run(scenario)


def test_half_open_ends_the_far_side_and_leaves_the_near_side_writing_into_nothing() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            a, b = await r.pair("a", "b")
            b_own, a_served = await r.pair("b", "a")
            shape = r.network.shape([AB], LinkShape(half_open=True))
            for peer in (b, b_own):
                await peer.until(lambda peer: peer.end == "reset")
            await a.stream.send_all(b"is anybody there?")
            await settle()
            assert (a.end, a_served.end) == (None, None)
            did = r.network.shaped(shape)
            assert (did["half_open"], did["unread"]) == (2, 17)
            fresh, b_fresh = await r.pair("a", "b")
            await fresh.stream.send_all(b"new ones are whole")
            await b_fresh.until(lambda peer: peer.got == b"new ones are whole")
            r.network.unshape(shape)
            for peer in (a, a_served):
                await peer.until(lambda peer: peer.end == "reset")
            assert fresh.end is None
            assert r.network.shaped(shape)["unread"] == 17

    run(scenario)


def test_without_traffic_a_shape_says_that_it_did_nothing() -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            shape = r.network.shape([AB, BA], LinkShape(delay_ms=50, half_open=True))
            did = r.network.shaped(shape)
            assert not any(did.values()), did
            assert not any(r.network.shaped("shape-of-another-life").values())

    run(scenario)


@pytest.mark.parametrize("packets", [{"loss": 0.1}, {"corrupt": 0.1}, {"reorder": 0.1}])
def test_what_only_packets_have_is_refused(packets: dict[str, float]) -> None:
    async def scenario() -> None:
        async with rig("a", "b") as r:
            with pytest.raises(ValueError, match="a stream has no"):
                r.network.shape([AB], LinkShape(**packets))

    run(scenario)


def test_a_lane_keeps_a_bounded_number_of_bytes() -> None:
    shapes = Shapes("ab")
    shapes.add([AB], LinkShape(delay_ms=10))
    lane = Lane(shapes, AB)
    while not lane.is_full:
        lane.put(bytes(64 << 10), 0.0)
    assert lane.due_s() == pytest.approx(0.010)
    assert sum(len(lane.take(1.0)) for _ in range(LATE_BYTES_MAX >> 16)) == LATE_BYTES_MAX
    assert lane.is_empty


# ---- the property: whatever comes and goes, every byte comes, in order -------------------

KINDS = (
    LinkShape(delay_ms=4, jitter_ms=4),
    LinkShape(rate_bytes_s=100_000),
    LinkShape(delay_ms=1, rate_bytes_s=50_000),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 3000)),
        st.tuples(st.just("shape"), st.sampled_from(KINDS)),
        st.tuples(st.just("unshape"), st.integers(0, 3)),
        st.tuples(st.just("cut"), st.none()),
        st.tuples(st.just("heal"), st.none()),
        st.tuples(st.just("settle"), st.none()),
    ),
    max_size=12,
)


async def every_byte_comes(steps: list[tuple]) -> None:
    async with rig("a", "b") as r:
        a, b = await r.pair("a", "b")
        sent, shapes, cuts = bytearray(), [], []
        for step, what in steps:
            await one_step(r, a, step, what, sent, shapes, cuts)
        for cut in cuts:
            r.network.heal(cut, "deliver")
        await a.stream.send_eof()
        await b.until(lambda peer: peer.end is not None)
        assert (b.end, b.got) == ("eof", sent), "bytes were lost or moved"


async def one_step(r: Rig, a, step: str, what, sent: bytearray, shapes: list, cuts: list) -> None:
    match step:
        case "send":
            data = bytes((len(sent) + place) % 251 for place in range(what))
            sent += data
            await a.stream.send_all(data)
        case "shape":
            shapes.append(r.network.shape([AB], what))
        case "unshape" if shapes:
            r.network.unshape(shapes.pop(what % len(shapes)))
        case "cut":
            cuts.append(r.network.cut([AB]))
        case "heal" if cuts:
            r.network.heal(cuts.pop(), "deliver")
        case "settle":
            await settle()


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_any_order_of_shapes_keeps_every_byte(steps: list[tuple]) -> None:
    run(lambda: every_byte_comes(steps))


def test_planted_bug_a_lane_that_forgets_what_is_late_is_caught(monkeypatch) -> None:
    def forgets(self: Lane, now_s: float) -> memoryview:
        piece = honest(self, now_s)
        return piece[:1] if len(piece) > 1 else piece

    honest = Lane.take
    monkeypatch.setattr(Lane, "take", forgets)
    with pytest.raises(AssertionError, match="lost or moved"):
        run(lambda: every_byte_comes([("shape", KINDS[0]), ("send", 100)]))
