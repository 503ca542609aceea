"""The generator that docs/workloads.md shows does what is said of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from shaketable.harness import discovery
from shaketable.harness.generators import play

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "workloads.md"


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    played = play(names["generator"], 12, operations_max=2000)
    assert len(played) == 2000
    by_key = Counter(one.operation.key for one in played)
    assert {"sets-0/0", "sets-0/4", "sets-0/8"} <= set(by_key)
    assert 250 < by_key["sets-0/0"] < 275


def test_every_workload_has_a_row() -> None:
    text = DOCUMENT.read_text()
    for name in ("log", "queue", "register", "set", "counter", "offsets"):
        workload = discovery.get("workloads", name)
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        beside = {"committed-prefix", "vacuity", "stats"}
        assert all(checker in row for checker in set(workload.checkers) - beside), name
