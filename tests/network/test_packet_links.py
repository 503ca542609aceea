"""What the switch does with packets: pure, on a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tcp_frames import ACK, ADDRESSES, FIN, RST, SYN, frame, numbers

from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.network import packet_links
from shaketable.harness.network.packet_links import PacketLinks, flow_of

AB, BA, AC = ("n0", "n1"), ("n1", "n0"), ("n0", "n2")
PORTS, BACK = (4000, 10_001), (10_001, 4000)


def links() -> PacketLinks:
    return PacketLinks(ADDRESSES)


def numbered(count: int) -> list[bytes]:
    return [frame(AB, b"%04d" % number, sequence=1000 + 4 * number) for number in range(count)]


def number_of(data: bytes) -> int:
    return int(data[54:58])


def drained(at: PacketLinks, until_s: float) -> list[tuple[float, bytes]]:
    """Everything that comes out until then, each at its time."""
    came = []
    while (due_s := at.next_s()) is not None and due_s <= until_s:
        came += [(due_s, data) for _, data in at.due(due_s)]
    return came


def test_an_unharmed_link_hands_on_at_once() -> None:
    at = links()
    assert at.take(AB, frame(AB), 1.0) == (frame(AB),)
    assert at.next_s() is None
    assert not any(at.held("cut-9").values())
    assert not any(at.shaped("shape-9").values())


def test_a_cut_drops_counts_and_is_mended_once() -> None:
    at = links()
    first, second = at.cut([AB]), at.cut([AB, BA])
    assert at.take(AB, frame(AB, b"x"), 0.0) == ()
    assert at.take(BA, frame(BA, ports=BACK), 0.0) == ()
    assert at.take(AC, frame(AC), 0.0), "no other link"
    assert at.held(first) == {"bytes": 55, "packets": 1, "connections": 1}
    assert at.held(second) == {"bytes": 109, "packets": 2, "connections": 1}
    at.heal(second, "deliver", 0.0)
    at.heal(second, "deliver", 0.0)
    assert at.take(BA, frame(BA, ports=BACK), 0.0)
    assert at.take(AB, frame(AB), 0.0) == (), "the other cut stands"
    assert at.open_cuts() == (first,)
    at.heal(first, "deliver", 0.0)
    assert at.take(AB, frame(AB), 0.0)
    assert at.next_s() is None, "what was dropped is not delivered"


def test_a_mend_by_reset_ends_both_sides_of_what_was_dropped() -> None:
    at = links()
    at.take(AB, frame(AB, b"abc"), 0.0)
    at.take(BA, frame(BA, ports=BACK, sequence=5000, acknowledges=1003), 0.0)
    at.take(AC, frame(AC), 0.0)
    cut = at.cut([AB])
    at.take(AB, frame(AB, b"def", sequence=1003), 1.0)
    at.heal(cut, "reset", 2.0)
    resets = sorted((link, numbers(data)) for link, data in at.due(2.0))
    assert resets == [(AB, (1006, 5000, RST | ACK)), (BA, (5000, 1003, RST | ACK))]
    assert at.take(AC, frame(AC), 3.0)
    # Not quite what n1 waited for: it says so, and is told in its own numbers.
    assert at.take(BA, frame(BA, ports=BACK, sequence=5000, acknowledges=1003), 3.0) == ()
    assert [(link, numbers(data)[0]) for link, data in at.due(3.0)] == [(AB, 1003)]
    assert at.take(AB, frame(AB, flags=RST), 3.0) == (), "a reset is not answered"
    assert at.next_s() is None
    assert at.take(AB, frame(AB, flags=SYN), 4.0), "the same ports again: a new connection"
    assert at.take(BA, frame(BA, ports=BACK, flags=SYN | ACK), 4.0)


def test_delay_and_jitter_keep_the_order() -> None:
    at = links()
    shape = at.shape([AB], LinkShape(delay_ms=50, jitter_ms=30, seed="7"), 0.0)
    for place, data in enumerate(numbered(50)):
        assert at.take(AB, data, place / 1000) == ()
    came = drained(at, 9.0)
    assert [number_of(data) for _, data in came] == list(range(50))
    assert all(0.02 <= at_s - number / 1000 <= 0.13 for number, (at_s, _) in enumerate(came))
    did = at.shaped(shape)
    assert (did["packets"], did["delayed"], did["reordered"]) == (50, 50, 0)
    assert 20 <= did["delay_ms_mean"] <= 130


def test_delays_of_two_shapes_add_up_and_go_one_by_one() -> None:
    at = links()
    first = at.shape([AB], LinkShape(delay_ms=50), 0.0)
    at.shape([AB], LinkShape(delay_ms=20), 0.0)
    at.take(AB, frame(AB), 0.0)
    assert at.next_s() == pytest.approx(0.07)
    drained(at, 1.0)
    at.unshape(first)
    at.unshape(first)
    at.take(AB, frame(AB), 2.0)
    assert at.next_s() == pytest.approx(2.02)


@pytest.mark.parametrize("gone", [LinkShape(delay_ms=50), LinkShape(rate_bytes_s=1000)])
def test_what_is_new_does_not_overtake_what_is_late_when_a_shape_goes(gone: LinkShape) -> None:
    at = links()
    shape = at.shape([AB], gone, 0.0)
    one, two = numbered(2)
    at.take(AB, one, 0.0)
    at.unshape(shape)
    assert at.take(AB, two, 0.01) == ()
    assert [number_of(data) for _, data in drained(at, 1.0)] == [0, 1]
    assert at.take(AB, one, 2.0) == (one,)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_shares_are_about_what_was_asked(share: float) -> None:
    at, count = links(), 2000
    lossy = at.shape([AB], LinkShape(loss=share, seed="1"), 0.0)
    doubled = at.shape([AB], LinkShape(duplicate=share, seed="2"), 0.0)
    damaged = at.shape([AB], LinkShape(corrupt=share, seed="3"), 0.0)
    sent = numbered(1)[0]
    for _ in range(count):
        at.take(AB, sent, 0.0)
    came = [data for _, data in drained(at, 1.0)]
    lost, twice = at.shaped(lossy)["dropped"], at.shaped(doubled)["duplicated"]
    wrong = at.shaped(damaged)["corrupted"]
    assert lost == pytest.approx(count * share, rel=0.2)
    assert twice == pytest.approx((count - lost) * share, rel=0.2)
    assert wrong == pytest.approx((count - lost) * share, rel=0.2)
    assert len(came) == count - lost + twice
    assert sum(data != sent for data in came) >= wrong


def test_reordering_overtakes_and_counts_only_what_was_overtaken() -> None:
    at = links()
    shape = at.shape([AB], LinkShape(reorder=0.3, seed="7"), 0.0)
    for place, data in enumerate(numbered(100)):
        at.take(AB, data, place / 1000)
    order = [number_of(data) for _, data in drained(at, 9.0)]
    assert sorted(order) == list(range(100))
    behind = sum(number < max(order[:place], default=-1) for place, number in enumerate(order))
    assert at.shaped(shape)["reordered"] == behind > 0


def test_a_lone_packet_that_is_late_was_not_overtaken() -> None:
    at = links()
    shape = at.shape([AB], LinkShape(reorder=1.0), 0.0)
    at.take(AB, frame(AB), 0.0)
    drained(at, 1.0)
    assert at.shaped(shape)["reordered"] == 0


def test_a_slow_link_spaces_packets_and_drops_what_waits_too_long() -> None:
    at, rate = links(), 10_000.0
    shape = at.shape([AB, AC], LinkShape(rate_bytes_s=rate), 0.0)
    for _ in range(300):
        at.take(AB, frame(AB, bytes(46)), 0.0)  # 100 bytes
    at.take(AC, frame(AC, bytes(46)), 0.0)
    assert at.next_s() == pytest.approx(0.01), "the other link is as slow, and free"
    came = [at_s for at_s, data in drained(at, 9.0) if flow_of(data) == flow_of(frame(AB))]
    assert came == pytest.approx([0.01 * (place + 1) for place in range(len(came))])
    did = at.shaped(shape)
    assert len(came) == 300 - did["dropped"] < 300
    assert came[-1] <= packet_links.RATE_QUEUE_S + 0.02


def test_only_packets_that_are_too_large_are_dropped() -> None:
    at = links()
    shape = at.shape([AB], LinkShape(mtu_bytes=200), 0.0)
    for size in (160, 161, 10, 1400):  # beside 20 bytes of IP and 20 of TCP
        at.take(AB, frame(AB, bytes(size)), 0.0)
    assert [len(data) - 54 for _, data in drained(at, 1.0)] == [160, 10]
    assert at.shaped(shape)["dropped"] == 2


def test_a_packet_that_a_slower_shape_drops_takes_nothing_of_the_faster_one() -> None:
    at = links()
    fast = at.shape([AB], LinkShape(rate_bytes_s=10_000), 0.0)
    slow = at.shape([AB], LinkShape(rate_bytes_s=1000), 0.0)
    for _ in range(300):
        at.take(AB, frame(AB, bytes(46)), 0.0)  # 100 bytes
    came = [at_s for at_s, _ in drained(at, 9.0)]
    assert came == pytest.approx([0.01 + 0.1 * (place + 1) for place in range(10)])
    assert (at.shaped(fast)["dropped"], at.shaped(slow)["dropped"]) == (0, 290)
    at.unshape(slow)
    at.take(AB, frame(AB, bytes(46)), 2.0)
    assert at.next_s() == pytest.approx(2.01)


def test_a_packet_that_finds_no_room_takes_nothing_of_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packet_links, "LATE_PACKETS_MAX", 5)
    at = links()
    shape = at.shape([AB], LinkShape(rate_bytes_s=1000), 0.0)
    for _ in range(8):
        at.take(AB, frame(AB, bytes(46)), 0.0)  # 100 bytes
    assert [at_s for at_s, _ in drained(at, 0.5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert at.shaped(shape)["dropped"] == 3
    at.take(AB, frame(AB, bytes(46)), 0.6)
    assert at.next_s() == pytest.approx(0.7)


def test_late_packets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_links, "LATE_PACKETS_MAX", 10)
    at = links()
    shape = at.shape([AB], LinkShape(delay_ms=50), 0.0)
    for data in numbered(25):
        at.take(AB, data, 0.0)
    assert len(drained(at, 1.0)) == 10
    assert at.shaped(shape)["dropped"] == 15


def test_resets_now_and_then_end_live_connections_and_no_dead_ones() -> None:
    at = links()
    at.take(AB, frame(AB), 0.0)
    at.take(BA, frame(BA, ports=BACK), 0.0)
    at.take(AB, frame(AB, ports=(4001, 1), flags=FIN | ACK), 0.0)  # ends by itself
    at.take(AC, frame(AC), 0.0)
    shape = at.shape([BA], LinkShape(reset_every_ms=100, seed="7"), 1.0)
    assert at.next_s() == 1.0
    assert sorted(link for link, _ in at.due(1.0)) == [AB, BA]
    assert at.shaped(shape)["resets"] == 1
    again_s = at.next_s()
    assert again_s is not None
    assert 1.05 <= again_s <= 1.15
    assert list(at.due(again_s)) == []
    at.take(AB, frame(AB, ports=(4002, 1), flags=SYN), again_s)
    at.take(BA, frame(BA, ports=(1, 4002)), again_s)
    assert sorted(link for link, _ in at.due(again_s + 1)) == [AB, BA]
    assert at.shaped(shape)["resets"] == 2
    at.unshape(shape)
    assert at.next_s() is None


def test_half_open_tells_the_far_side_and_swallows_what_the_near_side_says() -> None:
    at = links()
    at.take(AB, frame(AB, b"abc"), 0.0)
    at.take(BA, frame(BA, ports=BACK, sequence=5000, acknowledges=1003), 0.0)
    shape = at.shape([AB], LinkShape(half_open=True), 1.0)
    assert [(link, numbers(data)[0]) for link, data in at.due(1.0)] == [(AB, 1003)]
    said = frame(AB, b"anybody?", sequence=1003)
    assert at.take(AB, said, 2.0) == ()
    assert at.next_s() is None, "no node answers"
    did = at.shaped(shape)
    assert (did["half_open"], did["unread"], did["resets"]) == (1, len(said), 0)
    assert at.take(AB, frame(AB, ports=(4001, 10_001), flags=SYN), 2.0), "new ones are whole"
    at.unshape(shape)
    late = at.shape([AB], LinkShape(half_open=True), 3.0)
    assert at.shaped(late)["half_open"] == 1, "the new one; the old one may be long gone"
    at.unshape(late)
    assert len(list(at.due(3.0))) == 1
    assert at.take(AB, said, 3.0) == (said,), "the far side may say what it knows of it"


def test_flows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_links, "FLOWS_MAX", 3)
    at = links()
    for port in range(10):
        at.take(AB, frame(AB, ports=(port, 1)), 0.0)
    shape = at.shape([AB], LinkShape(half_open=True), 0.0)
    assert at.shaped(shape)["half_open"] == 3


def test_an_unknown_node_is_refused_and_nothing_is_in_force() -> None:
    at = links()
    for act in (
        lambda: at.cut([AB, ("n0", "n9")]),
        lambda: at.shape([("n9", "n0")], LinkShape(), 0),
    ):
        with pytest.raises(KeyError):
            act()
    assert at.take(AB, frame(AB), 0.0)
    assert (at.open_cuts(), at.open_shapes()) == ((), ())


@given(
    steps=st.lists(
        st.one_of(
            st.just(("send",)),
            st.tuples(st.just("wait"), st.floats(0, 0.2)),
            st.tuples(st.just("shape"), st.floats(0, 100), st.floats(0, 50)),
            st.tuples(st.just("unshape"), st.integers(0, 3)),
        ),
        max_size=30,
    )
)
def test_delays_alone_lose_nothing_and_reorder_nothing(steps: list[tuple]) -> None:
    at, now_s, sent, came, shapes = links(), 0.0, 0, [], []
    for step in steps:
        match step:
            case ("send",):
                data = frame(AB, b"%04d" % sent)
                sent += 1
                came += [*drained(at, now_s), *((now_s, one) for one in at.take(AB, data, now_s))]
            case ("wait", seconds):
                now_s += seconds
                came += drained(at, now_s)
            case ("shape", delay_ms, jitter_ms):
                shape = LinkShape(delay_ms=delay_ms, jitter_ms=jitter_ms)
                shapes.append(at.shape([AB], shape, now_s))
            case ("unshape", which) if shapes:
                at.unshape(shapes.pop(which % len(shapes)))
    came += drained(at, now_s + 9.0)
    assert [number_of(data) for _, data in came] == list(range(sent))
