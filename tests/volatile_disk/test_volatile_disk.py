"""A volatile disk, mounted: what programs on it lose, and how its calls fail, wait and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import unsynced_writers as writers

from shaketable.harness import guard
from shaketable.harness.contracts.capabilities import DiskFaultSpec
from shaketable.harness.volatile_disk.disk import KEPT, VolatileDisk

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("fuse")]

ROOT = Path(__file__).parents[2]
SOAK = ROOT / "tests" / "soaks" / "unsynced_writes.py"
TRIES = 12
WAIT_S = 30.0


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.005)


@contextmanager
def mounted(folder: Path) -> Iterator[VolatileDisk]:
    (folder / "disk").mkdir(exist_ok=True)
    disk = VolatileDisk("n0", folder / "disk")
    try:
        disk.ready()
        yield disk
    finally:
        disk.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[VolatileDisk]:
    with mounted(tmp_path) as disk:
        yield disk


@contextmanager
def program(disk: VolatileDisk, folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program in the folder of the disk, with `os`, `sys` and `out` to print at once."""
    start = "import os, sys, errno\ndef out(what): print(what, flush=True)\n"
    argv = [sys.executable, "-I", "-S", "-c", start + textwrap.dedent(text)]
    command = guard.command([*disk.enter_command(folder / "disk"), *argv], os.getpid())
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(disk: VolatileDisk, folder: Path, text: str) -> list[str]:
    with program(disk, folder, text) as process:
        return process.communicate(timeout=WAIT_S)[0].split()


def fault(number: int, **more: object) -> dict[str, object]:
    return {"number": number, **DiskFaultSpec(**more).to_json()}  # type: ignore[arg-type]


def test_programs_lose_exactly_what_they_had_not_synced(tmp_path: Path) -> None:
    python = [sys.executable, "-I", "-S", str(writers.PYTHON_WRITER)]
    programs = [python, [str(writers.compiled(tmp_path))]]
    with mounted(tmp_path) as disk:
        for number in range(TRIES):
            played = writers.play(disk, tmp_path, programs[number % 2], f"sample-{number}")
            assert played.left == played.expected, played.seed
            assert played.is_right, played


def test_the_same_without_root() -> None:
    drop = ["setpriv", "--bounding-set", "-sys_admin"] if os.geteuid() == 0 else []
    argv = [*drop, sys.executable, str(SOAK), "--tries", "4", "--seed", "user"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 lost exactly" in done.stdout


def test_a_killed_program_loses_nothing_while_there_is_power(
    tmp_path: Path, disk: VolatileDisk
) -> None:
    unsynced = (
        "os.write(os.open('a', os.O_CREAT | os.O_RDWR), b'unsynced'); os.kill(os.getpid(), 9)"
    )
    said(disk, tmp_path, unsynced)
    assert said(disk, tmp_path, "out(open('a').read())") == ["unsynced"]
    assert disk.lose()["bytes"] == len("unsynced")
    assert said(disk, tmp_path, "out(len(os.listdir()))") == ["0"]


def test_the_tree_is_there_when_the_disk_is_gone(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk:
        said(disk, tmp_path, "os.mkdir('d'); open('d/a', 'w').write('x')")
    assert (tmp_path / "disk" / "d" / "a").read_text() == "x"
    assert not (tmp_path / KEPT).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk"]


def test_calls_fail_as_ordered_and_are_counted(tmp_path: Path, disk: VolatileDisk) -> None:
    write = """
    file = os.open('a', os.O_CREAT | os.O_RDWR)
    for _ in range(3):
        try:
            os.pwrite(file, b'x' * 10, 0), os.fsync(file), out('ok')
        except OSError as error:
            out(errno.errorcode[error.errno])
    """
    assert said(disk, tmp_path, write) == ["ok"] * 3
    disk.order(disk_faults=[fault(1, op="sync", error="EIO", nth=2)])
    assert said(disk, tmp_path, write) == ["ok", "EIO", "EIO"]
    assert disk.disk_fault(1)["errors"] == 2
    disk.order(disk_faults=[fault(2, op="sync", error="EIO", nth=1, times=1)])
    assert said(disk, tmp_path, write) == ["EIO", "ok", "ok"]
    disk.order()
    assert said(disk, tmp_path, write) == ["ok"] * 3
    assert disk.disk_fault(1)["errors"] == 2, "also when it is over"
    assert disk.effects()["errors"] == 3


def test_a_full_disk_takes_what_needs_no_room(tmp_path: Path, disk: VolatileDisk) -> None:
    said(disk, tmp_path, "open('a', 'w').write('x' * 10)")
    disk.order(disk_faults=[fault(1, op="write", error="ENOSPC")])
    tries = """
    for name, at in (('a', 0), ('a', 10), ('b', 0)):
        try:
            os.pwrite(os.open(name, os.O_CREAT | os.O_RDWR), b'y', at), out('ok')
        except OSError as error:
            out(errno.errorcode[error.errno])
    out(os.statvfs('.').f_bavail)
    """
    assert said(disk, tmp_path, tries) == ["ok", "ENOSPC", "ENOSPC", "0"]


def test_reads_fail_though_the_kernel_has_the_bytes(tmp_path: Path, disk: VolatileDisk) -> None:
    said(disk, tmp_path, "open('a', 'w').write('x' * 10); open('a').read()")
    disk.order(disk_faults=[fault(1, op="read", error="EIO")])
    read = """
    try:
        out(open('a').read())
    except OSError as error:
        out(errno.errorcode[error.errno])
    """
    assert said(disk, tmp_path, read) == ["EIO"]
    disk.order()
    assert said(disk, tmp_path, read) == ["x" * 10]


SYNC = """
file = os.open('a', os.O_CREAT | os.O_RDWR)
os.write(file, b'x')
out('writes')
os.fsync(file)
out('synced')
"""


def test_a_slow_call_waits(tmp_path: Path, disk: VolatileDisk) -> None:
    disk.order(disk_faults=[fault(1, op="sync", delay_ms=60)])
    assert said(disk, tmp_path, SYNC) == ["writes", "synced"]
    found = disk.disk_fault(1)
    assert found["slowed"] == 1
    assert found["waited_us"] >= 60_000


def test_a_stalled_call_goes_on_when_the_fault_is_over(tmp_path: Path, disk: VolatileDisk) -> None:
    disk.order(disk_faults=[fault(1, op="sync", stall=True)])
    with program(disk, tmp_path, SYNC) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        until(lambda: disk.disk_fault(1).get("slowed") == 1)
        assert said(disk, tmp_path, "out(len(os.listdir()))") == ["1"], "others do not wait"
        disk.order()
        assert process.stdout.readline() == "synced\n"
    assert disk.disk_fault(1)["waited_us"] > 0


def test_a_killed_process_does_not_wait_for_its_stalled_call(
    tmp_path: Path, disk: VolatileDisk
) -> None:
    disk.order(disk_faults=[fault(1, op="any", stall=True)])
    with program(disk, tmp_path, SYNC) as process:
        until(lambda: disk.disk_fault(1).get("slowed", 0) >= 1)
        process.kill()
        assert process.wait(WAIT_S) == -signal.SIGKILL


def test_a_trip_ends_the_process_before_the_call_has_an_effect(
    tmp_path: Path, disk: VolatileDisk
) -> None:
    with program(disk, tmp_path, "sys.stdin.readline()" + SYNC * 2) as process:
        trip = {"number": 1, "on": "sync", "nth": 2, "what": "kill", "pid": process.pid}
        disk.order(trips=[trip])
        shown, _ = process.communicate("go\n", timeout=WAIT_S)
    assert shown.split() == ["writes", "synced", "writes"]
    assert process.returncode == -signal.SIGKILL
    assert disk.effects()["unsynced_bytes"] == 1
    assert disk.lose() == {"bytes": 1, "entries": 0, "sizes": 0}


def test_a_trip_for_a_process_that_is_gone_ends_no_other(
    tmp_path: Path, disk: VolatileDisk
) -> None:
    with program(disk, tmp_path, SYNC) as first:
        first.communicate(timeout=WAIT_S)
    disk.order(trips=[{"number": 1, "on": "sync", "nth": 1, "what": "kill", "pid": first.pid}])
    with program(disk, tmp_path, SYNC * 2) as second:
        shown, _ = second.communicate(timeout=WAIT_S)
    assert shown.split() == ["writes", "synced"] * 2
    assert second.returncode == 0
    assert disk.tripped() is None


def test_a_trip_at_a_write_leaves_it_unsynced(tmp_path: Path, disk: VolatileDisk) -> None:
    with program(disk, tmp_path, "sys.stdin.readline()" + SYNC) as process:
        trip = {"number": 1, "on": "write", "nth": 1, "what": "kill", "pid": process.pid}
        disk.order(trips=[trip])
        shown, _ = process.communicate("go\n", timeout=WAIT_S)
    assert shown == ""
    assert disk.lose() == {"bytes": 1, "entries": 1, "sizes": 0}


RENAMES = """
    sys.stdin.readline()
    os.mkdir("d"), os.close(os.open("a", os.O_CREAT)), os.rename("a", "d/b")
"""


@pytest.mark.parametrize(
    ("call", "path"), [("mkdir", "d"), ("create", "a"), ("rename", "a"), ("fsync", "")]
)
def test_a_trip_at_a_named_call_ends_the_process_that_calls(
    tmp_path: Path, disk: VolatileDisk, call: str, path: str
) -> None:
    with program(disk, tmp_path, RENAMES + "    out('end')") as process:
        disk.order(trips=[{"number": 1, "call": call, "nth": 1}])
        assert disk.tripped() is None
        shown, _ = process.communicate("go\n", timeout=WAIT_S)
    if call == "fsync":  # it makes none
        assert (shown, process.returncode, disk.tripped()) == ("end\n", 0, None)
    else:
        assert (shown, process.returncode) == ("", -signal.SIGKILL)
        assert disk.tripped() == path
    disk.lose()
    assert not list((tmp_path / "disk").iterdir())
    assert disk.calls()[call if call != "fsync" else "rename"] == 1


SYNCS_LATER = """
    file = os.open("a", os.O_CREAT | os.O_RDWR)
    os.write(file, b"1")
    parent = os.getpid()
    if os.fork():
        out("ready")
        sys.stdin.readline()
        os.mkdir("d")
    while os.getppid() == parent:
        pass
    out("syncs"), os.fsync(file), out("synced")
"""


def test_after_a_trip_no_call_of_another_process_has_an_effect(
    tmp_path: Path, disk: VolatileDisk
) -> None:
    with program(disk, tmp_path, SYNCS_LATER) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        disk.order(trips=[{"number": 1, "call": "mkdir", "nth": 1}])
        process.stdin.write("go\n"), process.stdin.flush()
        assert process.stdout.readline() == "syncs\n"
        assert disk.tripped() == "d"
        lost = disk.lose()
        assert lost == {"bytes": 1, "entries": 1, "sizes": 0}
        assert process.stdout.read() == ""


MAPS = """
    import mmap
    file = os.open("a", os.O_CREAT | os.O_RDWR)
    os.write(file, b"1" * 4096)
    os.fsync(file)
    memory = mmap.mmap(file, 4096)
    sys.stdin.readline()
    memory[:3] = b"222"
    {}
"""


@pytest.mark.parametrize(
    ("does", "call"), [("os.mkdir('d')", "mkdir"), ("memory.flush()", "write")]
)
def test_a_process_ends_though_its_mapped_memory_is_not_written_yet(
    tmp_path: Path, disk: VolatileDisk, does: str, call: str
) -> None:
    with program(disk, tmp_path, MAPS.format(does)) as process:
        until(lambda: disk.calls().get("fsync"))
        disk.order(trips=[{"number": 1, "call": call, "nth": 1, "pid": process.pid}])
        shown, _ = process.communicate("go\n", timeout=WAIT_S)
    assert (shown, process.returncode) == ("", -signal.SIGKILL)
    assert disk.tripped() is not None
    disk.lose()
    assert (tmp_path / "disk" / "a").read_bytes() == b"1" * 4096


def test_files_changed_from_outside_are_seen(tmp_path: Path, disk: VolatileDisk) -> None:
    said(disk, tmp_path, "open('a', 'w').write('old'); open('b', 'w').write('b')")
    with disk.detached():
        (tmp_path / "disk" / "a").write_text("new")
        (tmp_path / "disk" / "b").unlink()
        (tmp_path / "disk" / "c").write_text("c")
    assert said(disk, tmp_path, "out(*sorted(os.listdir())[:1]); out(open('a').read())") == [
        "a",
        "new",
    ]
    assert disk.lose() == {"bytes": 0, "entries": 0, "sizes": 0}
    assert {path.name for path in (tmp_path / "disk").iterdir()} == {"a", "c"}


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    text = f"""
    import json, os, subprocess, sys, time
    from pathlib import Path
    from shaketable.harness import guard
    from shaketable.harness.volatile_disk.disk import VolatileDisk
    folder = Path({str(tmp_path)!r})
    (folder / "disk").mkdir()
    disk = VolatileDisk("n0", folder / "disk")
    disk.ready()
    node = "f = open('disk/a', 'w'); f.write('x'); f.flush(); print('up', flush=True); input()"
    argv = [*disk.enter_command(folder), sys.executable, "-I", "-S", "-c", node]
    child = subprocess.Popen(guard.command(argv, os.getpid()), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    print(json.dumps([disk.pid, child.pid]), flush=True)
    time.sleep(600)
    """
    argv = [sys.executable, "-P", "-c", textwrap.dedent(text)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        left = json.loads(harness.stdout.readline())
        harness.kill()
    until(lambda: not any(is_there(pid) for pid in left))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert (tmp_path / "disk" / "a").read_text() == "x", "the tree is what it was"


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
