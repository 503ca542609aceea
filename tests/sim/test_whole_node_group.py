"""Code with a course of its own inside the simulated world: a harness' words, virtual time."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import trio

from shaketable.system.client import BrokerGroupClient, RefusedError
from shaketable.system.mutants import load
from shaketable.system.raft import leadership
from shaketable.system.raft.membership import Remove, changed
from shaketable.system.sim.member import Flush
from shaketable.system.sim.schedules.schedule import Settings
from shaketable.system.sim.trio_world.trio_operator import TrioOperator
from shaketable.system.store.index_units import NotContiguous
from tests.support.whole_node_group import UNTOUCHED, SimulatedGroup, run_group


def client_of(group: SimulatedGroup) -> BrokerGroupClient:
    return BrokerGroupClient(group.client_addresses, timeout_s=3.0, rng=Random(1))


async def leader_of(group: SimulatedGroup, *, other_than: str | None = None) -> str:
    while group.leader() in (None, other_than):
        await trio.sleep(0.05)
    return str(group.leader())


def test_a_killed_leader_is_replaced_and_restarted():
    async def course(group: SimulatedGroup) -> tuple[list[bytes], float]:
        client = client_of(group)
        await client.send("t", 0, b"before")
        old = await leader_of(group)
        incarnation = group.kill(old)
        assert not group.is_alive(old, incarnation)
        assert group.kill(old) == UNTOUCHED
        await leader_of(group, other_than=old)
        await client.send("t", 0, b"after")
        group.restart(old, incarnation)
        group.restart(old, incarnation)  # idempotent: it is not the last one any more
        await trio.sleep(2)
        while (await client.metadata(old)).applied_index < 3:
            await trio.sleep(0.05)
        bodies = [message.body for message in (await client.pull("t", 0, 0)).messages]
        client.close()
        assert group.violation is None
        return bodies, trio.current_time()

    bodies, seconds = run_group(course, seed=3)
    assert bodies == [b"before", b"after"]
    assert seconds > 2  # virtual ones


def test_a_paused_node_stands_still_until_it_is_resumed():
    async def course(group: SimulatedGroup) -> None:
        client = client_of(group)
        await client.send("t", 0, b"a")
        old = await leader_of(group)
        incarnation = group.pause(old)
        assert group.is_paused(old)
        assert group.pause(old) == UNTOUCHED
        await leader_of_others(group, old)
        group.resume(old, incarnation)
        assert not group.is_paused(old)
        await trio.sleep(1)
        assert (await client.metadata(old)).role == "follower"
        client.close()

    async def leader_of_others(group: SimulatedGroup, old: str) -> None:
        while group.leader() == old:  # it does not know yet; the higher term is the other's
            await trio.sleep(0.05)

    run_group(course, seed=4)


@pytest.mark.parametrize("resets", [False, True], ids=["deliver", "reset"])
def test_a_cut_holds_bytes_until_it_is_mended(resets):
    async def course(group: SimulatedGroup) -> None:
        client = client_of(group)
        await client.send("t", 0, b"a")
        leader = await leader_of(group)
        others = [node for node in group.nodes if node != leader]
        cut = group.cut([(leader, node) for node in others])
        await trio.sleep(0.3)
        held_bytes, connections = group.held(cut)
        assert held_bytes > 0
        assert connections == 2
        await leader_of(group, other_than=leader)
        group.heal(cut, resets=resets)
        group.heal(cut, resets=resets)
        assert group.held(cut)[0] >= held_bytes
        await client.send("t", 0, b"b")
        await trio.sleep(2)
        terms = {(await client.metadata(node)).term for node in group.nodes}
        assert len(terms) == 1
        client.close()

    run_group(course, seed=5)


def test_a_stopped_node_leaves_its_disk_in_order_and_refuses_connections():
    async def course(group: SimulatedGroup) -> None:
        client = client_of(group)
        await client.send("t", 0, b"a")
        group.stop("n0")
        await trio.sleep(1)
        assert not group.is_alive("n0", group.incarnation("n0"))
        with pytest.raises(RefusedError, match="n0 cannot be reached"):
            await client.metadata("n0")
        client.close()

    lines: list[str] = []
    run_group(course, seed=6, settings=Settings(members=1), trace=lines.append)

    async def start_again(group: SimulatedGroup) -> None:
        group.stop("n0")
        await trio.sleep(1)
        group.start("n0")
        client = client_of(group)
        await client.send("t", 0, b"a")
        client.close()

    run_group(start_again, seed=6, settings=Settings(members=1), trace=lines.append)
    assert "aborted=False" in [line for line in lines if "event=recovered" in line][-1]


def test_a_node_that_stands_still_learns_later_that_it_is_to_end():
    async def course(group: SimulatedGroup) -> None:
        leader = await leader_of(group)
        core = group._host(leader).core
        incarnation = group.pause(leader)
        group.stop(leader)
        await trio.sleep(0.01)
        assert core.transferee is None, "SIGTERM waits for SIGCONT"
        group.resume(leader, incarnation)
        await trio.sleep(2)
        assert not group.is_alive(leader, incarnation)

    run_group(course, seed=7)


def test_what_the_course_raises_gets_out_and_violations_are_noted():
    async def course(group: SimulatedGroup) -> None:
        client = client_of(group)
        for number in range(20):
            await client.send("t", 0, b"%d" % number)
        client.close()
        assert group.violation is not None
        raise LookupError(group.violation.invariant)

    with pytest.raises(LookupError, match="committed-is-durable"):
        run_group(course, seed=1, mutant=load("ack-before-fsync"))


def test_a_group_of_one_that_lets_its_only_voter_go_is_found(monkeypatch):
    def unchecked(membership, change):
        is_last = isinstance(change, Remove) and membership.voters == (change.member,)
        return membership if is_last else changed(membership, change)

    async def course(group: SimulatedGroup) -> str | None:
        await leader_of(group)
        group._world.operator.request_refused_change("unknown")
        await trio.sleep(2)
        return group.violation and group.violation.invariant

    alone = Settings(members=1)
    assert run_group(course, seed=6, settings=alone) is None
    monkeypatch.setattr(leadership, "changed", unchecked)
    assert run_group(course, seed=6, settings=alone) == "changes-are-checked"
    assert run_group(course, seed=6) is None, "of three, a member that is none is removed"


def test_a_job_that_comes_while_the_operator_sleeps_after_its_last_one_is_done_by_the_same_task():
    """Two tasks at work on one list of jobs took a job each from under the other."""
    started = []
    operator = TrioOperator.__new__(TrioOperator)
    operator._jobs, operator._is_at_work = [], False
    operator._world = SimpleNamespace(spawn=started.append)
    operator.remove("n0")
    operator._jobs.clear()  # done, and it sleeps
    operator.remove("n1")
    assert len(started) == 1
    operator._jobs.clear()
    operator._is_at_work = False
    operator.remove("n2")
    assert len(started) == 2


def test_what_a_dying_process_makes_of_its_last_writes_ends_no_run():
    """A disk that fails in the middle of a batch leaves what the rest does not continue."""

    def carry_out(writes):
        raise NotContiguous("entries 5..5 do not continue 5")

    flush = Flush.__new__(Flush)
    platter = SimpleNamespace(operations=7, stop_at=None)
    flush._member = SimpleNamespace(disk=SimpleNamespace(is_dead=False, platter=platter))
    flush._writer = SimpleNamespace(carry_out=carry_out)
    flush._is_busy, flush._in_flight = True, ("a write",)
    assert flush.abort(3) == ("a write",)
    assert platter.stop_at == 10
