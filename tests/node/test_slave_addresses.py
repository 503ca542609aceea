"""What name servers say of a master's address is anybody's word: it ends no slave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from master_slave_brokers import MasterSlaveBroker

from shaketable.system.node.machine import SystemClock
from shaketable.system.node.master_slave.config_files import SlaveSynchronize
from shaketable.system.node.master_slave.ha_service import HAService
from shaketable.system.node.master_slave.parts import MasterSlaveParts

LABEL = "a" * 64
TEXTS = (f"é{LABEL}:10912", "é..:1", "\0:1", f"{LABEL}..{LABEL}:1", "h:" + "1" * 5000, ":", "h:٣")


def slave_of(text: str) -> tuple[HAService, SlaveSynchronize]:
    slave, clock = MasterSlaveBroker("SLAVE"), SystemClock()
    config: Any = SimpleNamespace(data_file_bytes=4096)
    settings: Any = SimpleNamespace(master=None)
    nothing: Any = SimpleNamespace()
    synchronize = SlaveSynchronize(clock, slave.broker.tables, lambda: None)
    service = HAService(
        config, settings, clock, slave.core, lambda: None, synchronize, nothing, MasterSlaveParts()
    )
    service.on_registered({"masterAddr": text, "haServerAddr": text})
    return service, synchronize


@pytest.mark.parametrize("text", TEXTS)
def test_no_address_ends_a_slave(text: str) -> None:
    service, synchronize = slave_of(text)

    async def main() -> None:
        with trio.move_on_after(0.3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(synchronize.run)
                nursery.start_soon(service._follow_master)

    trio.run(main)
    assert not service._is_copying
