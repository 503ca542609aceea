"""After an unknown outcome half of the clients are kept, if they can serve another process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.contracts.plugins import Address, Operation
from shaketable.harness.runtime.clients.worker import Worker, WorkerPlan
from shaketable.harness.targets.dledger import DLedgerTarget


class NoSupervisor:
    def send(self, message: tuple[object, ...]) -> None: ...

    async def receive(self) -> tuple[object, ...]:
        await trio.sleep_forever()
        raise AssertionError


class Silent:
    """A client whose appends have no known outcome."""

    node = "n0"
    is_closed = False

    async def append(self, key: str, value: int) -> int:
        await trio.lowlevel.checkpoint()
        raise IndefiniteError("no answer")

    async def read(self, key: str, offset: int) -> int | None:
        raise AssertionError

    async def end(self, key: str) -> int:
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.is_closed = True


class Kept(Silent):
    can_go_on = True

    def is_reusable(self) -> bool:
        return self.can_go_on


class Positioned(Kept):
    can_go_on = False


@pytest.mark.parametrize(
    ("kind", "slot", "is_kept"),
    [(Kept, 1, True), (Kept, 2, False), (Positioned, 1, False), (Silent, 1, False)],
)
def test_a_client_is_kept_or_replaced(
    tmp_path: Path, kind: type[Silent], slot: int, *, is_kept: bool
) -> None:
    made: list[Silent] = []

    def make(_addresses: object, _timeout_s: float) -> Silent:
        made.append(kind())
        return made[-1]

    plan = WorkerPlan(
        name="worker-0", target="dledger", mutant=None, workload="log", seed="7", addresses={},
        slots=(slot,), clients=4, rate_hz=0.0, op_timeout_s=1.0, start_ns=time.monotonic_ns(),
        segment=tmp_path / "worker-0.seg", parent_pid=os.getpid(), client_factory=make,
    )  # fmt: skip
    worker = Worker(plan, NoSupervisor())
    (client,) = worker._clients
    outcome, _ = trio.run(client.step, Operation("append", "shaketable/0", value=1))
    assert outcome == "info"
    assert client.process == slot + 4, "it is another process of the history"
    assert len(made) == (1 if is_kept else 2)
    assert made[0].is_closed is not is_kept


def test_a_member_of_a_consumer_group_is_not_kept() -> None:
    addresses = {"n0": Address("127.0.0.1", 9), "ns0": Address("127.0.0.1", 10)}
    client = DLedgerTarget().client(addresses, 1.0)
    assert client.is_reusable()
    client.use("queue", 4)  # type: ignore[attr-defined]
    assert not client.is_reusable()
