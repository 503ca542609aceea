"""What the harness uses of memory is measured while clients work, and told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import trio
import trio.testing

from shaketable.harness.runtime import supervisor
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.supervisor import MemoryUse
from shaketable.harness.terminal.summary import memory_text


def test_what_grows_is_seen_and_who_is_gone_is_left_out(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "memory.jsonl")
    kept: list[bytearray] = []
    pids = {"worker-0": os.getpid(), "gone": 2**22 + 1}
    use = MemoryUse(lines, lambda: pids, lambda: int(trio.current_time() * 1e9))

    async def main() -> None:
        async with use.recorded(settle_s=1.0):
            await trio.sleep(1.0 + supervisor.SAMPLE_EVERY_S)
            kept.append(bytearray(b"x" * (64 << 20)))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    lines.close()
    found = use.summary()
    assert set(found) == {"harness", "worker-0"}
    assert found["harness"]["last"] - found["harness"]["first"] > 32 << 20
    assert found["harness"]["most"] >= found["harness"]["last"]
    rows = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    assert len(rows) >= 2
    assert set(rows[0]["bytes"]) == {"harness", "worker-0"}


def test_memory_is_told_in_megabytes() -> None:
    told = memory_text([("harness", 90_000_000, 95_400_000, 97_000_000)])
    assert told == "harness 90 MB, at the end 95, at most 97"
    told = memory_text(
        [
            ("harness", 90_000_000, 90_400_000, 90_200_000),
            ("worker-0", 86_000_000, 87_000_000, 87_000_000),
            ("worker-1", 60_000_000, 60_000_000, 63_000_000),
        ]
    )
    assert told == "harness 90 MB; worker-0 86 MB, at the end 87; worker-1 60 MB, at most 63"
    assert memory_text([]) == ""
