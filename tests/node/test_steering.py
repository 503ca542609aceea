"""A steered node's clock, disk and counters: what is ordered happens, and is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from shaketable.system.node.config import ConfigError, parse
from shaketable.system.node.disks.real_disk import RealDisk
from shaketable.system.node.disks.volatile_disk import VolatileDisk
from shaketable.system.node.steered.clock import SteeredClock
from shaketable.system.node.steered.disk import (
    DISK_FAULTS_MAX,
    DiskFaults,
    EffectCounters,
    SteeredDisk,
)
from shaketable.system.node.steered.orders import (
    FILE_NAME,
    ClockOrder,
    DiskFaultOrder,
    Orders,
    TripOrder,
    read_orders,
)
from shaketable.system.node.steered.steering import Steering
from shaketable.system.raft.protocol import LeadershipTransfer
from shaketable.system.store.disk import DiskFailed, DiskFull

WALL_MS = 1_700_000_000_000.0


@dataclass
class Machine:
    """A machine's clocks, moved by hand."""

    ms: float = 1000.0

    def wall_ms(self) -> float:
        return WALL_MS + self.ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SteeredClock:
    return SteeredClock(lambda: machine.ms, machine.wall_ms)


# ---- clocks --------------------------------------------------------------------------------


def test_without_orders_it_shows_the_machines_time(clock: SteeredClock, machine: Machine) -> None:
    machine.ms += 1234.5
    assert clock.now_ms() == machine.ms
    assert clock.wall_ms() == int(machine.wall_ms())


def test_an_offset_of_the_wall_clock_leaves_the_monotonic_one_alone(
    clock: SteeredClock, machine: Machine
) -> None:
    clock.follow((ClockOrder(1, offset_ms=-90_000, which="wall"),))
    assert clock.now_ms() == machine.ms
    assert clock.exact_wall_ms() == machine.wall_ms() - 90_000
    clock.follow(())
    assert clock.exact_wall_ms() == machine.wall_ms()


def test_a_monotonic_clock_is_put_ahead_once_and_never_goes_back(
    clock: SteeredClock, machine: Machine
) -> None:
    order = ClockOrder(1, offset_ms=5000, which="monotonic")
    clock.follow((order,))
    clock.follow((order, ClockOrder(2, which="wall", offset_ms=7)))
    assert clock.now_ms() == machine.ms + 5000
    clock.follow(())
    assert clock.now_ms() == machine.ms + 5000
    clock.follow((ClockOrder(3, offset_ms=-5000, which="monotonic"),))
    assert clock.now_ms() == machine.ms + 5000


def test_rates_of_both_clocks_and_what_is_left_of_them(
    clock: SteeredClock, machine: Machine
) -> None:
    clock.follow((ClockOrder(1, rate=3.0),))
    machine.ms += 1000
    assert clock.now_ms() == machine.ms + 2000
    assert clock.exact_wall_ms() == machine.wall_ms() + 2000
    clock.follow((ClockOrder(2, rate=0.0),))
    stood_at = clock.now_ms()
    machine.ms += 500
    assert clock.now_ms() == stood_at
    clock.follow(())
    machine.ms += 100
    assert clock.now_ms() == stood_at + 100
    assert clock.exact_wall_ms() == machine.wall_ms()


@pytest.mark.parametrize("offset_ms", [300.0, 50.0])
def test_a_flickering_clock_jumps_and_stands_but_never_goes_back(
    clock: SteeredClock, machine: Machine, offset_ms: float
) -> None:
    clock.follow((ClockOrder(1, offset_ms=offset_ms, strobe_ms=100),))
    shown, wall = [], []
    for _ in range(100):
        machine.ms += 7
        shown.append(clock.now_ms())
        wall.append(clock.exact_wall_ms() - machine.wall_ms())
        clock.follow((ClockOrder(1, offset_ms=offset_ms, strobe_ms=100),))  # changes nothing
    assert all(a <= b for a, b in pairwise(shown))
    assert any(a == b for a, b in pairwise(shown))
    assert max(b - a for a, b in pairwise(shown)) > 7
    assert set(wall) == {0.0, offset_ms}
    clock.follow(())
    assert clock.now_ms() == shown[-1]


@pytest.mark.parametrize("rate", [0.0, 0.5, 2.0, 7.0])
@pytest.mark.parametrize("offset_ms", [1000.0, 50.0])
def test_a_strobing_monotonic_clock_neither_jumps_nor_goes_back_when_its_rate_changes(
    clock: SteeredClock, machine: Machine, rate: float, offset_ms: float
) -> None:
    """The orders arrive in the second half of a strobe, in which the clock stops."""
    strobe = ClockOrder(1, offset_ms=offset_ms, strobe_ms=200)
    clock.follow((strobe,))
    machine.ms += 350
    before_ms = clock.now_ms()
    clock.follow((strobe, ClockOrder(2, rate=rate)))
    shown = [before_ms, clock.now_ms()]
    assert shown[1] == before_ms
    for _ in range(100):
        machine.ms += 7
        shown.append(clock.now_ms())
    assert all(a <= b for a, b in pairwise(shown))


def test_an_offset_in_the_second_half_of_a_strobe_advances_the_clock_at_once(
    clock: SteeredClock, machine: Machine
) -> None:
    strobe = ClockOrder(1, offset_ms=1000, strobe_ms=200)
    clock.follow((strobe,))
    machine.ms += 350
    before_ms = clock.now_ms()
    clock.follow((strobe, ClockOrder(2, offset_ms=70, which="monotonic")))
    assert clock.now_ms() == before_ms + 70


def test_who_waits_waits_as_the_clock_goes_now() -> None:
    async def main() -> None:
        began = trio.current_time()
        clock = SteeredClock(lambda: 1000 * trio.current_time(), lambda: 1000 * trio.current_time())
        woken: dict[int, float] = {}

        async def wait(ms: int) -> None:
            with clock.move_on_at(clock.now_ms() + ms):
                await trio.sleep_forever()
            woken[ms] = round(trio.current_time() - began, 6)

        async def steer(*orders: ClockOrder) -> None:
            clock.follow(orders)
            clock.rearm()
            await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for ms in (500, 2000, 5000):
                nursery.start_soon(wait, ms)
            await steer()
            await steer(ClockOrder(1, rate=0.0))  # for a second nothing is due
            await steer(ClockOrder(2, rate=4.0))  # 1000 + 4000 ms are shown at its end
        assert woken == {500: 0.5, 2000: 2.25, 5000: 3.0}

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# ---- disks and counters --------------------------------------------------------------------


@pytest.fixture
def effects(tmp_path: Path) -> EffectCounters:
    return EffectCounters(tmp_path)


@pytest.fixture
def disk_faults(effects: EffectCounters) -> DiskFaults:
    return DiskFaults(effects)


def _strikes(disk_faults: DiskFaults, kinds: str) -> Iterator[str]:
    for letter in kinds:
        try:
            disk_faults.inject({"r": "read", "w": "write", "s": "sync", "n": "name"}[letter], "f")
            yield "."
        except DiskFull:
            yield "F"
        except DiskFailed:
            yield "E"


@pytest.mark.parametrize(
    ("order", "calls", "struck"),
    [
        (DiskFaultOrder(1, "sync", "EIO"), "wsrs", ".E.E"),
        (DiskFaultOrder(1, "sync", "EIO", nth=2), "sss", ".EE"),
        (DiskFaultOrder(1, "write", "EIO", nth=2, times=1), "www", ".E."),
        (DiskFaultOrder(1, "read", "EIO", times=2), "rrr", "EE."),
        (DiskFaultOrder(1, "write", "ENOSPC"), "wsn", "F.."),
        (DiskFaultOrder(1, "any", "ENOSPC"), "wsrn", "FEEF"),
        (DiskFaultOrder(1, "any"), "wsrn", "...."),
    ],
)
def test_calls_that_are_struck(
    disk_faults: DiskFaults, effects: EffectCounters, order: DiskFaultOrder, calls: str, struck: str
) -> None:
    disk_faults.follow((order,))
    assert "".join(_strikes(disk_faults, calls)) == struck
    errors = len(struck) - struck.count(".")
    assert effects["errors"] == effects.fault_count(1, "errors") == errors
    disk_faults.follow(())
    assert "".join(_strikes(disk_faults, calls)) == "." * len(calls)


def test_a_slow_and_a_stalled_disk_wait_until_they_are_healed(
    disk_faults: DiskFaults, effects: EffectCounters
) -> None:
    disk_faults.follow(
        (DiskFaultOrder(1, "sync", delay_ms=5), DiskFaultOrder(2, "read", stall=True))
    )
    assert list(_strikes(disk_faults, "sw")) == [".", "."]
    assert effects.fault_count(1, "slowed") == 1
    assert effects.fault_count(1, "waited_us") >= 5000
    reader = threading.Thread(target=lambda: disk_faults.inject("read", "f"))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive(), "a stalled read returned"
    disk_faults.follow(())
    reader.join()
    assert effects.fault_count(2, "slowed") == 1
    assert effects["waited_us"] >= 55_000


def test_a_harms_record_is_its_own(effects: EffectCounters) -> None:
    effects.count_fault(3, calls=5)
    effects.count_fault(3 + DISK_FAULTS_MAX, calls=1)
    assert effects.fault_count(3 + DISK_FAULTS_MAX, "calls") == 1
    assert effects.fault_count(3, "calls") == 0


def test_every_door_of_the_disk_is_counted(tmp_path: Path, effects: EffectCounters) -> None:
    def begin(kind: str, _: str) -> None:
        effects.count(kind)

    disk = SteeredDisk(RealDisk(), begin)
    path = str(tmp_path / "file")
    file = disk.create(path, 100)
    file.pwrite([b"abc"], 10)
    file.grow(200)
    file.sync()
    assert file.pread(3, 10) == b"abc"
    assert file.size == 200
    assert file.data_ranges(0)
    file.close()
    assert disk.exists(path)
    disk.rename(path, path + "2")
    disk.make_dirs(str(tmp_path / "more"))
    disk.sync_dir(str(tmp_path))
    disk.open(path + "2").close()
    disk.unlink(path + "2")
    assert disk.names(str(tmp_path)) == ["effects", "more"]
    assert 0 < disk.used_ratio(str(tmp_path)) <= 1
    counted = {kind: effects[kind] for kind in ("read", "write", "sync", "name")}
    assert counted == {"read": 1, "write": 3, "sync": 2, "name": 3}


def test_what_a_killed_process_held_is_known_afterwards(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from shaketable.system.node.steered.disk import EffectCounters\n"
        "from shaketable.system.node.disks.real_disk import RealDisk\n"
        "from shaketable.system.node.disks.volatile_disk import VolatileDisk\n"
        "folder = Path(sys.argv[1])\n"
        "effects = EffectCounters(folder)\n"
        "disk = VolatileDisk(RealDisk(), lambda held: effects.set(unsynced_bytes=held))\n"
        "file = disk.create(str(folder / 'log'), 4096)\n"
        "disk.sync_dir(sys.argv[1])\n"
        "file.pwrite([b'x' * 100], 0)\n"
        "file.sync()\n"
        "file.pwrite([b'y' * 30], 100)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    written = (tmp_path / "log").read_bytes()
    assert written[:130] == b"x" * 100 + bytes(30)
    effects = EffectCounters(tmp_path)
    assert (effects["lost_bytes"], effects["losses"], effects["unsynced_bytes"]) == (30, 1, 0)
    assert effects["starts"] == 2


def test_bytes_on_their_way_to_the_disk_are_not_called_lost(tmp_path: Path) -> None:
    held: list[int] = []
    disk = VolatileDisk(RealDisk(), held.append)
    file = disk.create(str(tmp_path / "log"), 4096)
    disk.sync_dir(str(tmp_path))
    file.pwrite([b"x" * 100], 0)
    assert held[-1] == 100
    del held[:]
    file.sync()
    assert set(held) == {0}, "told while they are let through, and after"
    assert disk.unsynced_bytes == 0


# ---- orders --------------------------------------------------------------------------------


def test_orders_are_read_as_they_are_written() -> None:
    orders = Orders(
        3, (ClockOrder(1, 5.0),), (DiskFaultOrder(2, "sync"),), (TripOrder(4, "sync", 7, "stop"),)
    )
    assert read_orders(msgspec.json.encode(orders)) == orders
    for wrong in (
        b"",
        b"{",
        b'{"clocks": 3}',
        b'{"versoin": 3}',
        b'{"disk_faults": [{"number": 1.5}]}',
    ):
        with pytest.raises(ValueError, match=r"."):
            read_orders(wrong)


def test_a_trip_strikes_the_process_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: struck.append(pid))
    trips = (TripOrder(1, "message", pid=os.getpid() + 1), TripOrder(2, "message", nth=2))
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(Orders(1, trips=trips)))
    steering = Steering(tmp_path)
    message = LeadershipTransfer(0, "n0")
    steering.on_message(message)
    assert struck == []
    steering.on_message(message)
    assert struck == [os.getpid()]
    trips = (TripOrder(3, "message", pid=os.getpid()),)
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(Orders(2, trips=trips)))
    steering = Steering(tmp_path)
    steering.on_message(message)
    assert struck == [os.getpid()] * 2


CONF = """
listenPort=1
storePathRootDir=/store
enableDLegerCommitLog=true
dLegerGroup=g
dLegerPeers=n0-127.0.0.1:2
dLegerSelfId=n0
"""


def test_keys_of_the_configuration() -> None:
    plain = parse(CONF)
    assert plain.steering is None
    assert plain.raft.clock_drift_max == 0.1
    steered = parse(CONF + "shaketableSteering=/s\nshaketableClockDriftMax=0.25\n")
    assert steered.steering == Path("/s")
    assert steered.raft.clock_drift_max == 0.25
    for wrong in ("1", "-0.1", "0.1e5", "nan", ".5", ""):
        with pytest.raises(ConfigError, match="shaketableClockDriftMax"):
            parse(CONF + f"shaketableClockDriftMax={wrong}\n")
