"""Client workers as real processes, against a target that lives in their memory."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.segments import Segment, read_segment
from shaketable.harness.runtime.clients.workers import WorkerGroup, WorkerPlan

PLUG_IN = '''
"""A log in memory. The last digit of a value decides what becomes of its append."""
import contextlib
import os
import trio
from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Promises

LOGS: dict = {}


class FakeClient:
    def __init__(self):
        self.node = "n0"

    async def append(self, key, value):
        await trio.sleep(0.001)
        if value % 10 == 3:
            raise DefiniteError("not the leader")
        if value % 10 == 4:
            raise IndefiniteError("connection reset")
        if value % 10 == 5:
            raise RuntimeError("a bug in the client")
        log = LOGS.setdefault(key, [])
        log.append(value)
        return len(log) - 1

    async def read(self, key, offset):
        await trio.sleep(0)
        log = LOGS.get(key, [])
        return log[offset] if offset < len(log) else None

    async def end(self, key):
        await trio.sleep(0)
        return len(LOGS.get(key, []))

    async def aclose(self):
        await trio.sleep(0)


class Deadly(FakeClient):
    """Dies by SIGKILL inside the operation, as a worker may at any moment."""

    async def append(self, key, value):
        if value >= 100:
            os.kill(os.getpid(), 9)
        return await super().append(key, value)


class Mute(FakeClient):
    async def append(self, key, value):
        await trio.sleep_forever()


class Rude(FakeClient):
    """Breaks a rule of its own with each read."""

    async def read(self, key, offset):
        for report, now_ns in WATCHES:
            for rule in ("rule-a", "rule-b"):
                report(Broken(rule, f"a read of {key}", "", now_ns()))
        return await super().read(key, offset)


WATCHES: list = []


class FakeTarget:
    promises = Promises()
    mutants: dict = {}

    def __init__(self, name, make):
        self.name = name
        self.make = make

    def prepare(self, layout): ...
    async def status(self, layout, timeout_s): ...
    def read_log(self, directory, node): ...

    def client(self, addresses, timeout_s):
        return self.make()


class CheckingTarget(FakeTarget):
    @contextlib.contextmanager
    def checked_clients(self, report, now_ns):
        WATCHES.append((report, now_ns))
        yield
        WATCHES.clear()


def broken():
    raise OSError("no route")


FAKE = FakeTarget("fake", FakeClient)
DEADLY = FakeTarget("deadly", Deadly)
MUTE = FakeTarget("mute", Mute)
RUDE = CheckingTarget("rude", Rude)
BROKEN = FakeTarget("broken", broken)
'''
ENTRY_POINTS = """\
[shaketable.targets]
fake = fake_plugin:FAKE
deadly = fake_plugin:DEADLY
mute = fake_plugin:MUTE
broken = fake_plugin:BROKEN
rude = fake_plugin:RUDE
"""


@pytest.fixture(autouse=True)
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    info = site / "fake_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "fake_plugin.py").write_text(PLUG_IN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))  # spawned workers get the parent's sys.path
    return site


def make_plan(folder: Path, number: int = 0, workers: int = 1, **changes) -> WorkerPlan:
    clients = 4
    fields = {
        "name": f"worker-{number}",
        "target": "fake",
        "workload": "log",
        "seed": "7",
        "addresses": {},
        "slots": tuple(range(number, clients, workers)),
        "clients": clients,
        "rate_hz": 0.0,
        "op_timeout_s": 1.0,
        "start_ns": time.monotonic_ns(),
        "segment": folder / f"worker-{number}.seg",
        "parent_pid": os.getpid(),
        "log": folder / "shaketable.log",
        "options": {"queues": 2},
    }
    return WorkerPlan(**{**fields, **changes})


async def wait_for(group: WorkerGroup, operations: int) -> None:
    while (counts := group.counts()).ok + counts.fail + counts.info < operations:
        assert not group.problems()
        await trio.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def appends_by_value(segment: Segment) -> dict[int, str]:
    """Pair invokes and ends by process, as a reader of the history would."""
    pending, outcome = {}, {}
    for event in segment.events:
        if event.type == "invoke":
            assert event.process not in pending, "a process does one operation at a time"
            pending[event.process] = event
        else:
            invoke = pending.pop(event.process)
            if invoke.f == "append":
                outcome[invoke.input] = event.type
    assert not pending
    return outcome


@pytest.mark.e2e
def test_a_whole_run_is_recorded_and_counted(tmp_path: Path) -> None:
    plans = [make_plan(tmp_path, number, workers=2) for number in (0, 1)]
    group = WorkerGroup(plans)

    async def main() -> dict[str, int | None]:
        try:
            await group.start()
            assert sorted(group.pids()) == ["worker-0", "worker-1"]
            await group.generate()
            await wait_for(group, 200)
            assert await group.finish_main()
            assert await group.run_finals(20.0)
            return await group.close()
        finally:
            await group.kill()

    closed = trio.run(main)
    assert group.problems() == ()
    segments = [read_segment(plan.segment) for plan in plans]
    assert closed == {s.path.name: len(s.events) for s in segments}
    assert all(s.closed and s.torn is None for s in segments)
    events = [event for s in segments for event in s.events]
    ended = Counter(event.type for event in events if event.type != "invoke")
    counts = group.counts()
    assert ended == Counter(ok=counts.ok, fail=counts.fail, info=counts.info)
    assert sum(ended.values()) * 2 == len(events)
    assert all(is_gone(pid) for pid in group.pids().values())

    expected = {3: "fail", 4: "info", 5: "info"}
    by_value = appends_by_value(segments[0]) | appends_by_value(segments[1])
    assert {value % 10 for value in by_value} == set(range(10))
    assert all(got == expected.get(value % 10, "ok") for value, got in by_value.items())
    unforeseen = {e.error for e in events if e.type == "info" and "bug" in (e.error or "")}
    assert unforeseen == {"RuntimeError: a bug in the client"}
    assert "Traceback" in (tmp_path / "shaketable.log").read_text()

    retired = {e.process for e in events if e.type == "info"}
    slots = {plan_slot for plan in plans for plan_slot in plan.slots}
    assert all(process % 4 in slots for process in retired)
    last_end = {e.process: e.type for e in events}
    assert all(last_end[process] == "info" for process in retired), "a crashed process acts no more"

    for plan, segment in zip(plans, segments, strict=True):
        queue = f"shaketable/{plan.slots[0]}"
        finals = [e for e in segment.events if e.key == queue and e.type == "ok"][-21:]
        assert [e.f for e in finals] == ["end"] + ["read"] * 20
        end = finals[0].output
        assert [e.offset for e in finals[1:]] == [max(0, end - d) for d in range(1, 21)]


@pytest.mark.e2e
def test_the_same_seed_draws_the_same_operations(tmp_path: Path) -> None:
    async def main(plan: WorkerPlan) -> None:
        group = WorkerGroup([plan])
        try:
            await group.start()
            await group.generate()
            await wait_for(group, 100)
            await group.finish_main()
            await group.close()
        finally:
            await group.kill()

    drawn = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        plan = make_plan(tmp_path / name)
        trio.run(main, plan)
        invokes = [e for e in read_segment(plan.segment).events if e.type == "invoke"]
        drawn.append([(e.f, e.key, e.input) for e in invokes if e.process % 4 == 2])
    least = min(map(len, drawn))
    assert least > 10
    assert drawn[0][:least] == drawn[1][:least]


@pytest.mark.e2e
def test_the_invoke_survives_sigkill_of_its_worker(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, target="deadly")
    group = WorkerGroup([plan])

    async def main() -> dict[str, int | None]:
        try:
            await group.start()
            await group.generate()
            while not group.problems():
                await trio.sleep(0.05)
            assert not await group.finish_main()
            assert not await group.run_finals(1.0)
            return await group.close()
        finally:
            await group.kill()

    assert trio.run(main) == {"worker-0.seg": None}
    assert group.problems() == ("worker-0: ended by itself (SIGKILL)",)
    segment = read_segment(plan.segment)
    assert not segment.closed
    assert not segment.damaged
    sent = [e.input for e in segment.events if e.type == "invoke" and e.f == "append"]
    assert sent[-1] >= 100, "the operation in which it died had been recorded before it was sent"


@pytest.mark.e2e
def test_a_worker_that_does_not_answer_is_killed_in_time(tmp_path: Path) -> None:
    plans = [make_plan(tmp_path, number, workers=2) for number in (0, 1)]
    group = WorkerGroup(plans)

    async def main() -> dict[str, int | None]:
        try:
            await group.start()
            await group.generate()
            await wait_for(group, 20)
            while not all(read_segment(plan.segment).events for plan in plans):
                await trio.sleep(0.05)
            os.kill(group.pids()["worker-1"], signal.SIGSTOP)
            assert not await group.finish_main(0.5)
            return await group.close(5.0)  # time enough for worker-0; the other one takes it all
        finally:
            await group.kill()

    closed = trio.run(main)
    assert closed["worker-1.seg"] is None
    late = "worker-1: did not close its recording in time, and was killed"
    assert group.problems() == (late,)
    assert closed["worker-0.seg"] == len(read_segment(plans[0].segment).events)
    assert all(is_gone(pid) for pid in group.pids().values())


@pytest.mark.e2e
def test_a_worker_that_stood_still_says_when(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    group = WorkerGroup([plan])

    async def main() -> int:
        try:
            await group.start()
            await group.generate()
            await wait_for(group, 20)
            pid = group.pids()["worker-0"]
            os.kill(pid, signal.SIGSTOP)
            stopped_ns = time.monotonic_ns() - plan.start_ns
            await trio.sleep(2.0)
            os.kill(pid, signal.SIGCONT)
            assert await group.finish_main()
            await group.close()
            return stopped_ns
        finally:
            await group.kill()

    stopped_ns = trio.run(main)
    inside_ns = stopped_ns + 1_000_000_000
    assert any(from_ns < inside_ns < to_ns for from_ns, to_ns in group.stalls())


@pytest.mark.e2e
@pytest.mark.parametrize(("target", "rules"), [("rude", ["rule-a", "rule-b"]), ("fake", [])])
def test_what_clients_do_against_their_rules_is_told_once(
    tmp_path: Path, target: str, rules: list[str]
) -> None:
    plans = [make_plan(tmp_path, number=n, workers=2, target=target) for n in range(2)]
    group = WorkerGroup(plans)

    async def main() -> None:
        try:
            await group.start()
            await group.generate()
            await wait_for(group, 60)
            assert await group.finish_main()
            await group.close()
        finally:
            await group.kill()

    trio.run(main)
    told = group.violated()
    assert sorted(each.invariant for each in told) == rules
    assert all(each.finding.startswith("a read of ") and each.at_ns > 0 for each in told)
    assert len(told) == len({each.invariant for each in told})


@pytest.mark.e2e
def test_operations_end_though_the_client_hangs(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, target="mute", op_timeout_s=0.1)
    group = WorkerGroup([plan])

    async def main() -> None:
        try:
            await group.start()
            await group.generate()
            while not any(e.f == "append" for e in read_segment(plan.segment).events):
                await trio.sleep(0.05)  # it hangs from now on, and is cut off later
            assert await group.finish_main()
            await group.close()
        finally:
            await group.kill()

    trio.run(main)
    ends = [e for e in read_segment(plan.segment).events if e.f == "append" and e.type != "invoke"]
    assert ends
    assert {(e.type, e.error) for e in ends} == {("info", "no answer within 1.1 s")}


@pytest.mark.e2e
def test_workers_that_are_stopped_say_when_no_operation_is_open(tmp_path: Path) -> None:
    group = WorkerGroup([make_plan(tmp_path)])

    async def main() -> bool:
        try:
            await group.start()
            await group.generate()
            await group.stop()
            await group.stop()  # to say it twice does no harm
            return await group._awaited("generated", 60.0)
        finally:
            await group.kill()

    assert trio.run(main)


@pytest.mark.e2e
def test_a_worker_that_cannot_start_is_told_in_one_line(tmp_path: Path) -> None:
    group = WorkerGroup([make_plan(tmp_path, target="broken")])

    async def main() -> None:
        try:
            await group.start()
        finally:
            await group.kill()

    with pytest.raises(HarnessError, match="worker-0: OSError: no route"):
        trio.run(main)


SUPERVISOR = """
import sys, time
from pathlib import Path
import trio
sys.path.insert(0, sys.argv[1])
from shaketable.harness.runtime.clients.workers import WorkerGroup, WorkerPlan
import os

async def main():
    plan = WorkerPlan("worker-0", "fake", "log", "7", {}, (0, 1), 2, 0.0, 1.0,
                      time.monotonic_ns(), Path(sys.argv[2]), os.getpid())
    group = WorkerGroup([plan])
    await group.start()
    await group.generate()
    while not group.counts().ok:
        await trio.sleep(0.05)
    print(group.pids()["worker-0"], flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


def children(parent: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(stat.parent.name))
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("is_stopped", [False, True])
def test_workers_die_with_the_harness(plug_in: Path, tmp_path: Path, is_stopped: bool) -> None:
    segment = tmp_path / "worker-0.seg"
    script = tmp_path / "supervisor.py"
    script.write_text(textwrap.dedent(SUPERVISOR))
    command = [sys.executable, str(script), str(plug_in), str(segment)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as harness:
        pid = int(harness.stdout.readline())
        started = children(harness.pid)
        assert pid in started
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        harness.kill()
    while not all(map(is_gone, started)):
        time.sleep(0.02)
    recorded = read_segment(segment)
    assert recorded.events
    assert not recorded.damaged


@pytest.mark.e2e
def test_a_worker_that_died_but_is_not_reaped_yet_was_not_killed_by_us(tmp_path: Path) -> None:
    group = WorkerGroup([make_plan(tmp_path)])

    async def main() -> None:
        try:
            await group.start()
            [handle] = group._handles
            handle.is_gone = True  # its pipe is closed; the process is still among the living
            await group.close()
        finally:
            await group.kill()

    trio.run(main)
    assert group.problems() == ("worker-0: ended by itself (SIGKILL)",)
