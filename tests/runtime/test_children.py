"""Nothing of a process in which something was tried outlives the try, however it ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import trio

from shaketable.harness import run_markers
from shaketable.harness.doctoring import examination
from shaketable.harness.runtime.processes import children

PATIENCE_S = 20.0

PROGRAM = """
import os, subprocess, sys, time
left = [
    subprocess.Popen(["sleep", "300"]),  # holds what it may print to
    subprocess.Popen(["sleep", "300"], process_group=0),
]
if sys.argv[2] == "hangs":
    left.append(subprocess.Popen(["sleep", "300"], start_new_session=True))
with open(sys.argv[1], "w") as file:
    file.write(" ".join(str(each.pid) for each in left))
print("it said", flush=True)
print("it complained", file=sys.stderr, flush=True)
time.sleep(300 if sys.argv[2] == "hangs" else 0)
os._exit(3)
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Where the program writes down what it leaves running."""
    return tmp_path / "left"


def program(left: Path, how: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(left), how]


def still_running(left: Path) -> list[int]:
    pids = [int(pid) for pid in left.read_text().split()]
    assert len(pids) >= 2
    until_s = time.monotonic() + 2.0
    while (
        alive := [pid for pid in pids if run_markers.identify(pid)]
    ) and time.monotonic() < until_s:
        time.sleep(0.01)
    return alive


def test_what_a_child_left_running_ends_and_nobody_waits_for_it(left: Path) -> None:
    answer = children.ask(program(left, "ends"), PATIENCE_S)
    assert answer == children.Answer(False, 3, b"it said\n", b"it complained\n")
    assert not still_running(left)


def test_what_a_late_child_started_ends_with_it(left: Path) -> None:
    assert children.ask(program(left, "hangs"), 2.0).is_late
    assert not still_running(left)


def test_a_child_reads_what_it_is_given_and_has_what_is_added() -> None:
    echo = "import os, sys; print(sys.stdin.read(), os.environ['DOOR'])"
    answer = children.ask([sys.executable, "-c", echo], PATIENCE_S, b"open", {"DOOR": "north"})
    assert (answer.status, answer.output) == (0, b"open north\n")


@pytest.mark.parametrize("how", ["ends", "hangs"])
def test_what_a_child_that_is_listened_to_left_running_ends(left: Path, how: str) -> None:
    heard: list[bytes] = []

    def take(line: bytes) -> float:
        heard.append(line)
        return 1.0

    ended = trio.run(children.run, program(left, how), left.with_name("log"), take, PATIENCE_S)
    assert heard == [b"it said"]
    assert ended.is_late or how == "ends"
    assert not still_running(left)
    assert children.last_line(left.with_name("log")) == "it complained"


def test_a_spark_that_does_not_start_in_time_leaves_no_jvm(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "SPARK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(examination.guard, "command", lambda *_: program(left, "hangs"))
    fact = examination._spark(left.parent)
    assert (fact.what, fact.is_ok) == ("did not start and end within 2 s", False)
    assert not still_running(left)
