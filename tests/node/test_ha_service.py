"""Connections with slaves that take nothing: none is held for longer than silence may last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import trio
from broker_group import FILE_BYTES
from master_slave_brokers import MasterSlaveBroker

from shaketable.system.master_slave.ha import REPORT, SILENCE_MAX_MS
from shaketable.system.node.machine import SystemClock
from shaketable.system.node.master_slave.ha_service import HAService
from shaketable.system.node.master_slave.parts import MasterSlaveParts

STORY_TIMEOUT_S = 10.0


class FastClock(SystemClock):
    """A thousand milliseconds pass in one."""

    def now_ms(self) -> float:
        return super().now_ms() * 1000

    def move_on_at(self, due_ms: float) -> trio.CancelScope:
        return trio.move_on_after(max(0.0, due_ms - self.now_ms()) / 1_000_000)


class DeafSlave(trio.abc.AsyncResource):
    """A slave's connection, as its master sees it, whose buffers are full: it was cut off."""

    def __init__(self, *said: bytes) -> None:
        self.socket = SimpleNamespace(getpeername=lambda: ("10.0.0.1", 1))
        self.is_closed = False
        self._said = said

    async def send_all(self, data: bytes) -> None:
        await trio.sleep_forever()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for data in self._said:
            yield data
        await trio.sleep_forever()

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_slave_that_reads_nothing_is_dropped_when_it_was_silent_for_too_long() -> None:
    master = MasterSlaveBroker("SYNC_MASTER")
    clock, nothing = FastClock(), SimpleNamespace()
    config = SimpleNamespace(data_file_bytes=FILE_BYTES)
    settings: Any = SimpleNamespace(master=None)
    service = HAService(
        config,  # type: ignore[arg-type]
        settings,
        clock,
        master.core,
        lambda: None,
        nothing,  # type: ignore[arg-type]
        nothing,  # type: ignore[arg-type]
        MasterSlaveParts(),
    )

    async def story(*said: bytes) -> None:
        slave: Any = DeafSlave(*said)
        began_ms = clock.now_ms()
        with trio.fail_after(STORY_TIMEOUT_S):
            await service._serve_slave(slave)
        assert clock.now_ms() - began_ms >= SILENCE_MAX_MS
        assert slave.is_closed
        assert master.core.slave_count == 0

    trio.run(story)
    trio.run(story, REPORT.pack(0))
