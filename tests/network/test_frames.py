"""Frames: flows, forged resets that a kernel would take, and damage that checksums find."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tcp_frames import ACK, ADDRESSES, FIN, RST, SYN, frame, hardware, numbers

from shaketable.harness.network import packet_links

AB, BA = ("n0", "n1"), ("n1", "n0")


def test_a_flow_is_one_direction_of_a_connection() -> None:
    flow = packet_links.flow_of(frame(AB))
    assert flow is not None
    assert flow[:8] == ADDRESSES["n0"] + ADDRESSES["n1"]
    assert packet_links.flow_of(frame(BA, ports=(10_001, 4000))) == packet_links.reverse(flow)
    assert packet_links.reverse(packet_links.reverse(flow)) == flow


@pytest.mark.parametrize("change", [(12, b"\x86\xdd"), (14, b"\x46"), (23, b"\x11")])
def test_what_is_no_plain_tcp_has_no_flow(change: tuple[int, bytes]) -> None:
    at, data = change
    whole = frame(AB)
    assert packet_links.flow_of(whole[:at] + data + whole[at + len(data) :]) is None
    assert packet_links.flow_of(whole[:50]) is None


@pytest.mark.parametrize(
    ("payload", "flags", "behind"),
    [(b"", ACK, 1000), (b"12345", ACK, 1005), (b"", SYN, 1001), (b"12", FIN | ACK, 1003)],
)
def test_resets_have_the_numbers_that_each_side_waits_for(payload, flags, behind) -> None:
    seen = frame(AB, payload, flags=flags)
    onward, back = packet_links.reset_onward(seen), packet_links.reset_back(seen)
    assert numbers(onward) == (behind, 5000, RST | ACK)
    assert numbers(back) == (5000, behind, RST | ACK)
    assert onward[:12] == hardware("n1") + hardware("n0")
    assert back[:12] == hardware("n0") + hardware("n1")
    assert packet_links.flow_of(onward) == packet_links.flow_of(seen)
    assert packet_links.flow_of(back) == packet_links.reverse(packet_links.flow_of(seen))
    assert packet_links.checksum_is_right(onward)
    assert packet_links.checksum_is_right(back)


def test_sequence_numbers_wrap() -> None:
    seen = frame(AB, b"abcd", sequence=0xFFFFFFFE)
    assert packet_links.next_sequence(seen) == 2


@given(payload=st.binary(max_size=60), place=st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_is_one_that_a_checksum_finds(payload: bytes, place: float) -> None:
    whole = frame(AB, payload)
    assert packet_links.checksum_is_right(whole)
    changed = packet_links.with_bit_flipped(whole, place)
    assert sum((x ^ y).bit_count() for x, y in zip(whole, changed, strict=True)) == 1
    assert changed[:14] == whole[:14]
    assert changed[16:18] != whole[16:18] or not packet_links.checksum_is_right(changed)
