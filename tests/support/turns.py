"""Tests that take long take turns: CI runs a part of them, another part with another commit.

All of them together would keep each change waiting for an hour. Which ones these are says
`tests/long_tests.txt`, which `tests.soaks.long_tests` measures anew: seconds and name, a line each.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parents[1] / "long_tests.txt"
TURNS: Final = 10
ALL: Final = "all"
LONG_S: Final = 0.8
"""A test that takes longer, on two busy cores, takes turns."""
ALWAYS: Final = ("tests/sim/test_clean_seeds.py::", "tests/architecture/test_shape.py::")
"""Tests whose names begin so are run with each commit: what they guard has no other guard."""


def turn_of_commit(root: Path) -> int:
    """Return whose turn it is at the commit that is checked out: 1 to TURNS, 1 without git."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return 1
    return int(done.stdout[:8], 16) % TURNS + 1 if done.returncode == 0 else 1


def read_table(text: str) -> dict[str, float]:
    """Return what a table says: seconds by the names of tests that take turns."""
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line)
    return {name: float(seconds) for seconds, name in lines}


def table_of(seconds: dict[str, float]) -> str:
    """Return the table of those that take long, the longest first."""
    long = sorted(
        (-taken, name)
        for name, taken in seconds.items()
        if taken > LONG_S and not name.startswith(ALWAYS)
    )
    return "".join(f"{-taken:.1f} {name}\n" for taken, name in long)


@cache
def turns() -> dict[str, int]:
    """Return by name when a long test has its turn; dealt out so that all turns take as long."""
    names = read_table(TABLE.read_text(encoding="utf-8"))
    return {name: n % TURNS + 1 for n, name in enumerate(names)}


def waits_for_another(name: str, turn: str) -> bool:
    """Return whether a test is left to other turns than this one, a number or ALL."""
    return turn != ALL and turns().get(name, int(turn)) != int(turn)
