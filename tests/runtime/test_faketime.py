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

from harness.errors import HarnessError
from harness.plugins import Launch
from harness.runtime import faketime
from harness.runtime.faketime import SHARED_MEMORY, FakedTime

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

    def __init__(self, folder: Path) -> None:
        self.clock = FakedTime(folder)
        launch = self.clock.launch(Launch((sys.executable, "-c", TELLS_TIME)))
        self.process = subprocess.Popen(
            launch.argv,
            env={**os.environ, **launch.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ahead_s(self) -> tuple[float, float]:
        """How far its wall clock and its monotonic clock are ahead of ours."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, monotonic = self.process.stdout.readline().split()
        return float(wall) - time.time(), float(monotonic) - time.monotonic()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started = Program(tmp_path)
    try:
        yield started
    finally:
        started.process.send_signal(signal.SIGKILL)
        started.process.communicate()
        faketime.forget(started.process.pid)
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


def test_a_library_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faketime, "find_spec", lambda _: None)
    with pytest.raises(HarnessError, match="libfaketime"):
        faketime.library()
