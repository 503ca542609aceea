"""Slaves that are none of this master's: what they say to have it never sent.

A slave of another cluster by a wrong haMasterAddress, or one that was restored from elsewhere, or
that has what its master lost. What such a one reports is no copy of anything.

Source: https://github.com/apache/rocketmq/issues/1155 (a slave that is ahead of its master).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import trio

from shaketable.system.native.ha import REPORT
from shaketable.system.sim.schedules.draws import Stream
from shaketable.system.sim.trio_world.host import PEER_PORT
from shaketable.system.sim.trio_world.process import CURRENT, Process

if TYPE_CHECKING:
    from shaketable.system.sim.native_world.world import NativeWorld

HOST, ADDRESS = "stranger", "10.0.1.100"
STAYS_S = 5.0
"""A healthy master is rid of it at once."""
REPORTS_EVERY_S = 0.2
AHEAD = (1 << 20, 1 << 40)
"""How many bytes behind the master's end it says to have: more than is written until it is heard,
for who says what was sent meanwhile passes for a slave."""
NOWHERE = -1


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """One that comes at a time (virtual ms) and is so far ahead of a master, or says NOWHERE."""

    at_ms: int
    ahead_bytes: int


def draw_strangers(draw: Stream, from_ms: int, run_ms: int) -> tuple[Stranger, ...]:
    """Draw who comes by."""
    found = [
        Stranger(at_ms=draw.randrange(from_ms, run_ms), ahead_bytes=draw.choice((NOWHERE, *AHEAD)))
        for _ in range(draw.choice((0, 0, 1, 2)))
    ]
    return tuple(sorted(found, key=lambda stranger: stranger.at_ms))


class Strangers:
    """All strangers of a run."""

    def __init__(self, world: NativeWorld, master: str, address: str) -> None:
        self._world = world
        self._master = master
        self._address = address
        self._came = 0

    def comes(self, stranger: Stranger) -> None:
        """Let one come by."""
        if not self._came:
            self._world.network.add_host(HOST, ADDRESS)
        process = Process(HOST, ADDRESS, self._came)
        self._came += 1
        self._world.spawn(self._run, process, stranger)

    async def _run(self, process: Process, stranger: Stranger) -> None:
        CURRENT.set(process)
        node = self._world.members[self._master].node
        if node is None:
            return
        position = stranger.ahead_bytes
        if position != NOWHERE:
            position += node.commit_log.end.position
        # Whether it is refused, or the master goes down meanwhile: it is rid of it.
        with trio.move_on_after(STAYS_S), suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(self._address, PEER_PORT) as stream:
                self._world.counts.fault("stranger")
                while True:
                    await stream.send_all(REPORT.pack(position))
                    await trio.sleep(REPORTS_EVERY_S)
