"""Slaves that report an offset which this master never sent.

A slave of another cluster (a wrong haMasterAddress), one that was restored from elsewhere, or one
that has what its master lost. Its reports acknowledge no copy.

Source: https://github.com/apache/rocketmq/issues/1155 (a slave that is ahead of its master).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import trio

from shaketable.system.native.ha import REPORT
from shaketable.system.sim.schedules.random_streams import RandomStream
from shaketable.system.sim.trio_world.host import PEER_PORT
from shaketable.system.sim.trio_world.process import CURRENT, Process

if TYPE_CHECKING:
    from shaketable.system.sim.master_slave_world.world import MasterSlaveWorld

HOST, ADDRESS = "stranger", "10.0.1.100"
CONNECTED_MAX_S = 5.0
"""A correct master closes the connection at once."""
REPORT_INTERVAL_S = 0.2
AHEAD = (1 << 20, 1 << 40)
"""Bytes after the master's end that it claims to have. More than is written before its report
arrives, since a slave that reports what was sent meanwhile is accepted."""
NOWHERE = -1


class ForeignSlave(msgspec.Struct, frozen=True, kw_only=True):
    """One that connects at a virtual time and is that far ahead of the master, or sends NOWHERE."""

    at_ms: int
    ahead_bytes: int


def draw_foreign_slaves(rng: RandomStream, from_ms: int, run_ms: int) -> tuple[ForeignSlave, ...]:
    """Generate the foreign slaves of a run."""
    found = [
        ForeignSlave(
            at_ms=rng.randrange(from_ms, run_ms), ahead_bytes=rng.choice((NOWHERE, *AHEAD))
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    return tuple(sorted(found, key=lambda slave: slave.at_ms))


class ForeignSlaves:
    """All foreign slaves of a run."""

    def __init__(self, world: MasterSlaveWorld, master: str, address: str) -> None:
        self._world = world
        self._master = master
        self._address = address
        self._started = 0

    def connect(self, slave: ForeignSlave) -> None:
        """Start one."""
        if not self._started:
            self._world.network.add_host(HOST, ADDRESS)
        process = Process(HOST, ADDRESS, self._started)
        self._started += 1
        self._world.spawn(self._run, process, slave)

    async def _run(self, process: Process, slave: ForeignSlave) -> None:
        CURRENT.set(process)
        node = self._world.members[self._master].node
        if node is None:
            return
        position = slave.ahead_bytes
        if position != NOWHERE:
            position += node.commit_log.end.position
        # Refused or not, the connection may end early: the master may close it or go down.
        with trio.move_on_after(CONNECTED_MAX_S), suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(self._address, PEER_PORT) as stream:
                self._world.counts.fault("stranger")
                while True:
                    await stream.send_all(REPORT.pack(position))
                    await trio.sleep(REPORT_INTERVAL_S)
