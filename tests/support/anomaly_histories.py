"""Histories of every kind of object as text, for the checkers of anomalies.

# CHECKER OUTCOME KIND...                      what is expected of which checker
# times in ms                                  such a line; without it they are ns
0..10  p0 send q/0 7 -> ok 3                   call..return, process, function, key, argument
11..20 p1 poll q/0 -> ok 3:7 4:8               offset:value, a message each
11..20 p1 retry q/%RETRY%/0 -> ok 3:7^1        ^: how often it had come before
11..20 p1 handle-failed q/0 1>-1 -> ok @4 3:7 4:8   failed at offset 4; level>times at most
&      p1 send q/1 9 -> ok 0                   the same invocation as the line before
21..?  p2 add s 4 -> info                      `?`: it never returned
22..30 p3 read s -> ok [1 2 4]                 a list
31..40 p4 find q/0 32>64@3 -> ok 3:65          the key of 64 to 95, at the time of offset 3
31..40 p4 cas r/0 nil>4 -> ok 1                expected>new
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from shaketable.checkers.anomalies.log_rules import ANOMALIES
from shaketable.checkers.engine.local import run_local
from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.contracts.verdict import Verdict
from tests.support.checker_histories import Op, job, op

ROOT = Path(__file__).parent.parent / "histories" / "anomalies"
EVERYTHING = Promises(excludes=ANOMALIES)

_LINE = re.compile(
    r"(?:(?P<call>\d+)\.\.(?P<end>\d+|\?)|(?P<same>&))\s+p(?P<process>\d+)\s+(?P<f>[a-z-]+)\s+"
    r"(?P<key>\S+)(?:\s+(?:(?P<expected>nil|-?\d+)>)?(?P<argument>-?\d+)(?:@(?P<at>\d+))?)?\s+->\s+(?P<outcome>ok|fail|info)"
    r"(?:\s+(?P<result>.+))?"
)
IN_MS = "# times in ms\n"
PUTS = {"append", "send", "enqueue", "add", "commit", "write"}
PLACES = {"read", "view", "assign", "subscribe", "seek"}


def parse(text: str) -> list[Op]:
    """Return rows of OPERATIONS."""
    rows: list[Op] = []
    unit_ns = 1_000_000 if IN_MS in text else 1
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        assert match, f"line {number}: {line!r} is no operation"
        rows.append(_row(match, number, rows, unit_ns))
    return rows


def _row(match: re.Match[str], number: int, rows: list[Op], unit_ns: int) -> Op:
    f, outcome, extra = match["f"], match["outcome"], {}
    if match["same"]:
        before = rows[-1]
        extra["place"] = json.loads(before["extra"] or "{}").get("place", 0) + 1
        row = op(before["op"], f, before["call_ns"], before["return_ns"], outcome)
        assert outcome == before["outcome"], f"line {number}: an invocation has one outcome"
    else:
        end = None if match["end"] == "?" else int(match["end"]) * unit_ns
        assert (end is None) == (outcome == "info"), f"line {number}: info returns at ?"
        call = int(match["call"]) * unit_ns
        row = op(rows[-1]["op"] + 1 if rows else 0, f, call, end, outcome)
    row.update(process=int(match["process"]), key=match["key"], node="n0")
    if match["argument"] is not None:
        row["offset" if f in PLACES else "input"] = int(match["argument"])
    if match["expected"] not in (None, "nil"):
        row["expected"] = int(match["expected"])
    if match["at"] is not None:
        row["offset"] = int(match["at"])
    extra |= _answer(row, f, match["result"])
    if f == "poll" and row["input"] is not None:  # held, and where it stood
        row["offset"], row["input"] = row["input"], None
    row["extra"] = json.dumps(extra) if extra else None
    return row


def _answer(row: Op, f: str, result: str | None) -> dict[str, Any]:
    if f == "select" and result:
        stop, *pairs = result.split()
        row["offset"] = int(stop)
        return {"output": [[int(n) for n in pair.split(":")] for pair in pairs]}
    if result in (None, "nothing"):
        return {"output": []} if f == "poll" and result else {}
    if f.endswith("-failed"):
        failed_at, _, result = result.partition(" ")
        row["offset"] = int(failed_at.removeprefix("@"))
    if "^" in result:
        parts = [re.split("[:^]", each) for each in result.split()]
        output = [[int(offset), int(value)] for offset, value, _ in parts]
        return {"output": output, "attempts": [int(attempt) for _, _, attempt in parts]}
    if ":" in result:
        return {"output": [[int(n) for n in pair.split(":")] for pair in result.split()]}
    if result.startswith("["):
        return {"output": [int(n) for n in result[1:-1].split()]}
    if not result.lstrip("-").isdigit():
        return {"output": result}
    row["offset" if f in {"append", "send", "batch"} else "output"] = int(result)
    return {}


def judge(tmp_path: Path, rows: list[Op], name: str, **more: Any) -> Verdict:
    """Return the verdict of the checker of that name, of a system that promises everything."""
    checker = discovery.get("checkers", name)
    return run_local(job(tmp_path, rows, [checker], **{"promises": EVERYTHING, **more}))[0]


def kinds_of(verdict: Verdict) -> list[str]:
    return sorted({finding.kind for finding in verdict.findings})
