"""The whole-node world: clean seeds are clean, the same everywhere, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import trio
from trio._core import _run

from shaketable.system.broker.admin import BrokerInfo
from shaketable.system.broker.effects import Outbox
from shaketable.system.client import (
    BrokerGroupClient,
    Metadata,
    OutcomeUnknownError,
    connection,
    group,
)
from shaketable.system.mutants import Mutant, load
from shaketable.system.node.connections.link import Link
from shaketable.system.raft.core import RaftCore
from shaketable.system.sim.schedules.faults import (
    Crash,
    Cut,
    Pause,
    RefusedChange,
    SlowLink,
    Transfer,
)
from shaketable.system.sim.schedules.schedule import Call, Options, Schedule, Settings
from shaketable.system.sim.trio_world.world import run_seed

SETTINGS = Settings(members=3, run_ms=9_000, clients=2, queues=1)


def calls(until_ms: int, every_ms: int = 40) -> tuple[Call, ...]:
    """Return appends and reads of two clients."""
    found = []
    for number, at_ms in enumerate(range(600, until_ms, every_ms)):
        kind = ("append", "batch", "pull", "max_offset")[number % 4]
        count = 1 if kind in ("pull", "max_offset") else 3
        found.append(Call(at_ms, number % 2, kind, 0, count, 5))
    return tuple(found)


def schedule(*faults, settings: Settings = SETTINGS, seed: int = 7) -> Schedule:
    return Schedule(seed=seed, settings=settings, faults=faults, calls=calls(7_000))


def test_a_group_without_faults_serves_every_client():
    result = run_seed(7, schedule=schedule())
    assert result.violation is None
    assert result.counts.acknowledged == 3 * sum(call.count == 3 for call in calls(7_000))
    assert result.counts.elections == 1
    assert result.counts.refused == result.counts.unknown == 0


@pytest.mark.parametrize("seed", range(4))
def test_drawn_seeds_are_clean(seed):
    result = run_seed(seed, Options(operations_per_s=30, run_ms=15_000))
    assert result.violation is None
    assert result.counts.acknowledged > 100
    assert result.counts.faults


@pytest.mark.parametrize("loses_unsynced", [True, False], ids=["power", "process"])
def test_a_crashed_leader_is_replaced_and_comes_back(loses_unsynced):
    fault = Crash(start_ms=2_000, duration_ms=1_500, node="leader", loses_unsynced=loses_unsynced)
    result = run_seed(7, schedule=schedule(fault))
    assert result.violation is None
    assert (result.counts.crashes, result.counts.restarts) == (1, 1)
    assert result.counts.elections >= 2
    assert any(op.outcome == "ok" and op.invoke_ms > 3_000 for op in result.history)


def test_a_paused_leader_finds_the_world_changed():
    fault = Pause(start_ms=2_000, duration_ms=2_500, node="leader")
    lines: list[str] = []
    result = run_seed(7, schedule=schedule(fault), trace=lines.append)
    assert result.violation is None
    leaders = [line for line in lines if " is leader" in line]
    paused = leaders[0].split()[1]
    while_paused = [line for line in lines if 2_000 < float(line.split()[0]) < 4_500]
    assert while_paused
    said = [line for line in while_paused if line.split()[1] == paused and "<-" not in line]
    assert said == []  # bytes reach its machine, but it does nothing
    assert len(leaders) >= 2


def test_a_one_way_cut_holds_bytes_and_delivers_them():
    fault = Cut(start_ms=2_000, duration_ms=2_000, links=(("leader", "*"),))
    result = run_seed(7, schedule=schedule(fault))
    assert result.violation is None
    assert result.counts.elections >= 2  # a leader that hears everybody and reaches nobody


def test_a_leader_hands_over_when_it_is_asked():
    result = run_seed(
        7, schedule=schedule(Transfer(start_ms=3_000, duration_ms=100, to="follower"))
    )
    assert result.violation is None
    assert result.counts.transfers == 1
    assert result.counts.elections == 2


# ---- the same run everywhere ---------------------------------------------------------------


def test_the_trace_is_the_same_byte_for_byte_in_every_process():
    program = (
        "import hashlib, sys\n"
        "from shaketable.system.sim.trio_world.world import run_seed\n"
        "from shaketable.system.sim.schedules.schedule import Options\n"
        "lines = []\n"
        "options = Options(operations_per_s=30, run_ms=9_000)\n"
        "result = run_seed(11, options, trace=lines.append)\n"
        "digest = hashlib.sha256('\\n'.join(lines).encode()).hexdigest()\n"
        "print(result.digest, digest, len(lines))\n"
    )
    said = set()
    for hash_seed in ("0", "1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(run.stdout)
    assert len(said) == 1
    assert int(next(iter(said)).split()[2]) > 500


def test_another_seed_is_another_run_and_tracing_changes_nothing():
    same = schedule()
    lines: list[str] = []
    with_trace = run_seed(7, schedule=same, trace=lines.append)
    assert with_trace.digest == run_seed(7, schedule=same).digest
    assert with_trace.digest != run_seed(8, schedule=schedule(seed=8)).digest


def test_the_scheduler_is_left_as_it_was():
    before = (_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING)
    run_seed(7, schedule=schedule())
    assert (_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING) == before


# ---- planted bugs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutant", "invariants"),
    [
        ("ack-before-quorum", {"acknowledged-is-committed"}),
        ("ack-before-fsync", {"committed-is-durable"}),
    ],
)
def test_a_planted_bug_of_the_core_is_found_here_too(mutant, invariants):
    found = (run_seed(seed, mutant=load(mutant)).violation for seed in range(4))
    assert {violation.invariant for violation in found if violation} == invariants


class Disturbed(RaftCore):
    """Votes for whoever asks, although it hears a leader."""

    def _must_not_disturb(self, request):
        return False


@pytest.mark.parametrize(
    ("mutant", "seed", "invariant"),
    [
        (load("lease-after-restart"), 2, "restarts-keep-leases"),
        (Mutant("disturbed", Disturbed), 3, "leader-is-left-alone"),
    ],
    ids=["restarted", "disturbed"],
)
def test_a_vote_that_had_to_be_refused_is_found(mutant, seed, invariant):
    assert run_seed(seed, mutant=mutant).violation.invariant == invariant


def test_a_client_that_tries_again_what_may_have_happened_is_found(monkeypatch):
    """The shell's own bug: an unknown outcome is taken for a refusal."""
    once = BrokerGroupClient.send

    async def again(self: BrokerGroupClient, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return await once(self, *args, **options)
            except OutcomeUnknownError:
                await trio.sleep(0.05)

    monkeypatch.setattr(BrokerGroupClient, "send", again)
    slow = SlowLink(start_ms=2_000, duration_ms=1_000, links=(("*", "*"),), delay_ms=80.0)
    hasty = Settings(members=3, run_ms=9_000, clients=2, queues=1, client_timeout_ms=100.0)
    violation = run_seed(7, schedule=schedule(slow, settings=hasty)).violation
    assert violation is not None
    # Stored twice, or stored once and refused when it was tried again, or tried for longer than its
    # caller allows: whichever is seen first.
    told = {"stored-once", "refusal-is-definite", "calls-end-in-time"}
    assert violation.invariant in told
    monkeypatch.undo()
    assert run_seed(7, schedule=schedule(slow, settings=hasty)).violation is None


CUT_OFF = Cut(start_ms=2_000, duration_ms=3_000, links=(("leader", "*"), ("*", "leader")))


def test_an_operator_gets_the_newest_leader_that_answers(monkeypatch):
    """The operator's own bug: of two that say that they lead, it takes the older one."""
    slow = Settings(members=3, run_ms=9_000, clients=2, queues=1, quorum_silence_max_ms=2_000)
    assert run_seed(7, schedule=schedule(CUT_OFF, settings=slow)).violation is None

    def oldest(answers: dict[str, Metadata], *, is_sure: bool) -> Metadata | None:
        leaders = [answer for answer in answers.values() if answer.role == "leader"]
        return None if is_sure else min(leaders, key=lambda each: each.term, default=None)

    monkeypatch.setattr(group, "_leader_among", oldest)
    violation = run_seed(7, schedule=schedule(CUT_OFF, settings=slow)).violation
    assert violation is not None
    assert violation.invariant == "operators-find-the-leader"


def test_an_operator_that_asks_on_though_a_leader_answered_is_found(monkeypatch):
    """The operator's own bug: it waits for all members, though one of them is down."""
    found = group._leader_among

    def sure(answers: dict[str, Metadata], *, is_sure: bool) -> Metadata | None:
        return None if is_sure or len(answers) < 3 else found(answers, is_sure=True)

    down = Crash(start_ms=2_000, duration_ms=2_500, node="follower", loses_unsynced=False)
    assert run_seed(7, schedule=schedule(down)).violation is None
    monkeypatch.setattr(group, "_leader_among", sure)
    violation = run_seed(7, schedule=schedule(down)).violation
    assert violation is not None
    assert violation.invariant == "operators-find-the-leader"


def test_a_status_that_is_over_is_found():
    violation = run_seed(7, schedule=schedule(CUT_OFF), mutant=load("status-from-cache")).violation
    assert violation is not None
    assert violation.invariant == "status-is-true"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("putMessageTimesTotal", lambda text: str(int(text) + 1)),
        ("commitLogMaxOffset", lambda text: str(int(text) - 1)),
        ("dledgerTerm", lambda text: str(int(text) + 1)),
        ("putTps", lambda text: text.rpartition(" ")[0]),
    ],
)
def test_figures_that_are_wrong_are_found(monkeypatch, name, wrong):
    right = BrokerInfo._answer

    def answer(self, connection, request, value):
        table = value.get("table", {})
        if name in table:
            value = {"table": {**table, name: wrong(table[name])}}
        right(self, connection, request, value)

    monkeypatch.setattr(BrokerInfo, "_answer", answer)
    violation = run_seed(7, schedule=schedule()).violation
    assert violation is not None
    assert violation.invariant == "status-is-true"


@pytest.mark.parametrize("module", [connection, group])
def test_a_call_that_outlasts_its_timeout_as_it_connects_is_found(monkeypatch, module):
    off = Crash(start_ms=100, duration_ms=3_000, node="n2")  # before anybody has connected
    assert run_seed(7, schedule=schedule(off)).violation is None
    monkeypatch.setattr(module, "min", max, raising=False)
    violation = run_seed(7, schedule=schedule(off)).violation
    assert violation is not None
    assert violation.invariant == "calls-end-in-time"


def test_a_refusal_that_is_tried_again_is_found():
    asked = RefusedChange(start_ms=2_000, duration_ms=100, why="unknown")
    assert run_seed(7, schedule=schedule(asked)).violation is None
    violation = run_seed(7, schedule=schedule(asked), mutant=load("refusals-tried-again")).violation
    assert violation is not None
    assert violation.invariant == "refusals-are-final"


def test_a_client_that_stays_with_a_silent_leader_is_found():
    silent = Pause(start_ms=1_500, duration_ms=7_000, node="leader")
    assert run_seed(7, schedule=schedule(silent)).violation is None
    stays = load("stays-with-the-silent")
    violation = run_seed(7, schedule=schedule(silent), mutant=stays).violation
    assert violation is not None
    assert violation.invariant == "others-are-asked"


def test_an_operator_that_asks_without_a_pause_is_found(monkeypatch):
    monkeypatch.setattr(group, "POLL_INTERVAL_S", 0.0)
    violation = run_seed(7, schedule=schedule()).violation
    assert violation is not None
    assert violation.invariant == "clients-pause"


def test_a_request_that_is_answered_twice_is_found(monkeypatch):
    """The broker's own bug: it goes on with what it has refused."""
    once = Outbox.refuse

    def twice(self: Outbox, *args: Any) -> None:
        once(self, *args)
        once(self, *args)

    monkeypatch.setattr(Outbox, "refuse", twice)
    asked = RefusedChange(start_ms=2_000, duration_ms=100, why="unknown")
    violation = run_seed(7, schedule=schedule(asked)).violation
    assert violation is not None
    assert violation.invariant == "answers-come-once"


def test_a_client_that_knows_no_sender_is_found(monkeypatch):
    """The client's own bug: it does not note which member has answered."""
    monkeypatch.setattr(
        BrokerGroupClient, "answered_by", property(lambda _: None, lambda *_: None), raising=False
    )
    violation = run_seed(7, schedule=schedule()).violation
    assert violation is not None
    assert violation.invariant == "answers-have-senders"


def test_a_node_that_loses_bytes_it_could_not_send_at_once_is_found(monkeypatch):
    """The shell's own bug: what a short send left over is dropped."""

    def send(self: Link, data: bytes) -> bool:
        self._direct.send_nowait(data[: max(1, len(data) * 2 // 3)])
        return True

    healthy = schedule()
    assert run_seed(7, schedule=healthy).violation is None
    monkeypatch.setattr(Link, "send", send)
    violation = run_seed(7, schedule=healthy).violation
    assert violation is not None
    assert violation.invariant in (
        "appends-succeed",
        "every-node-catches-up",
        "node-runs-on",
        "streams-are-understood",
    )


def test_a_node_that_deadlocks_is_found(monkeypatch):
    """Everybody waits for ever: that is said, and does not hang the run."""

    monkeypatch.setattr(Link, "send", lambda self, data: True)
    violation = run_seed(7, schedule=schedule()).violation
    assert violation is not None
    assert violation.invariant == "appends-succeed"
