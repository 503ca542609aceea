"""The work queue on a table: what clients do, and when a queue counts as drained."""

from __future__ import annotations

from collections import deque

import pytest
import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import check_clients
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.generators import Due, Played, play
from shaketable.workloads.work_queue import EMPTY_FOR_S, WorkQueue

CLIENTS = 3
NS = 1_000_000_000


class Table:
    """A client of queues that do what they are asked at once."""

    node = "n0"

    def __init__(self) -> None:
        self.queues: dict[str, deque[int]] = {}

    async def enqueue(self, key: str, value: int) -> None:
        self.queues.setdefault(key, deque()).append(value)

    async def dequeue(self, key: str) -> int | None:
        queue = self.queues.get(key)
        return queue.popleft() if queue else None

    async def append(self, key: str, value: int) -> int:
        raise NotImplementedError

    async def read(self, key: str, offset: int) -> int | None:
        raise NotImplementedError

    async def end(self, key: str) -> int:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close nothing."""


def answer_of(operation: Operation, table: Table) -> Answer:
    return trio.run(WorkQueue().invoke, operation, None, table)


def worked(table: Table, operations: int) -> list[Played]:
    def life(due: Due) -> tuple[int, str, Answer]:
        return 1_000_000, "ok", answer_of(due.operation, table)

    generator = WorkQueue().configured({"queues": 2}).generator("7", CLIENTS)  # type: ignore[attr-defined]
    return play(generator, CLIENTS, life, operations_max=operations)


def test_values_are_unique_and_some_stay() -> None:
    table = Table()
    played = worked(table, 2000)
    values = [each.operation.value for each in played if each.operation.f == "enqueue"]
    assert len(values) == len(set(values))
    assert {each.operation.f for each in played} == {"enqueue", "dequeue"}
    assert set(table.queues) == {"shaketable-work/0", "shaketable-work/1"}
    assert 0 < sum(map(len, table.queues.values())) < len(values) / 2


@pytest.mark.parametrize(("queues", "clients"), [(1, 3), (2, 3), (3, 3), (5, 3), (5, 1), (4, 9)])
def test_every_queue_is_drained_and_every_client_helps(queues: int, clients: int) -> None:
    final = WorkQueue().configured({"queues": queues}).final_generator("7", clients, ())  # type: ignore[attr-defined]
    played = play(final, clients)
    assert {each.operation.key for each in played} == {
        f"shaketable-work/{number}" for number in range(queues)
    }
    assert {each.client for each in played} == set(range(clients))


@pytest.mark.parametrize("late_s", [0.0, 3.0])
def test_a_queue_is_drained_until_nothing_comes(late_s: float) -> None:
    """Also what comes back late is taken: the wait starts anew."""
    table, late = Table(), [99]
    worked(table, 500)

    def life(due: Due) -> tuple[int, str, Answer]:
        if due.operation.key.endswith("/0") and late and due.at_ns >= late_s * NS:
            table.queues[due.operation.key].append(late.pop())
        return 1_000_000, "ok", answer_of(due.operation, table)

    workload = WorkQueue().configured({"queues": 2})
    final = workload.final_generator("7", CLIENTS, ())  # type: ignore[attr-defined]
    played = play(final, CLIENTS, life)
    assert not any(table.queues.values())
    by_queue: dict[str, list[Played]] = {}
    for each in played:
        by_queue.setdefault(each.operation.key, []).append(each)
    for key, its in by_queue.items():
        waited_s = its[-1].return_ns / NS
        assert waited_s >= EMPTY_FOR_S + (late_s if key.endswith("/0") else 0.0)


def test_clients_without_queues_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^workload work-queue: clients of dledger have no "):
        check_clients(WorkQueue(), discovery.get("targets", "dledger"))
