"""A node whose thread cannot have memory ends: else whoever waits for the thread waits for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shaketable.system.node.ends import EXIT_NO_MEMORY

PROGRAM = """
import _thread, threading, time
from shaketable.system.node.process_limits import exit_when_out_of_memory
exit_when_out_of_memory()

def fail():
    raise {error}

{start}
time.sleep({patience_s})
"""
THREAD = "threading.Thread(target=fail).start()"
BARE = "_thread.start_new_thread(fail, ())"


@pytest.mark.parametrize(
    ("error", "start", "code", "said"),
    [
        ("MemoryError", THREAD, EXIT_NO_MEMORY, "MemoryError: a thread could not go on"),
        ("MemoryError", BARE, EXIT_NO_MEMORY, "MemoryError: a thread could not go on"),
        ("ValueError('no')", THREAD, 0, "ValueError: no"),
        ("ValueError('no')", BARE, 0, "ValueError: no"),
    ],
)
def test_a_thread_without_memory_ends_the_process_and_no_other_error_does(error, start, code, said):
    patience_s = 60 if code else 0.2
    program = PROGRAM.format(error=error, start=start, patience_s=patience_s)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
