"""How clients pace themselves: by the rate, not above it after a hold-up, slower after failures."""

import os
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.generators.generator import CATCH_UP_MAX_NS, NS
from shaketable.harness.history.segments import Event, read_segment
from shaketable.harness.runtime.clients.worker import (
    BACKOFF_MAX_S,
    FINAL_ATTEMPTS_MAX,
    Worker,
    WorkerPlan,
)

CLIENTS = 4


class SilentControl:
    def send(self, message: tuple) -> None: ...


class Quick:
    """Answers at once, but for what `misbehave` does to its n-th operation."""

    node = "n0"
    opened = 0

    def __init__(self, misbehave) -> None:
        self._misbehave = misbehave
        Quick.opened += 1

    async def append(self, key: str, value: int) -> int:
        await self._misbehave()
        return value

    async def read(self, key: str, offset: int) -> int | None:
        await self._misbehave()
        return None

    async def end(self, key: str) -> int:
        await self._misbehave()
        return 0

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def well() -> None:
    await trio.lowlevel.checkpoint()


def run_for(folder: Path, seconds: float, rate_hz: float, misbehave, steps) -> list[Event]:
    """Let a worker's clients do `steps` in virtual time; return what was recorded."""
    plan = WorkerPlan(
        name="worker-0",
        target="unused",
        workload="log",
        seed="7",
        addresses={},
        slots=tuple(range(CLIENTS)),
        clients=CLIENTS,
        rate_hz=rate_hz,
        op_timeout_s=100.0,
        start_ns=0,
        segment=folder / "worker-0.seg",
        parent_pid=os.getpid(),
        client_factory=lambda _addresses, _timeout_s: Quick(misbehave),
    )

    async def main() -> None:
        worker = Worker(plan, SilentControl())
        with trio.move_on_after(seconds):
            await steps(worker)
        worker._recorder.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return list(read_segment(plan.segment).events)


async def generate(worker: Worker) -> None:
    await worker._generate()


def invokes(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type == "invoke"]


@pytest.mark.parametrize("rate_hz", [10.0, 100.0])
def test_the_rate_is_kept_over_all_clients(tmp_path: Path, rate_hz: float) -> None:
    count = len(invokes(run_for(tmp_path, 100, rate_hz, well, generate)))
    assert 0.9 * 100 * rate_hz < count < 1.1 * 100 * rate_hz


def test_clients_do_not_begin_in_step(tmp_path: Path) -> None:
    events = invokes(run_for(tmp_path, 100, 1.0, well, generate))
    assert {event.process for event in events[:10]} > {0, 1}


def test_a_hold_up_is_not_followed_by_a_flood(tmp_path: Path) -> None:
    began: list[float] = []
    released: list[float] = []
    times: list[float] = []

    async def held_up() -> None:
        if trio.current_time() - began[0] > 20 and not released:
            await trio.sleep(50)
            released.append(trio.current_time())
        times.append(trio.current_time())
        await trio.lowlevel.checkpoint()

    async def all_clients(worker: Worker) -> None:
        began.append(trio.current_time())
        await generate(worker)

    run_for(tmp_path, 100, CLIENTS * 100.0, held_up, all_clients)
    at_once = sum(0 <= time - released[0] < 0.001 for time in times)
    most = CATCH_UP_MAX_NS / NS * CLIENTS * 100
    assert 0.5 * most < at_once < 2 * most


def test_refused_clients_back_off(tmp_path: Path) -> None:
    async def refused() -> None:
        await trio.lowlevel.checkpoint()
        raise DefiniteError("not the leader")

    events = run_for(tmp_path, 60, 0.0, refused, generate)
    assert {event.process for event in events} == set(range(CLIENTS)), "fail keeps the process"
    count = len(invokes(events))
    least = CLIENTS * 60 / BACKOFF_MAX_S
    assert least < count < 2.5 * least


def test_an_unknown_outcome_moves_process_and_connection_on(tmp_path: Path) -> None:
    async def lost() -> None:
        await trio.lowlevel.checkpoint()
        raise IndefiniteError("timeout")

    Quick.opened = 0
    events = run_for(tmp_path, 20, 0.0, lost, generate)
    per_process = Counter(event.process for event in events)
    assert set(per_process.values()) <= {1, 2}, "one operation a process"
    ended = sum(event.type == "info" for event in events)
    assert Quick.opened == ended + CLIENTS
    assert sorted(per_process)[: 2 * CLIENTS] == list(range(2 * CLIENTS))


def test_final_operations_are_tried_again_but_not_for_ever(tmp_path: Path) -> None:
    tries = Counter()

    async def stubborn() -> None:
        await trio.lowlevel.checkpoint()
        tries["all"] += 1
        if tries["all"] <= 3 or tries["all"] > 100:
            raise DefiniteError("no leader yet")

    told = []

    async def finals(worker: Worker) -> None:
        worker._control.send = told.append
        await worker._finals(2**62)
        await worker._finals(2**62)

    events = run_for(tmp_path, 10_000, 0.0, stubborn, finals)
    assert told == [("finals", 0), ("finals", CLIENTS)]
    assert tries["all"] == len(invokes(events))
    final_count = CLIENTS * 21
    assert tries["all"] > 3 + final_count
    assert tries["all"] <= 100 + final_count * FINAL_ATTEMPTS_MAX


def test_where_nothing_is_slow_a_final_operation_is_tried_until_time_is_over(
    tmp_path: Path,
) -> None:
    """A client that gave up after twenty quick refusals accused a group that had a minute."""
    back_s = 50.0

    async def late() -> None:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < back_s:
            raise DefiniteError("no leader yet")

    told = []

    async def finals(worker: Worker) -> None:
        worker._control.send = told.append
        worker.gives_up = False
        await worker._finals(worker._clock_ns() + int(10 * NS))
        told.append(worker.waiting())
        await worker._finals(worker._clock_ns() + int(60 * NS))
        told.append(worker.waiting())

    run_for(tmp_path, 10_000, 0.0, late, finals)
    (missed, waiting, reached, nobody) = told
    assert (missed, reached) == (("finals", CLIENTS), ("finals", 0))
    assert waiting[0].startswith("client 0 tried ")
    assert waiting[0].endswith(" times in vain: no leader yet")
    assert nobody == ()
