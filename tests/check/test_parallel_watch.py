"""A watch by several processes: what it found and has not shown is not lost."""

from __future__ import annotations

import json
import time
from pathlib import Path

from shaketable.harness.judging.watching import WatchSettings
from shaketable.harness.judging.watching_in_parallel import ParallelWatch


def line(kind: str, f: str, value: int | None, at: int) -> str:
    event = {"process": 0, "type": kind, "f": f, "key": "x", "value": value, "time": at}
    return json.dumps(event) + "\n"


def test_what_a_checkpoint_knows_and_was_not_shown_is_shown_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    given = WatchSettings(path=path, model="register", checkpoint=tmp_path / "kept")
    path.write_text(line("invoke", "read", None, 1) + line("ok", "read", 7, 2))
    with ParallelWatch(given, 2) as watched:
        watched.step(0.0)
        with path.open("a") as file:
            file.write(line("invoke", "write", 1, 3))
        shown = watched.step(0.0)[1]
        watched.save(is_due=True)  # the answer of the judge comes meanwhile; then it is killed
    with ParallelWatch(given, 2) as watched:
        assert watched.was_continued
        until_s = time.monotonic() + 30
        while not shown and time.monotonic() < until_s:
            shown += watched.step(0.1)[1]
        assert [(each.key, each.op) for each in shown] == [("x", 0)]
        assert watched.found == 1
