"""A fault answers for the ends that it caused, and for no other; what is undone was undone."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from fake_target import FakeTarget

from shaketable.harness.contracts.abilities import DurableRange
from shaketable.harness.contracts.capabilities import ClockChange, Damage, DiskFaultSpec, Resources
from shaketable.harness.contracts.plugins import UNTOUCHED, Address, Json, Launch, NodeLayout
from shaketable.harness.runtime.processes.crash_message import crash_message
from shaketable.harness.runtime.processes.disks import Damages, Disks, Member, ProcessMachines
from shaketable.harness.runtime.processes.limited_processes import REFUSALS, ResourceLimits
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.processes.steered import SteeredNodes
from shaketable.harness.runtime.stored_logs import Stored

PATIENCE_S = 30
ANYWHERE = Address("127.0.0.1", 1)


class Orders:
    """A node's orders; it "obeys" at once, and counts what a test says. May be `full`."""

    def __init__(self) -> None:
        self.errors = 0
        self.full = False
        self.trips: Callable[[], None] | None = None
        self.version = 0
        self.now: list[Sequence[Mapping[str, object]]] = [(), (), ()]

    def order(self, *orders: Sequence[Mapping[str, object]]) -> int:
        if self.full:
            raise OSError("no space left")
        self.now = [*orders]
        if orders[2] and self.trips is not None:
            self.trips()
        self.version += 1
        return self.version

    def effects(self) -> Mapping[str, int]:
        return {"control_version": self.version, "unsynced_bytes": 7}

    def disk_fault(self, number: int) -> Mapping[str, int]:
        return {"errors": self.errors}


class Group:
    """One node whose process reads what it has to do; implements what starts nodes."""

    name = "one"

    def __init__(self, folder: Path) -> None:
        self.orders = Orders()
        self.fails: list[str] = []
        (folder / "n0").mkdir()
        launch = Launch((sys.executable, "-c", PROGRAM, str(folder / "do")), {})
        self.do = folder / "do"
        self.process = NodeProcess("n0", launch, folder / "n0", folder / "n0" / "log", 0)
        layout = NodeLayout("n0", folder / "n0", ANYWHERE, ANYWHERE, {}, {})
        self.member = Member(layout, self.process)
        members = {"n0": self.member}
        self.steered = SteeredNodes(self, members, self)  # type: ignore[arg-type]
        self.resource_limits = ResourceLimits(members, self, lambda _: True)

    def steering(self, layout: NodeLayout) -> Orders:
        return self.orders

    async def kill(self, node: str) -> Json:
        was = self.process.is_running
        await self.process.kill()
        return {"incarnation": self.process.incarnation if was else UNTOUCHED}

    async def restart(self, node: str, incarnation: int) -> None:
        if self.fails:
            raise OSError(self.fails.pop())
        if self.process.incarnation == incarnation and not self.process.is_running:
            self.process.start()

    async def end(self, words: str, code: int = 3) -> bool:
        """Let the process say that and end; return whether a fault answers for it."""
        self.do.write_text(f"import os; os.write(2, {words.encode()!r}); os._exit({code})")
        ended = await self.process.wait()
        self.do.unlink()
        return ended.asked


PROGRAM = """
import pathlib, sys, time
while True:
    try:
        code = pathlib.Path(sys.argv[1]).read_text()
    except FileNotFoundError:
        code = ""
    exec(code)
    time.sleep(0.005)
"""


NO_MEMORY_TO_SAY_SO = b"""level=INFO event=membership voters=n10,n14 learners=-
object address  : 0x7f2ae6b70f40
object refcount : 2
object type     : 0x7f2ae724d480
object type name: MemoryError
object repr     : MemoryError()
lost sys.stderr
Traceback (most recent call last):
Exception ignored in sys.unraisablehook"""
"""As a node ended in a run of all faults: it had room for the heading of its last words alone."""
GO_PANIC = b"""panic: open /data: too many open files [recovered]
\tpanic: open /data: too many open files
[signal SIGABRT: abort code=0x1 addr=0x0 pc=0x46]

goroutine 7 gp=0xc0000021c0 m=0 mp=0x5a [running]:
main.(*Log).append(0xc00001c0a8, {0xc0, 0x7})
\t/src/log.go:71 +0x1d
panic({0x46c5a0?, 0x4b2a60?})
\t/usr/lib/go/src/runtime/panic.go:770 +0x132
...12 frames elided...
created by main.main in goroutine 1
\t/src/main.go:9 +0x25
exit status 2
"""
HOTSPOT_NO_MEMORY = b"""#
# There is insufficient memory for the Java Runtime Environment to continue.
# Native memory allocation (mmap) failed to map 986513408 bytes for committing reserved memory.
# An error report file with more information is saved as:
# /data/hs_err_pid7.log
"""
HOTSPOT_CRASH = b"""#
# A fatal error has been detected by the Java Runtime Environment:
#
#  SIGSEGV (0xb) at pc=0x7f, pid=7, tid=8
#
# JRE version: OpenJDK Runtime Environment (17.0.9+9)
"""
HOTSPOT_HEAP = b"""java.lang.OutOfMemoryError: Java heap space
#
# A fatal error has been detected by the Java Runtime Environment:
#
#  Internal Error (debug.cpp:271), pid=7, tid=8
#  fatal error: OutOfMemory encountered: Java heap space
#
"""


class NoLogs:
    async def count(self, layout: NodeLayout) -> Stored:
        return Stored(0, 0, 0)


@contextmanager
def one(folder: Path) -> Iterator[Group]:
    group = Group(folder)
    group.process.start()
    try:
        yield group
    finally:
        if group.process.pid is not None:
            os.kill(group.process.pid, signal.SIGKILL)
            assert group.process._process is not None
            group.process._process.wait()


def run(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def patient() -> None:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(patient)


@pytest.mark.parametrize(
    ("taken", "words", "is_of_it"),
    [
        (Resources(cpu_share=0.5), "AssertionError", False),
        (Resources(memory_spare_bytes=1 << 30), "AssertionError", False),
        (Resources(memory_spare_bytes=1 << 30), "MemoryError", True),
        (Resources(descriptors_spare=9), "AssertionError", False),
        (Resources(descriptors_spare=9), "Too many open files", True),
    ],
)
def test_who_was_refused_nothing_ended_by_itself(
    tmp_path: Path, taken: Resources, words: str, is_of_it: bool
) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            name = await group.resource_limits.limit_resources("n0", taken, nursery)
            assert await group.end(words) == is_of_it
            assert (group.resource_limits.limit_effects(name)["ended"] is not None) == is_of_it
            await group.resource_limits.lift_limits(name)
            assert group.process.incarnation == 1 + is_of_it, "started again only if ended of it"

    run(main)


@pytest.mark.parametrize(
    ("early", "last", "is_of_it"),
    [
        ("OSError: [Errno 24] Too many open files\n", "stopped: Too many open files", True),
        ("OSError: [Errno 24] Too many open files\n", "AssertionError: an entry changed", False),
        ("", "stopped: Too many open files", False),
    ],
)
def test_who_was_refused_may_take_its_leave_after_it_got_it_back(
    tmp_path: Path, early: str, last: str, is_of_it: bool
) -> None:
    """From a run of 20 minutes: a node ended 70 ms after, and stayed down for the rest of it."""

    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            taken = await group.resource_limits.limit_resources(
                "n0", Resources(descriptors_spare=9), nursery
            )
            group.do.write_text(
                "import os\n"
                f"os.write(2, {early.encode()!r})\n"
                "pathlib.Path(sys.argv[1] + '.said').touch()\n"
                "time.sleep(0.3)\n"
                f"os.write(2, {last.encode()!r}); os._exit(74)"
            )
            while not Path(f"{group.do}.said").exists():
                await trio.sleep(0.01)
            group.do.unlink()
            ended: list[bool] = []

            async def watch() -> None:
                ended.append((await group.process.wait()).asked)

            nursery.start_soon(watch)
            await trio.lowlevel.checkpoint()
            await group.resource_limits.lift_limits(taken)
            while not ended:
                await trio.sleep(0.01)
            assert ended == [is_of_it]
            assert group.process.incarnation == (2 if is_of_it else 1)

    run(main)


def say(group: Group, words: str) -> None:
    """Let the process say that, and go on."""
    group.do.write_text(
        f"import os; os.write(2, {words.encode()!r}); pathlib.Path(sys.argv[1]).unlink()"
    )


async def gone(path: Path) -> None:
    while path.exists():
        await trio.sleep(0.01)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes wait for moments only, but long enough for a process that a busy machine lets wait."""
    monkeypatch.setattr(
        "shaketable.harness.runtime.processes.limited_processes.PAUSED_TIMEOUT_S", 0.1
    )
    monkeypatch.setattr(
        "shaketable.harness.runtime.processes.limited_processes.DYING_TIMEOUT_S", 2.0
    )
    monkeypatch.setattr("shaketable.harness.runtime.processes.steered.FALL_TIMEOUT_S", 2.0)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(
    ("after_s", "last", "is_of_it"),
    [
        (0.0, "stopped: Too many open files", True),
        (0.0, "AssertionError: an entry changed", False),
        (3.0, "stopped: Too many open files", False),
    ],
)
def test_who_was_refused_and_paused_for_long_may_end_of_it_when_it_goes_on(
    tmp_path: Path, after_s: float, last: str, is_of_it: bool
) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            taken = await group.resource_limits.limit_resources(
                "n0", Resources(descriptors_spare=9), nursery
            )
            say(group, "OSError: [Errno 24] Too many open files\n")
            await gone(group.do)
            await group.process.pause()
            await group.resource_limits.lift_limits(taken)
            assert group.process.is_running
            await end_after_pause(group, after_s, last, is_of_it)

    run(main)


async def end_after_pause(group: Group, after_s: float, last: str, is_of_it: bool) -> None:
    """Let a process that was given up waiting for go on and end; look who answers for that."""
    if after_s:
        group.process.resume()
        await trio.sleep(after_s)
        assert await group.end(last) == is_of_it
    else:
        group.do.write_text(f"import os; os.write(2, {last.encode()!r}); os._exit(74)")
        await trio.sleep(0.4)
        group.process.resume()
        assert (await group.process.wait()).asked == is_of_it
        group.do.unlink()
    await trio.sleep(0.2)
    assert group.process.is_running == is_of_it, "started again only if ended of it"
    if is_of_it:
        assert not await group.end(last), "the next one is not excused"


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("after_s", [0.0, 3.0])
def test_a_node_paused_for_long_ends_of_its_disk_when_it_goes_on(
    tmp_path: Path, after_s: float
) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            group.steered.nursery = nursery
            disk_fault = await group.steered.inject_disk_fault(
                "n0", DiskFaultSpec(op="sync", error="EIO")
            )
            group.orders.errors = 1
            await group.process.pause()
            await group.steered.heal_disk(disk_fault)
            await end_after_pause(group, after_s, "sync failed", not after_s)

    run(main)


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (b"up\nMemoryError: \n", b"MemoryError:"),
        (b"OSError: Too many open files\n--- shaketable: n0 paused at 3 s\n\n", b"Too many open"),
        (
            b"  + Exception Group Traceback (most recent call last):\n  |   File x\n"
            b"  | ExceptionGroup: 1 sub-exception\n  +-+---------------- 1 ----------------\n"
            b"    | MemoryError\n    +------------------------------------\n",
            b"MemoryError",
        ),
        (b"object repr     : MemoryError()\nlost sys.stderr\n", b"MemoryError"),
        (NO_MEMORY_TO_SAY_SO, b"MemoryError"),
        (
            b"MemoryError\nException ignored in: <f>\nTraceback (most recent call last):\n"
            b"KeyError: 3\n",
            b"KeyError",
        ),
        (b"java.lang.OutOfMemoryError: x\n\tat a.b(C.java:1)\n\t... 3 more\n", b"OutOfMemory"),
        (b"fatal error: runtime: out of memory\n\ngoroutine 1 [running]:\nmain.f()\n", b"memory"),
        (b"MemoryError\nAssertionError: an entry changed\n", b"AssertionError"),
        (b"", b""),
        (b"MemoryError\n--- shaketable: n0 incarnation 2 starts at 3.1 s\n", b""),
        (
            b"MemoryError\n--- shaketable: n0 incarnation 2 starts at 3.1 s\nup\n"
            b"--- shaketable: n0 incarnation 3 starts at 4.1 s\nassertion failed\n",
            b"assertion failed",
        ),
        (GO_PANIC, b"panic: open /data: too many open files"),
        (GO_PANIC + b"listening again\nchecksum of entry 7 is wrong\n", b"checksum of entry 7"),
        (b"panic: no space\n" + GO_PANIC, b"panic: open /data"),
        (b"panic: out of memory\nrecovered\n", b"recovered"),
        (HOTSPOT_NO_MEMORY, b"There is insufficient memory"),
        (HOTSPOT_NO_MEMORY + b"an entry changed\n", b"an entry changed"),
        (b"MemoryError\n" + HOTSPOT_CRASH, b"SIGSEGV (0xb) at pc=0x7f"),
        (HOTSPOT_HEAP, b"fatal error: OutOfMemory encountered: Java heap space"),
        (b"OSError: Too many open files\n# see the manual\n#\n", b"Too many open"),
    ],
)
def test_the_line_by_which_a_process_told_why_it_ended(said: bytes, last: bytes) -> None:
    assert last in crash_message(said)
    assert last or not crash_message(said)


def test_a_jvm_without_memory_says_so() -> None:
    assert REFUSALS[resource.RLIMIT_AS].search(crash_message(HOTSPOT_NO_MEMORY))


def test_a_disk_answers_for_the_incarnation_whose_calls_failed(tmp_path: Path) -> None:
    async def main(_: trio.Nursery) -> None:
        with one(tmp_path) as group:
            disk_fault = await group.steered.inject_disk_fault(
                "n0", DiskFaultSpec(op="sync", error="EIO")
            )
            assert not await group.end("a bug of its own")
            assert not group.steered.disk_fault_effects(disk_fault)["ended"]
            group.process.start()
            group.orders.errors = 1
            assert await group.end("sync failed")
            assert group.steered.disk_fault_effects(disk_fault)["ended"]
            group.process.start()
            assert not await group.end("a bug of its own"), "this one's calls did not fail"
            assert not group.steered.disk_fault_effects(disk_fault)["ended"]

    run(main)


@pytest.mark.parametrize(
    ("errors", "words", "is_of_it"),
    [
        (1, "event=stopped error=cannot write store/abort: no space left on device", True),
        (1, "AssertionError: a committed entry changed", False),
        (0, "event=stopped error=cannot write store/abort: no space left on device", False),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_node_may_end_of_a_full_disk_while_it_starts(
    tmp_path: Path, errors: int, words: str, is_of_it: bool, is_late: bool
) -> None:
    """From a run of 20 minutes: a wiped node that came back found its disk full: it stayed down."""

    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            disk_fault = await group.steered.inject_disk_fault(
                "n0", DiskFaultSpec(op="write", error="ENOSPC")
            )
            group.orders.errors = errors
            if not is_late:
                assert await group.end(words) == is_of_it
                await group.steered.heal_disk(disk_fault)
            else:
                nursery.start_soon(group.steered.heal_disk, disk_fault)
                await trio.sleep(0.2)
                assert await group.end(words) == is_of_it
                while is_of_it and group.process.incarnation == 1:
                    await trio.sleep(0.01)
            assert group.process.incarnation == 1 + is_of_it
            assert group.steered.disk_fault_effects(disk_fault)["ended"] == is_of_it

    run(main)


def test_a_node_that_survived_its_harm_is_not_excused_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shaketable.harness.runtime.processes.steered.FALL_TIMEOUT_S", 0.05)

    async def main(_: trio.Nursery) -> None:
        with one(tmp_path) as group:
            disk_fault = await group.steered.inject_disk_fault(
                "n0", DiskFaultSpec(op="read", error="EIO")
            )
            group.orders.errors = 1
            await group.steered.heal_disk(disk_fault)
            assert not await group.end("a bug of its own")

    run(main)


def test_an_undo_that_could_not_be_done_is_done_when_it_is_tried_again(tmp_path: Path) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            skewed = await group.steered.skew("n0", ClockChange(offset_ms=5))
            disk_fault = await group.steered.inject_disk_fault(
                "n0", DiskFaultSpec(op="sync", error="EIO")
            )
            group.orders.errors, group.orders.full = 1, True
            assert await group.end("sync failed")
            for undo in (
                lambda: group.steered.unskew("n0", skewed),
                lambda: group.steered.heal_disk(disk_fault),
            ):
                with pytest.raises(OSError, match="no space"):
                    await undo()
            group.orders.full = False
            await group.steered.unskew("n0", skewed)
            group.fails = ["cannot start"]
            with pytest.raises(OSError, match="cannot start"):
                await group.steered.heal_disk(disk_fault)
            await group.steered.heal_disk(disk_fault)
            assert group.orders.now == [[], [], []]
            assert group.process.incarnation == 2

            taken = await group.resource_limits.limit_resources(
                "n0", Resources(memory_spare_bytes=1 << 30), nursery
            )
            assert await group.end("MemoryError")
            group.fails = ["cannot start"]
            with pytest.raises(OSError, match="cannot start"):
                await group.resource_limits.lift_limits(taken)
            await group.resource_limits.lift_limits(taken)
            assert group.process.incarnation == 3

    run(main)


def test_power_is_given_back_to_whoever_lost_it(tmp_path: Path) -> None:
    async def main(_: trio.Nursery) -> None:
        with one(tmp_path) as group:
            group.orders.trips = lambda: os.kill(group.process.pid or 0, signal.SIGKILL)
            lost = await group.steered.lose_power(["n0"], "sync:1")
            assert lost == {"incarnations": {"n0": 1}, "lost_bytes": {"n0": 7}}
            assert not group.process.is_running
            group.process.start()
            group.orders.trips = None
            await group.kill("n0")  # another fault does that
            lost = await group.steered.lose_power(["n0"], "")
            assert lost["incarnations"] == {"n0": UNTOUCHED}
            group.process.start()
            group.orders.full = True
            with pytest.raises(OSError, match="no space"):
                await group.steered.lose_power(["n0"], "sync:1")
            group.orders.full = False
            assert not await group.end("a bug of its own"), "nothing excuses it any more"
            assert group.steered.give_up() == []

    run(main)


def test_a_node_that_was_replaced_while_it_should_trip_is_struck_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shaketable.harness.runtime.processes.steered.TRIP_TIMEOUT_S", 2.0)
    monkeypatch.setattr(
        "shaketable.harness.runtime.processes.steered.OBEY_POLL_S", 60.0
    )  # it looks when that is over

    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:

            async def replace() -> None:
                await trio.sleep(0.1)
                await group.kill("n0")
                group.process.start()

            nursery.start_soon(replace)
            lost = await group.steered.lose_power(["n0"], "sync:1000")
            assert lost["incarnations"] == {"n0": 2}

    run(main)


def test_who_was_killed_and_replaced_is_not_waited_for_nor_tripped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a node ends by a signal that nothing excuses: such a healthy run was UNKNOWN."""
    monkeypatch.setattr("shaketable.harness.runtime.processes.steered.TRIP_TIMEOUT_S", 60.0)
    ordered: list[Sequence[Mapping[str, object]]] = []

    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            first = group.process.pid

            async def replace() -> None:
                await trio.sleep(0.1)
                ordered.append(list(group.orders.now[2]))
                await group.kill("n0")
                group.process.start()
                await trio.sleep(0.1)
                ordered.append(list(group.orders.now[2]))

            nursery.start_soon(replace)
            with trio.fail_after(10):
                lost = await group.steered.lose_power(["n0"], "sync:1000")
            assert [each["pid"] for each in ordered[0]] == [first]
            assert lost["incarnations"] == {"n0": 2}
            await trio.sleep(0.2)
            assert ordered[1] == []
            before = group.orders.version
            lost = await group.steered.lose_power(["n0"], "sync:1")
            assert lost["incarnations"] == {"n0": UNTOUCHED}
            assert group.orders.version == before, "who does not run is given no order"

    run(main)


def test_orders_that_nobody_took_back_are_found(tmp_path: Path) -> None:
    async def main(_: trio.Nursery) -> None:
        with one(tmp_path) as group:
            await group.steered.skew("n0", ClockChange(offset_ms=5))
            await group.steered.inject_disk_fault("n0", DiskFaultSpec(op="sync", error="EIO"))
            assert group.steered.give_up() == ["orders to n0 were still in force: clocks, disk"]
            assert group.orders.now == [[], [], []]
            group.orders.errors = 1
            assert not await group.end("a bug of its own")
            assert group.steered.give_up() == []

    run(main)


def test_a_disk_that_could_not_be_deleted_leaves_its_node_running(tmp_path: Path) -> None:
    class Loses(FakeTarget):
        def store(self, layout: NodeLayout) -> Path:
            return layout.directory / "nothing here"

        def why_no_disk_may_go(self, nodes: Sequence[str]) -> None: ...

        def why_not_now(self, node: str, missing: Sequence[str]) -> None: ...

        async def renew(self, layouts: object, node: str, lost: object) -> dict[str, Launch]:
            return {node: group.process.launch}

        async def readmit(self, *_: object) -> None: ...

    class Starts:
        def start(self, node: str) -> None:
            group.process.start()

    async def main(_: trio.Nursery) -> None:
        await group.kill("n0")
        machines = ProcessMachines({"n0": group.member}, Starts(), NoLogs())
        disks = Disks(Loses(), machines)
        with pytest.raises(FileNotFoundError):
            await disks.lose("n0")
        assert group.process.is_running
        assert not disks.awaited

    with one(tmp_path) as group:
        run(main)


def test_limits_that_overlap_end_as_they_were(tmp_path: Path) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            pid = group.process.pid
            assert pid is not None

            def limit() -> int:
                return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]

            was = limit()
            first = await group.resource_limits.limit_resources(
                "n0", Resources(descriptors_spare=30), nursery
            )
            less = limit()
            second = await group.resource_limits.limit_resources(
                "n0", Resources(descriptors_spare=10), nursery
            )
            least = limit()
            assert least < less < was
            await group.resource_limits.lift_limits(first)
            assert limit() == least
            await group.resource_limits.lift_limits(second)
            assert limit() == was

    run(main)


def test_nothing_is_taken_from_a_process_that_ended_meanwhile(tmp_path: Path) -> None:
    async def main(nursery: trio.Nursery) -> None:
        with one(tmp_path) as group:
            nursery.start_soon(group.kill, "n0")
            much = Resources(cpu_share=0.5, descriptors_spare=3)
            assert await group.resource_limits.limit_resources("n0", much, nursery) == ""

    run(main)


def test_a_node_that_serves_with_a_damaged_store_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shaketable.harness.runtime.processes.disks.SERVES_TIMEOUT_S", 0.1)
    answering: list[str] = []

    class Notices(FakeTarget):
        def store(self, layout: NodeLayout) -> Path:
            return tmp_path

        def why_no_disk_may_go(self, nodes: Sequence[str]) -> None: ...

        def why_not_now(self, node: str, missing: Sequence[str]) -> None: ...

        async def renew(self, *_: object) -> dict[str, Launch]:
            return {}

        async def readmit(self, *_: object) -> None: ...

        def durable_ranges(self, layout: NodeLayout) -> list[DurableRange]:
            return [DurableRange(tmp_path / "log", 0, 9)]

    async def main(_: trio.Nursery) -> None:
        damages = Damages(Notices(), {"n0": group.member}, lambda _: bool(answering), NoLogs())
        answering.append("n0")
        assert await damages.watch("n0") == {"refused": None, "serves": True}
        assert damages.remarks == [], "all its bytes are there"
        await group.kill("n0")
        (tmp_path / "log").write_bytes(b"123456789")
        await damages.damage("n0", Damage(how="flip", bytes_=1, seed="7"))
        group.process.start()
        answering.clear()
        assert await damages.watch("n0") == {"refused": None, "serves": False}
        assert damages.remarks == []
        answering.append("n0")
        assert await damages.watch("n0") == {"refused": None, "serves": True}
        assert damages.remarks == [
            "node n0 (incarnation 2) serves with a damaged store, and did not notice"
        ]

    with one(tmp_path) as group:
        run(main)
