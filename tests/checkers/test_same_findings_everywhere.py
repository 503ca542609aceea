"""The same history gets the same findings, byte for byte, in each process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.findings_digest import digests

ROOT = Path(__file__).parents[2]
HISTORIES = 12


def in_another_process(hash_seed):
    """Python orders a set of texts by a number that it draws when it starts."""
    asked = [sys.executable, "-m", "tests.support.findings_digest", str(HISTORIES)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, check=True)
    return json.loads(told.stdout)


def test_findings_do_not_hang_on_the_process():
    one, other = in_another_process("1"), in_another_process("77")
    assert one == other
    assert one == digests(HISTORIES)
