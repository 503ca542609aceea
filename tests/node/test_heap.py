"""A node keeps the memory that it works with."""

from __future__ import annotations

import subprocess
import sys

from tests.support.node_group import ROOT

PROGRAM = """
import resource, sys
from shaketable.system.node.process import tune_malloc
if sys.argv[1] == "keep":
    tune_malloc()
kept = [bytes(1 << 20)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bytearray(b"x") * (1 << 20)
before = faults()
for _ in range(50):
    batches = [b"x" * (1 << 19) for _ in range(4)]
    del batches
print(faults() - before)
"""


def faults_of(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def test_batches_of_messages_cost_no_page_faults() -> None:
    assert faults_of("keep") * 10 < faults_of("as it comes")
