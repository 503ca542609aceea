"""The phases of a campaign: setup, steady, chaos, (retry,) heal, drain, teardown.

Each is a function of the rig; the supervisor decides their order, and what happens when one ends
early.

Source: jepsen.core `run!` (setup, generator phases, final generator, teardown).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial

import msgspec
import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import EXISTING
from shaketable.harness.contracts.clients import finals_s_of, hold_of
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history import segments
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.liveness import PATIENCE_S, Standstill, never_served, not_recovered
from shaketable.harness.runtime.rig import Rig, is_broken

READY_TIMEOUT_S = 30.0
"""How long a group that runs already may take until all nodes know one leader; a longer start of
another one is explained to the user."""
START_TIMEOUT_S = 120.0
"""How long a group that the run starts may take: five JVMs take a minute on two busy processors."""
WORKERS_READY_TIMEOUT_S = 60.0
LOGS_READ_TIMEOUT_S = 120.0
"""How long a run waits for the compilation of what reads logs: faults would have no effect."""
NOTED_AFTER_S = 2.0
"""What is cached is loaded in this time: a longer wait is explained to the user."""
HEAL_TIMEOUT_S = 30.0
FINISH_MARGIN_S = 3.0
"""How much longer than an operation's timeout the clients may take to finish."""
SETTLE_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
BROKEN_PATIENCE_S = 5.0
"""Limit of any wait for the group after a node violated an invariant: it may never recover."""
RETRIES_MAX = 3
"""How often each kind of fault that had no effect is retried."""
RETRY_ROOM_S = 30.0
"""A retry starts within this time after the chaos phase."""
RETRY_READY_S = 10.0
"""How long a retry waits for a healthy group with a leader."""
TEARDOWN_TIMEOUT_S = 30.0
COUNTS_INTERVAL_S = 0.5


async def set_up(rig: Rig) -> bool:
    """Start nodes and clients; wait until all nodes know one leader. Returns whether they do.

    A node that ended on a rule of its own is no reason to give up: the run is judged as it is. With
    virtual time a group without a leader is judged, too: nothing else can be the cause.

    Raises:
        HarnessError: a node or worker ended, or there is no leader in time.
    """
    rig.world.start_all()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.workers.start, WORKERS_READY_TIMEOUT_S)
        if not rig.is_virtual:
            nursery.start_soon(_wait_for_the_group, rig)
    if is_broken(rig.world):
        return False
    await _wait_for_readers(rig)
    return not rig.is_virtual or await _serves(rig)


async def _wait_for_the_group(rig: Rig) -> None:
    since = trio.current_time()

    def is_ready() -> bool:
        if is_broken(rig.world):
            return True
        if rig.world.exits:
            raise HarnessError(rig.world.explain(rig.world.exits[0]))
        return rig.world.group_status.is_ready(since)

    if await wait_until(is_ready, READY_TIMEOUT_S):
        return
    waited_s, why = READY_TIMEOUT_S, rig.world.group_status.why_not_ready()
    if rig.campaign.world != EXISTING:
        rig.observer.note(f"the group is not ready after {waited_s:g} s, but may be soon: {why}")
        if await wait_until(is_ready, START_TIMEOUT_S - waited_s):
            return
        waited_s, why = START_TIMEOUT_S, rig.world.group_status.why_not_ready()
    raise HarnessError(f"the group is not ready after {waited_s:g} s: {why}")


async def _wait_for_readers(rig: Rig) -> None:
    """Wait until what reads the nodes' logs is compiled, if faults need it; never fail."""
    if rig.until_logs_are_read is None or await rig.until_logs_are_read(NOTED_AFTER_S):
        return
    rig.observer.note("compiling what reads the nodes' logs, once for this version (half a minute)")
    if not await rig.until_logs_are_read(LOGS_READ_TIMEOUT_S):
        late = f"not compiled after {LOGS_READ_TIMEOUT_S:g} s: faults that take logs wait for it"
        rig.observer.note(f"what reads the nodes' logs is {late}")


async def _serves(rig: Rig) -> bool:
    """Wait until all nodes know one leader, or one ended; note a group without a leader."""
    since, group_status = trio.current_time(), rig.world.group_status
    group_status.undisturbed_s = since

    def is_over() -> bool:
        return bool(rig.world.exits) or group_status.is_ready(since)

    if not await wait_until(is_over, PATIENCE_S):
        rig.not_recovered.append(never_served(_standstill(rig)))
    return not rig.world.exits and not rig.not_recovered


@asynccontextmanager
async def reporting_counts(
    rig: Rig, look: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """Report the clients' progress to the observer and the history while the body runs.

    `look` is called as often, to look at what they recorded.
    """

    async def tell() -> None:
        while True:
            rig.observer.counts(rig.workers.counts())
            segments.note_sizes(rig.folder)
            look()
            await trio.sleep(COUNTS_INTERVAL_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
    rig.observer.counts(rig.workers.counts())


async def steady(rig: Rig, began: float) -> None:
    """Let clients work without faults. `began` is when they started (trio's clock)."""
    await trio.sleep_until(began + rig.campaign.steady_s)


async def chaos(rig: Rig, began: float) -> bool:
    """Run the faults of the schedule until the clients' time is over and all are undone.

    Returns whether the clients were stopped then. They go on if a kind of fault had no effect so
    far, for `retry`.
    """
    async with trio.open_nursery() as nursery:
        end = began + rig.campaign.time_limit_s
        nursery.start_soon(rig.nemesis.run, rig.schedule, end - trio.current_time())
        await trio.sleep_until(end)
        is_stopped = not rig.nemesis.without_effect(rig.schedule)
        if is_stopped:
            await rig.workers.stop()
    return is_stopped


async def retry(rig: Rig) -> None:
    """Retry each kind of fault that had no effect, on a healthy group; then stop clients.

    A fault may find no victim, or be refused, just after other faults: a short run with one fault
    of its kind would test less than was requested (checker "vacuity").
    """
    latest = trio.current_time() + RETRY_ROOM_S
    for _ in range(RETRIES_MAX):
        for planned in rig.nemesis.without_effect(rig.schedule):
            since = trio.current_time()
            if since < latest and not is_broken(rig.world):
                await wait_until(partial(rig.world.group_status.is_ready, since), RETRY_READY_S)
                await rig.nemesis.retry(planned)
    await rig.workers.stop()


def patience_s(rig: Rig, longest_s: float) -> float:
    """Return how long to wait for the group, which may never recover after a violated invariant.

    The wait is short as well if the group has had all its virtual time, or a node's disk has.
    """
    if is_broken(rig.world) or (rig.is_virtual and (rig.not_recovered or rig.world.awaited())):
        return min(longest_s, BROKEN_PATIENCE_S)
    return PATIENCE_S if rig.is_virtual else longest_s


async def heal(rig: Rig) -> tuple[str, ...]:
    """Repair what faults left behind; wait until all nodes know one leader, as far as possible.

    A group that does not recover is for the checkers to judge, not an error of the harness. Returns
    descriptions of what was repaired.
    """
    left = rig.world.restore()
    if rig.restore_late is not None:
        left = (*left, *await rig.restore_late(0.0 if is_broken(rig.world) else PATIENCE_S))
    for line in left:
        rig.observer.note(f"after the last fault, {line}")
    rig.world.group_status.undisturbed_s = since = trio.current_time()
    longest_s = patience_s(rig, HEAL_TIMEOUT_S)
    if not await wait_until(partial(rig.world.group_status.is_ready, since), longest_s):
        rig.observer.note(f"the group did not come back: {rig.world.group_status.why_not_ready()}")
        _note_not_recovered(rig, settled=False, answered=True)
    return left


async def drain(rig: Rig) -> bool:
    """Let clients finish and read once more; wait until all live nodes have committed all.

    Writes drain.json. Returns whether the final operations were done and the nodes agreed.
    """
    rig.observer.on_drain()
    workload = discovery.get("workloads", rig.campaign.workload)
    hold_s = hold_of(workload)
    longest_s = rig.campaign.op_timeout_s + hold_s + FINISH_MARGIN_S
    finished = await rig.workers.finish_main(longest_s)
    read = await rig.workers.run_finals(patience_s(rig, finals_s_of(workload)))
    since = trio.current_time()  # what nodes reported before the last operation's end is too old
    longest_s = patience_s(rig, SETTLE_TIMEOUT_S)
    settled = await wait_until(partial(rig.world.group_status.is_settled, since), longest_s)
    statuses = {
        node: None if status is None or not rig.world.is_running(node) else asdict(status)
        for node, status in rig.world.group_status.statuses().items()
    }
    write_atomically(rig.folder.drain_json, msgspec.json.encode({"nodes": statuses}))
    _note_not_recovered(rig, settled=settled, answered=finished and read)
    for is_so, otherwise in (
        (finished, "clients had not finished their operations in time"),
        (read, "clients did not finish their final operations"),
        (settled, f"the nodes did not agree: {rig.world.group_status.why_not_ready()}"),
    ):
        if not is_so:
            rig.observer.note(otherwise)
    return finished and read and settled


def _note_not_recovered(rig: Rig, *, settled: bool, answered: bool) -> None:
    """Record, once, what did not recover, if only the group can be the cause.

    After a violated invariant, and while a node waits for its disk, the group was not waited for:
    then only that is recorded.
    """
    if not rig.is_virtual or rig.not_recovered or is_broken(rig.world):
        return
    still = _standstill(rig)
    is_waited = not rig.world.awaited()
    rig.not_recovered.extend(
        not_recovered(still, settled=settled or not is_waited, answered=answered or not is_waited)
    )


def _standstill(rig: Rig) -> Standstill:
    world = rig.world
    group_status, lost = world.group_status, world.awaited()
    down = {
        node: f"{node} never got its disk back ({group_status.state_of(node)})" for node in lost
    }
    down |= {
        node: group_status.state_of(node)
        for node in world.nodes
        if node not in down and not world.is_running(node)
    }
    return Standstill(
        at_ns=rig.facts.now_ns(),
        waited_s=trio.current_time() - group_status.undisturbed_s,
        down=down,
        lagging=group_status.lagging(),
        states=group_status.why_not_ready(),
        waiting=rig.workers.waiting(),
    )


async def tear_down(rig: Rig) -> dict[str, int | None]:
    """Stop clients and nodes; return the number of events in each client's segment."""
    segments: dict[str, int | None] = {}
    with trio.move_on_after(TEARDOWN_TIMEOUT_S):
        segments = await rig.workers.close(CLOSE_TIMEOUT_S)
        await rig.world.stop_all()
    return segments
