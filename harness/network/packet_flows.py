"""The TCP connections that a switch has seen, and those that it has ended. Pure.

A connection that was reset is over for both sides: whatever comes of it is answered with a reset.
One that was left half open is over for one side: what the other sends goes into nothing, until it
is told. Both are known by their flows (`frames.Flow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from shaketable.harness.network import frames
from shaketable.harness.network.frames import Flow
from shaketable.harness.words import Link

FLOWS_MAX: Final = 4096
"""Of more connections than that the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A flow that is over. `tells`: its sender is answered with a reset; else it is not told."""

    tells: bool
    shape: str = ""


class Flows:
    """Connections among nodes, by the addresses of these."""

    def __init__(self, addresses: Mapping[str, bytes]) -> None:
        self._links: dict[bytes, Link] = {
            addresses[a] + addresses[b]: (a, b) for a, b in permutations(addresses, 2)
        }
        self._last: dict[Flow, bytes] = {}  # the last frame of each flow
        self._ended: dict[Flow, _Ended] = {}

    def note(self, frame: bytes) -> Flow | None:
        """Remember a frame as its flow's last; return the flow, None if it has none."""
        flow = frames.flow_of(frame)
        if flow is not None:
            if flow not in self._last and len(self._last) >= FLOWS_MAX:
                del self._last[next(iter(self._last))]
            self._last[flow] = frame
        return flow

    def ended(self, flow: Flow, frame: bytes) -> tuple[str, bytes | None] | None:
        """Say what becomes of a frame of an ended flow; None if the flow is not ended.

        Returns (shape whose doing it is, the reset for its sender; None if that is not told).
        """
        end = self._ended.get(flow)
        if end is None:
            return None
        flags = frames.tcp_flags(frame)
        if flags & frames.SYN:  # the same ports again: a new connection
            self._forget(flow)
            return None
        if end.tells:
            return "", None if flags & frames.RST else frames.reset_back(frame)
        return end.shape, None

    def link_of(self, frame: bytes) -> Link | None:
        """The link that a frame goes over, by its addresses."""
        return self._links.get(frame[26:34])

    def between(self, links: Sequence[Link]) -> list[Flow]:
        """Return the live connections that cross one of these links, by their flow over it."""
        crossed = {pair for pair, link in self._links.items() if link in links}
        found: dict[Flow, None] = {}
        for flow, frame in self._last.items():
            is_known = frames.reverse(flow) in found
            if flow[:8] in crossed and not is_known and self._is_live(flow, frame):
                found[flow] = None
        return list(found)

    def reset(self, flow: Flow) -> list[bytes]:
        """End a connection for both sides; return the resets to send."""
        back = frames.reverse(flow)
        resets = [frames.reset_onward(self._last[one]) for one in (flow, back) if one in self._last]
        self._end(flow, _Ended(tells=True))
        self._end(back, _Ended(tells=True))
        return resets

    def open_half(self, flow: Flow, shape: str) -> list[bytes]:
        """End a connection for the receiver of this flow alone; return the reset to send."""
        self._end(flow, _Ended(tells=False, shape=shape))
        self._end(frames.reverse(flow), _Ended(tells=True))
        return [frames.reset_onward(self._last[flow])]

    def tell_half(self, shape: str) -> None:
        """Let what that shape left half open take its course: the far side answers now.

        Whether the near side still has such a connection shows when it says something.
        """
        for flow in [one for one, end in self._ended.items() if end.shape == shape]:
            self._forget(flow)

    def _is_live(self, flow: Flow, frame: bytes) -> bool:
        """True if neither side has ended a connection, as far as was seen."""
        over = frames.FIN | frames.RST
        other = self._last.get(frames.reverse(flow))
        is_over = frames.tcp_flags(frame) & over or (
            other is not None and frames.tcp_flags(other) & over
        )
        return flow not in self._ended and not is_over

    def _end(self, flow: Flow, how: _Ended) -> None:
        if len(self._ended) >= FLOWS_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[flow] = how

    def _forget(self, flow: Flow) -> None:
        for one in (flow, frames.reverse(flow)):
            self._ended.pop(one, None)
            self._last.pop(one, None)
