"""Node processes: incarnations, signals, last words, ports. Real processes, quick ones."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from shaketable.harness import run_markers
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Launch
from shaketable.harness.runtime.processes import ports
from shaketable.harness.runtime.processes.nodes import NodeProcess, last_line

PATIENCE_S = 30
SLEEPER = "print('serving', flush=True)\nimport time\ntime.sleep(600)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER


@contextmanager
def node(tmp_path: Path, program: str = SLEEPER, argv: tuple[str, ...] = ()):
    launch = Launch(argv or (sys.executable, "-c", program), {"NODE_SAYS": "hello"})
    made = NodeProcess("n1", launch, tmp_path, tmp_path / "node.log", 0)
    try:
        yield made
    finally:
        if made.is_running:
            os.kill(made.pid, signal.SIGKILL)
            made._process.wait()


def run(scenario) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await scenario()

    trio.run(main)


async def says(made: NodeProcess, line: str) -> None:
    while made.last_line() != line:
        await trio.sleep(0.01)


def test_a_mark_stands_on_a_line_of_its_own_behind_half_a_line(tmp_path):
    dies = "import os\nos.write(1, b'whole\\nExcept')\nos._exit(1)"

    async def scenario() -> None:
        with node(tmp_path, dies) as made:
            made.start()
            await made.wait()
            made.start()
            await made.wait()
        lines = (tmp_path / "node.log").read_text().splitlines()
        assert [line.partition(" at ")[0] for line in lines] == [
            "--- shaketable: n1 incarnation 1 starts", "whole", "Except",
            "--- shaketable: n1 incarnation 2 starts", "whole", "Except",
        ]  # fmt: skip

    run(scenario)


def test_incarnations_are_counted_and_logged(tmp_path):
    async def scenario() -> None:
        with node(tmp_path) as made:
            assert (made.incarnation, made.is_running, made.pid) == (0, False, None)
            assert made.start() == 1
            await says(made, "serving")
            with pytest.raises(HarnessError, match="n1 runs already"):
                made.start()
            await made.kill()
            await made.kill()
            assert not made.is_running
            assert made.last_line() == "serving"
            assert made.start() == 2
            assert made.is_running
            await made.stop(PATIENCE_S)
        log = (tmp_path / "node.log").read_text()
        marks = [line.split(" at ")[0] for line in log.splitlines() if line.startswith("---")]
        assert marks == [
            "--- shaketable: n1 incarnation 1 starts",
            "--- shaketable: n1 incarnation 1 killed",
            "--- shaketable: n1 incarnation 2 starts",
            "--- shaketable: n1 incarnation 2 stopped",
        ]

    run(scenario)


def test_pause_is_seen_in_the_kernel_and_stop_ends_a_paused_node(tmp_path):
    async def scenario() -> None:
        with node(tmp_path) as made:
            assert not await made.pause()
            made.start()
            assert not made.is_paused
            assert await made.pause()
            assert made.is_paused
            assert made.is_running
            made.resume()
            while made.is_paused:
                await trio.sleep(0.001)
            await made.pause()
            await made.stop(PATIENCE_S)
            assert not made.is_running
            assert not made.is_paused
            made.resume()

    run(scenario)


@pytest.mark.parametrize("is_apart", [False, True])
def test_what_a_node_has_started_stops_with_it_and_goes_on_with_it(tmp_path, is_apart):
    starts = (
        "import subprocess\n"
        f"child = subprocess.Popen(['sleep', '600'], start_new_session={is_apart})\n"
        "print(child.pid, flush=True)\n"
        "print('serving', flush=True)\n"
        "child.wait()\n"
    )

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    async def scenario() -> None:
        with node(tmp_path, starts) as made:
            made.start()
            await says(made, "serving")
            child = int((tmp_path / "node.log").read_text().splitlines()[-2])
            assert await made.pause()
            assert state(child) == "T"
            with trio.fail_after(PATIENCE_S):
                made.resume()
                while state(child) == "T":
                    await trio.sleep(0.001)
            await made.nap(0.001)
            await made.kill()

    run(scenario)


def test_a_node_that_ignores_sigterm_is_killed(tmp_path):
    async def scenario() -> None:
        with node(tmp_path, STUBBORN) as made:
            made.start()
            await says(made, "serving")
            await made.stop(0.05)
            ended = await made.wait()
            assert (ended.returncode, ended.asked) == (-signal.SIGKILL, True)

    run(scenario)


@pytest.mark.parametrize("how", ["kill", "stop", "itself"])
def test_what_a_node_has_started_ends_with_it(tmp_path, how):
    starts = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        + ("" if how == "itself" else "import time\ntime.sleep(600)")
    )  # fmt: skip
    marker = run_markers.RunMarker(run_markers.identify(os.getpid()), tmp_path)

    async def scenario() -> None:
        launch = Launch((sys.executable, "-c", starts), {run_markers.VARIABLE: str(marker)})
        made = NodeProcess("n1", launch, tmp_path, tmp_path / "node.log", 0)
        made.start()
        while not (line := made.last_line()):
            await trio.sleep(0.01)
        child = run_markers.identify(int(line))
        if how == "kill":
            await made.kill()
        elif how == "stop":
            await made.stop(5.0)
        else:
            await made.wait()
        while child.is_alive:
            await trio.sleep(0.01)

    run(scenario)


def test_a_node_that_ends_by_itself_is_told_in_one_line(tmp_path):
    async def scenario() -> None:
        with node(
            tmp_path, "import os, sys; sys.exit('cannot ' + os.environ['NODE_SAYS'])"
        ) as made:
            made.start()
            ended = await made.wait()
            assert not ended.asked
            assert str(ended) == (
                "n1 (incarnation 1) ended by itself with exit status 1; its last line: cannot hello"
            )
        with node(tmp_path, "import os; os.kill(os.getpid(), 11)") as made:
            made.start()
            assert str(await made.wait()) == (
                "n1 (incarnation 1) was ended by SIGSEGV; it printed nothing"
            )
        with node(tmp_path, argv=("/no/such/program",)) as made:
            made.start()
            assert "cannot run /no/such/program" in str(await made.wait())

    run(scenario)


def test_a_wait_for_one_incarnation_is_not_confused_by_the_next(tmp_path):
    async def scenario() -> None:
        with node(tmp_path) as made:
            made.start()
            ends = []

            async def watch() -> None:
                ends.append(await made.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                nursery.start_soon(watch)  # several may wait at once
                await trio.testing.wait_all_tasks_blocked(0.01)
                await made.kill()
                made.start()
            assert [(end.incarnation, end.asked) for end in ends] == [(1, True)] * 2
            assert made.incarnation == 2
            await made.kill()

    run(scenario)


def test_the_last_line_is_bounded_and_never_fails(tmp_path):
    log = tmp_path / "node.log"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 100_000 + b"\n--- shaketable: n1 paused at 1 s\n\n")
    assert len(last_line(log)) < 400
    log.write_bytes(b"\xff\xfe\n")
    assert last_line(log) == "\ufffd\ufffd"


def test_free_ports_are_different_and_outside_the_ephemeral_range():
    found = ports.find_free(14)
    assert len(set(found)) == 14
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < low for port in found)


def test_a_free_port_stays_reserved_and_a_server_may_listen_on_it(monkeypatch):
    (port,) = ports.find_free(1)
    monkeypatch.setattr(ports.SystemRandom, "randrange", lambda *_: port)
    with pytest.raises(HarnessError, match="found 0 of 1 free ports"):
        ports.find_free(1)
    with socket.create_server((ports.HOST, port)) as server:
        assert server.getsockname()[1] == port
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_reservations_are_bounded():
    ports.find_free(ports.RESERVED_MAX)
    before = len(list(Path("/proc/self/fd").iterdir()))
    ports.find_free(40)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_port_in_use_is_named_with_its_owner():
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(HarnessError, match=f"port {port} for node n1 is in use by another"):
            ports.take_from(port, ["node n1", "node n2"])
    assert ports.take_from(port, ["node n1"]) == [port]
    with pytest.raises(HarnessError, match="65536 for b is no port"):
        ports.take_from(65_535, ["a", "b"])
