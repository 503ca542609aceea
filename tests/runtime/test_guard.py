"""Nodes die with the harness: real processes, a parent ended by SIGKILL, a paused child."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shaketable.harness import guard

GONE_WITHIN_S = 5

PARENT = """
import json, os, signal, subprocess, sys, time
from shaketable.harness import guard

sleeper = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
children = [
    subprocess.Popen(guard.command(sleeper, os.getpid()), stdout=subprocess.PIPE,
                     start_new_session=True)
    for _ in range(3)
]
for child in children:
    child.stdout.readline()
children[0].send_signal(signal.SIGSTOP)
while ") T " not in open(f"/proc/{children[0].pid}/stat").read():
    time.sleep(0.01)
print(json.dumps([child.pid for child in children]), flush=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def test_all_children_are_gone_after_the_parent_was_killed_even_a_paused_one():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        pids = json.loads(parent.stdout.readline())
        try:
            assert len(pids) == 3
            assert not any(is_gone(pid) for pid in pids)
            parent.kill()
            parent.wait()
            deadline = time.monotonic() + GONE_WITHIN_S
            while not all(is_gone(pid) for pid in pids) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert [pid for pid in pids if not is_gone(pid)] == []
        finally:
            for pid in pids:
                if not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)
            parent.kill()


def test_a_child_whose_parent_died_first_ends_before_it_begins(tmp_path):
    witness = tmp_path / "began"
    not_our_parent = 1  # we are alive, but the child is told that somebody else started it
    program = [sys.executable, "-c", f"open({str(witness)!r}, 'w')"]
    done = subprocess.run(guard.command(program, not_our_parent), check=False)
    assert done.returncode == -signal.SIGKILL
    assert not witness.exists()


def test_the_guard_becomes_the_program_with_its_pid_environment_and_arguments():
    report = "import json, os, sys; print(json.dumps([os.getpid(), os.environ['X'], sys.argv[1:]]))"
    argv = guard.command([sys.executable, "-c", report, "--", "a b"], os.getpid())
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "X": "y"}) as child:
        assert json.loads(child.stdout.read()) == [child.pid, "y", ["--", "a b"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([str(os.getpid()), "--", "/no/such/program"], "cannot run /no/such/program: No such file"),
        (["x", "--", "true"], "usage: guard.py PARENT_PID -- PROGRAM"),
        ([], "usage: guard.py PARENT_PID -- PROGRAM"),
    ],
)
def test_what_cannot_be_run_is_one_line(arguments, said):
    done = subprocess.run(
        [sys.executable, "-I", "-S", guard.__file__, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == guard.EXIT_CANNOT_RUN
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
