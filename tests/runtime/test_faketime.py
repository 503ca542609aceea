"""A foreign program's wall clock is put wrong, measured, and right again; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Launch
from shaketable.harness.runtime.processes import faketime
from shaketable.harness.runtime.processes.faketime import SHARED_MEMORY, FakedTime

TELLS_TIME = (
    "import sys, time\n"
    "for _ in sys.stdin:\n"
    "    time.sleep(0.01)\n"
    "    print(repr(time.time()), repr(time.monotonic()), flush=True)\n"
)
NEAR_S = 0.5
DAY_S = 86_400


class Program:
    """A Python program that tells its time when it is asked."""

    def __init__(self, folder: Path, clock: FakedTime | None = None) -> None:
        self.clock = clock or FakedTime(folder)
        launch = self.clock.launch(Launch((sys.executable, "-c", TELLS_TIME)))
        self.process = subprocess.Popen(
            launch.argv,
            env={**os.environ, **launch.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        """Kill it, and delete what it left."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        faketime.forget(self.process.pid)

    def ahead_s(self) -> tuple[float, float]:
        """How far its wall clock and its monotonic clock are ahead of ours."""
        wall_s, monotonic_s = self.shows_s()
        return wall_s - time.time(), monotonic_s - time.monotonic()

    def shows_s(self) -> tuple[float, float]:
        """What its wall clock and its monotonic clock show."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, monotonic = self.process.stdout.readline().split()
        return float(wall), float(monotonic)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started = Program(tmp_path)
    try:
        yield started
    finally:
        started.end()
    left = [path.name for path in SHARED_MEMORY.iterdir() if f"_{started.process.pid}" in path.name]
    assert left == []


def test_offset_and_rate_are_felt_and_healed(program: Program) -> None:
    wall_s, monotonic_s = program.ahead_s()
    assert abs(wall_s) < NEAR_S
    program.clock.change(offset_ms=-DAY_S * 1000)
    wall_s, monotonic_s = program.ahead_s()
    assert abs(wall_s + DAY_S) < NEAR_S
    assert abs(monotonic_s) < NEAR_S, "what it waits by is right"
    time.sleep(0.3)
    program.clock.change(rate=20.0)
    first_s, _ = program.ahead_s()
    assert abs(first_s) < 10, "a rate that comes late does not jump"
    time.sleep(1.0)
    assert program.ahead_s()[0] - first_s > 10, "nineteen seconds more in a second"
    program.clock.heal()
    wall_s, monotonic_s = program.ahead_s()
    assert abs(wall_s) < NEAR_S
    assert abs(monotonic_s) < NEAR_S


@pytest.mark.parametrize("rate", [20.0, 0.0])
def test_a_program_that_starts_anew_under_a_rate_goes_on_where_it_stood(
    program: Program, tmp_path: Path, rate: float
) -> None:
    """Else it would stand where the one before stood at its start: three seconds of rate away."""
    time.sleep(2.0)
    changed_s = time.time()
    program.clock.change(offset_ms=60_000.0, rate=rate)
    time.sleep(1.0)
    program.end()
    called_s = time.time()
    program.clock.starts()
    again = Program(tmp_path, program.clock)
    try:
        again.shows_s()
        up_s = time.time()  # its clock began to go between the call and this
        asked_s = time.time()
        shown_s, _ = again.shows_s()
        answered_s = time.time()
        stood_s = changed_s + 60.0 + rate * (called_s - changed_s)
        corners = [
            stood_s + (began_s - called_s) + rate * (read_s - began_s)
            for began_s in (called_s, up_s)
            for read_s in (asked_s, answered_s)
        ]
        assert min(corners) - NEAR_S < shown_s < max(corners) + NEAR_S
    finally:
        again.end()


def test_a_library_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faketime, "find_spec", lambda _: None)
    with pytest.raises(HarnessError, match="libfaketime"):
        faketime.library()
