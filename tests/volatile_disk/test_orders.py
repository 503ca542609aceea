"""Which calls fail or wait: the orders of a volatile disk, without a disk."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from shaketable.harness.contracts.capabilities import DiskFaultSpec
from shaketable.harness.volatile_disk.orders import (
    FAULTS_KEPT_MAX,
    NAME,
    PASSES,
    READ,
    SYNC,
    THE_CALLER,
    WRITE,
    Call,
    Orders,
)


def fault(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, **DiskFaultSpec(**more).to_json()}


def errors(orders: Orders, *calls: Call) -> list[int]:
    return [orders.judge(call).error for call in calls]


def test_without_orders_calls_pass_and_are_counted() -> None:
    orders = Orders()
    assert orders.judge(Call(SYNC)) is PASSES
    assert orders.judge(Call(WRITE)) is PASSES
    assert orders.counts == {SYNC: 1, WRITE: 1}


@pytest.mark.parametrize(("op", "struck"), [("read", [READ]), ("write", [WRITE]), ("sync", [SYNC])])
def test_only_the_calls_that_are_meant_fail(op: str, struck: list[str]) -> None:
    orders = Orders()
    orders.replace([fault(1, op=op, error="EIO")], [])
    failed = [kind for kind in (READ, WRITE, SYNC, NAME) if orders.judge(Call(kind)).error]
    assert failed == struck


def test_any_means_all_of_them() -> None:
    orders = Orders()
    orders.replace([fault(1, op="any", error="EIO")], [])
    assert errors(orders, *map(Call, (READ, WRITE, SYNC, NAME))) == [errno.EIO] * 4
    assert orders.by_fault[1] == {"calls": 4, "errors": 4}


def test_from_the_nth_call_on_and_so_many_times() -> None:
    orders = Orders()
    orders.replace([fault(1, op="sync", error="EIO", nth=2, times=2)], [])
    assert errors(orders, *[Call(SYNC)] * 5) == [0, errno.EIO, errno.EIO, 0, 0]


def test_no_room_is_missed_by_those_that_need_some() -> None:
    orders = Orders()
    orders.replace([fault(1, op="write", error="ENOSPC")], [])
    assert orders.is_full
    calls = Call(WRITE), Call(WRITE, needs_space=True), Call(NAME, needs_space=True), Call(SYNC)
    assert errors(orders, *calls) == [0, errno.ENOSPC, errno.ENOSPC, 0]


def test_waits_add_up_and_the_page_cache_does_not_wait() -> None:
    orders = Orders()
    orders.replace([fault(1, op="sync", delay_ms=20), fault(2, op="any", delay_ms=5)], [])
    verdict = orders.judge(Call(SYNC))
    assert verdict.delay_s == pytest.approx(0.025)
    assert verdict.faults == (1, 2)
    assert orders.judge(Call(WRITE, may_wait=False)) is PASSES


def test_a_stall_ends_with_its_fault_and_its_counts_stay() -> None:
    orders = Orders()
    orders.replace([fault(7, op="any", stall=True)], [])
    verdict = orders.judge(Call(READ))
    assert verdict.stalled_by == {7}
    orders.begins_to_wait(verdict)
    orders.replace([], [])
    assert not orders.in_force(7)
    orders.waited(verdict, 0.5)
    assert orders.by_fault[7] == {"calls": 1, "errors": 0, "slowed": 1, "waited_us": 500_000}


def test_orders_that_are_given_again_keep_their_counts() -> None:
    orders = Orders()
    first = fault(1, op="sync", error="EIO", nth=2)
    orders.replace([first], [])
    assert errors(orders, Call(SYNC)) == [0]
    orders.replace([first, fault(2, op="read", error="EIO")], [])
    assert errors(orders, Call(SYNC)) == [errno.EIO]
    assert orders.strikes_reads


def test_counts_of_old_faults_are_forgotten() -> None:
    orders = Orders()
    for number in range(FAULTS_KEPT_MAX + 3):
        orders.replace([fault(number, op="sync", error="EIO")], [])
    assert len(orders.by_fault) == FAULTS_KEPT_MAX
    assert 0 not in orders.by_fault


def test_a_trip_kills_once_at_its_call() -> None:
    orders = Orders()
    trip = {"number": 1, "on": "sync", "nth": 2, "what": "kill", "pid": 42}
    orders.replace([], [trip])
    orders.replace([], [trip])
    kinds = (SYNC, WRITE, SYNC, SYNC)
    assert [orders.judge(Call(kind)).kills for kind in kinds] == [0, 0, 42, 0]


def killed(orders: Orders, *names: str) -> list[int]:
    kinds = {"write": WRITE, "fallocate": WRITE, "fsync": SYNC, "rename": NAME}
    return [orders.judge(Call(kinds[name], name=name)).kills for name in names]


def test_a_trip_at_a_call_by_its_name_counts_no_other_calls_of_its_kind() -> None:
    orders = Orders()
    orders.replace([], [{"number": 1, "call": "write", "nth": 2, "pid": 41}])
    assert killed(orders, "write", "fallocate", "fsync", "rename", "write") == [0, 0, 0, 0, 41]
    assert killed(orders, "write", "write") == [0, 0]
    assert orders.calls == {"write": 4, "fallocate": 1, "fsync": 1, "rename": 1}


def test_a_process_that_is_named_later_ends_at_the_same_call() -> None:
    orders = Orders()
    trip = {"number": 1, "call": "rename", "nth": 3}
    orders.replace([], [trip])
    assert killed(orders, "rename", "rename") == [0, 0]
    orders.replace([], [{**trip, "pid": 41}])
    assert killed(orders, "rename") == [41]


def test_an_unknown_process_is_the_caller() -> None:
    orders = Orders()
    orders.replace([], [{"number": 1, "call": "fsync", "nth": 1}])
    assert killed(orders, "fsync") == [THE_CALLER]
