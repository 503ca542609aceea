"""Registers, sets, counters and offsets on a log on a table: what becomes of each operation."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import check_clients
from shaketable.harness.contracts.clients import PollResult
from shaketable.harness.contracts.errors import DefiniteError, UsageError
from shaketable.harness.contracts.plugins import Answer, Operation, TargetClient, Workload
from shaketable.harness.generators import Due, play
from shaketable.workloads.counter import CounterWorkload
from shaketable.workloads.offsets import OffsetsWorkload
from shaketable.workloads.register import LogRegisters, RegisterWorkload
from shaketable.workloads.set import CLIENTS_A_SET, OPERATIONS_A_SET, SetWorkload, key_of

PAGE = 3
NAMES = ("register", "set", "counter", "offsets")


class Table:
    """A log with conditional appends, and the offsets of a group; all of it in plain sight."""

    node = "n0"

    def __init__(self) -> None:
        self.queues: dict[str, list[int]] = {}
        self.offsets: dict[str, int] = {}
        self.before_append: list[tuple[str, int]] = []
        """What somebody else appends just before the next append arrives."""

    async def append(self, key: str, value: int) -> int:
        queue = self.queues.setdefault(key, [])
        while self.before_append:
            self.queues[key].append(self.before_append.pop()[1])
        queue.append(value)
        return len(queue) - 1

    async def append_at(self, key: str, value: int, offset: int) -> int:
        self.queues.setdefault(key, [])
        while self.before_append:
            self.queues[key].append(self.before_append.pop()[1])
        if len(self.queues[key]) != offset:
            raise DefiniteError("the queue does not end there")
        return await self.append(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        queue = self.queues.get(key, [])
        return queue[offset] if offset < len(queue) else None

    async def end(self, key: str) -> int:
        return len(self.queues.get(key, []))

    async def poll(self, key: str, offset: int) -> PollResult:
        found = list(enumerate(self.queues.get(key, [])))[offset : offset + PAGE]
        return PollResult(found, offset + len(found))

    async def fetch(self, key: str) -> int | None:
        return self.offsets.get(key)

    async def commit(self, key: str, offset: int) -> None:
        self.offsets[key] = offset

    async def aclose(self) -> None:
        return None


class Bare:
    """A client of a log and of nothing else."""

    node = "n0"
    append = read = end = aclose = Table.append


def do(workload: Workload, client: Any, f: str, key: str, value: Any = None, **more: Any) -> Answer:
    operation = Operation(f, key, value=value, **more)
    return trio.run(partial(workload.invoke, operation, None, opened(workload, client)))


def opened(workload: Any, table: Table) -> TargetClient:
    client: TargetClient = workload.opened(table) if hasattr(workload, "opened") else table
    return client


def run_on(name: str, clients: int = 4, operations: int = 600) -> tuple[Table, list[Any]]:
    """Play a workload against a table that does everything at once."""
    workload = discovery.get("workloads", name).configured({"clients": clients})
    table = Table()
    client = opened(workload, table)

    def life(due: Due) -> tuple[int, str, Answer]:
        try:
            return 1000, "ok", trio.run(workload.invoke, due.operation, None, client)
        except DefiniteError:
            return 1000, "fail", Answer()

    generator = workload.generator("7", clients)
    return table, play(generator, clients, life, operations_max=operations)


# ---- registers -------------------------------------------------------------------------


def test_a_register_is_the_last_message_of_its_queue() -> None:
    workload, table = RegisterWorkload(), Table()
    client = opened(workload, table)
    assert isinstance(client, LogRegisters)
    assert do(workload, client, "read", "r/0").output is None
    do(workload, client, "write", "r/0", 5)
    assert do(workload, client, "read", "r/0").output == 5
    assert do(workload, client, "cas", "r/0", 6, expected=5).output == 1
    assert do(workload, client, "cas", "r/0", 7, expected=5).output == 0
    assert table.queues == {"r/0": [5, 6]}
    assert do(workload, client, "cas", "r/1", 1, expected=None).output == 1


def test_a_cas_that_somebody_comes_before_has_failed() -> None:
    workload, table = RegisterWorkload(), Table()
    client = opened(workload, table)
    do(workload, client, "write", "r/0", 5)
    table.before_append = [("r/0", 9)]
    with pytest.raises(DefiniteError):
        do(workload, client, "cas", "r/0", 6, expected=5)
    assert table.queues["r/0"] == [5, 9]


def test_a_target_that_keeps_registers_is_asked_directly() -> None:
    class Registers(Table):
        async def get(self, key: str) -> int | None:
            return 42

        async def put(self, key: str, value: int) -> None: ...

        async def swap(self, key: str, expected: int | None, value: int) -> bool:
            return False

    client = Registers()
    assert RegisterWorkload().opened(client) is client
    assert do(RegisterWorkload(), client, "read", "r/0").output == 42


def test_a_cas_expects_what_was_seen_and_mostly_succeeds() -> None:
    _, played = run_on("register")
    done = Counter(one.operation.f for one in played)
    assert done["cas"] > 150
    assert done["write"] > 100
    assert done["read"] > 200
    swaps = [one for one in played if one.operation.f == "cas"]
    assert sum(one.operation.expected is not None for one in swaps) > 0.9 * len(swaps)
    values = [one.operation.value for one in played if one.operation.f != "read"]
    assert len(set(values)) == len(values), "no value is written twice"
    assert 0 not in values, "a cas answers 0 when it is refused"


# ---- sets ------------------------------------------------------------------------------


def test_a_set_is_read_in_pages_up_to_its_end() -> None:
    workload, table = SetWorkload(), Table()
    assert do(workload, table, "read", "s/0").elements == []
    for value in range(7):
        assert do(workload, table, "add", "s/0", value).offset == value
    assert do(workload, table, "read", "s/0").elements == list(range(7))


def test_a_set_that_ends_before_its_end_lacks_elements() -> None:
    class Short(Table):
        async def end(self, key: str) -> int:
            return 9

    table = Short()
    table.queues = {"s/0": [1, 2]}
    assert do(SetWorkload(), table, "read", "s/0").elements == [1, 2]


def test_a_set_is_left_with_a_last_read_and_its_elements_are_its_own() -> None:
    table, played = run_on("set", CLIENTS_A_SET, 2 * OPERATIONS_A_SET)
    assert sorted(table.queues) == [key_of(0), key_of(CLIENTS_A_SET)]
    first = [one for one in played if one.operation.key == key_of(0)]
    last = first[OPERATIONS_A_SET:]
    assert 1 <= len(last) <= CLIENTS_A_SET
    assert {one.operation.f for one in last} == {"read"}
    assert last[0].call_ns >= max(one.return_ns for one in first[:OPERATIONS_A_SET])
    adds = [one.operation.value for one in first if one.operation.f == "add"]
    assert adds == list(range(len(adds)))
    assert 0.8 * OPERATIONS_A_SET < len(adds) < OPERATIONS_A_SET


def test_keys_of_sets_go_on_to_the_next_topic() -> None:
    assert [key_of(n) for n in (0, 15, 16, 33)] == [
        "shaketable-set-0/0", "shaketable-set-0/15", "shaketable-set-1/0", "shaketable-set-2/1",
    ]  # fmt: skip


# ---- counters and offsets --------------------------------------------------------------


def test_a_counter_counts_messages() -> None:
    workload, table = CounterWorkload(), Table()
    for _ in range(3):
        do(workload, table, "add", "c/0", 1)
    assert do(workload, table, "read", "c/0").output == 3
    table, played = run_on("counter")
    adds = Counter(one.operation.key for one in played if one.operation.f == "add")
    assert adds == {key: len(queue) for key, queue in table.queues.items()}


def test_offsets_are_committed_by_one_client_each_and_rise() -> None:
    table, played = run_on("offsets", 6)
    assert do(OffsetsWorkload(), table, "fetch", "t/9").output is None
    by_key: dict[str, list[Any]] = {}
    for one in played:
        if one.operation.f == "commit":
            by_key.setdefault(one.operation.key, []).append(one)
    assert len(by_key) == 4
    for key, commits in by_key.items():
        assert len({one.client for one in commits}) == 1
        assert [one.operation.value for one in commits] == list(range(1, len(commits) + 1))
        assert table.offsets[key] == len(commits)
    assert {one.client for one in played if one.operation.f == "fetch"} == set(range(6))


# ---- all -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_client_alone_draws_what_it_draws_among_others(name: str) -> None:
    workload = discovery.get("workloads", name).configured({})
    one = list(islice(workload.operations("7", 1, 4), 50))
    assert one == list(islice(workload.operations("7", 1, 4), 50))
    assert workload.choose_offset(one[0], 9) is None
    assert workload.end_shown(one[0], 3, 4) == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_was_used_is_read_once_more(name: str) -> None:
    workload = discovery.get("workloads", name).configured({})
    finals = play(workload.final_generator("7", 4, ("a/0", "a/1")), 2)
    assert {one.operation.key for one in finals} == {"a/0", "a/1"}
    assert {one.operation.f for one in finals} <= {"read", "fetch"}
    assert not play(workload.final_generator("7", 4, ()), 2)


@pytest.mark.parametrize("name", ["register", "set", "offsets"])
def test_clients_that_cannot_do_it_are_refused_in_one_line(name: str) -> None:
    workload = discovery.get("workloads", name)
    assert "cannot " in workload.why_not(Bare)
    assert workload.why_not(Table) is None
    with pytest.raises(UsageError, match=f"^workload {name}: clients of bare .*cannot "):
        check_clients(workload, SimpleNamespace(name="bare", client_type=Bare))
    check_clients(workload, SimpleNamespace(name="who knows"))


def test_hot_keys_and_clients_for_a_key() -> None:
    options = {"queues": 6, "key_skew": 2.0, "clients_per_key": 2, "clients": 6}
    workload = CounterWorkload().configured(options)
    used: dict[str, set[int]] = {}
    found: Counter[str] = Counter()
    for client in range(6):
        for operation in islice(workload.operations("7", client, 6), 200):
            used.setdefault(operation.key, set()).add(client)
            found[operation.key] += 1
    assert all(len(clients) == 2 for clients in used.values())
    assert found["shaketable/0"] > 3 * found["shaketable/3"] > 0
