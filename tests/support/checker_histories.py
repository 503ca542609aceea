"""Small histories of log operations: a text format, a brute-force judge, random ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import CheckJob
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Promises
from shaketable.harness.history.schema import OPERATIONS

Op = dict[str, Any]

PROMISES = Promises(
    durable_under=frozenset(("kill", "pause", "partition")),
    linearizable=frozenset(("append", "read", "end")),
    committed_prefix=True,
)


def struck(*faults: str, took_effect: bool = True, evidence: str = "") -> dict[str, Any]:
    """What a context is told of a run in which these faults were done."""
    windows = [
        FaultWindow(n, name, name, 0, 0, took_effect, evidence) for n, name in enumerate(faults)
    ]
    return {"faults_asked": faults, "windows": tuple(windows)}


def context(**more: Any) -> CheckContext:
    base = {"nodes": ("n0", "n1", "n2"), "committed": {}, "promises": PROMISES}
    return CheckContext(**{**base, **more})


def op(op_id: int, f: str, call: int, end: int | None, outcome: str = "ok", **more: Any) -> Op:
    row = dict.fromkeys(OPERATIONS.names)
    row.update(op=op_id, process=op_id, f=f, key="q/0", call_ns=call, outcome=outcome)
    row["return_ns"] = None if outcome == "info" else end
    row.update(more)
    return row


def table(rows: Iterable[Op]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), OPERATIONS)


def operations_file(path: Path, rows: Iterable[Op]) -> Path:
    pq.write_table(table(rows), path)
    return path


def no_logs(_directory: Path, _node: str) -> Any:
    return iter(())


def job(tmp_path: Path, rows: Iterable[Op], checkers: Iterable[Any], **more: Any) -> CheckJob:
    path = operations_file(tmp_path / "operations.parquet", rows)
    read_log = more.pop("read_log", no_logs)
    logs = more.pop("logs", {})
    return CheckJob((path,), logs, read_log, context(**more), tuple(checkers))


_LINE = re.compile(
    r"(?P<call>\d+)\.\.(?P<end>\d+|\?)\s+p(?P<process>\d+)\s+(?P<f>append|read|end)\s+"
    r"(?P<key>\S+)(?:\s+(?P<argument>-?\d+))?\s+->\s+(?P<outcome>ok|fail|info)"
    r"(?:\s+(?P<result>-?\d+|nothing))?"
)


def parse(text: str) -> list[Op]:
    """Read lines like `10..15 p0 append q0 7 -> ok 3`; `?` for a return that never came."""
    rows = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        assert match, f"line {number}: {line!r} is no operation"
        f, outcome, result = match["f"], match["outcome"], match["result"]
        end = None if match["end"] == "?" else int(match["end"])
        assert (end is None) == (outcome == "info"), f"line {number}: info returns at ?"
        row = op(len(rows), f, int(match["call"]), end, outcome)
        row.update(process=int(match["process"]), key=match["key"], node="n0")
        argument = None if match["argument"] is None else int(match["argument"])
        number_out = None if result in (None, "nothing") else int(result)
        if f == "append":
            row.update(input=argument, offset=number_out)
        elif f == "read":
            row.update(offset=argument, output=number_out)
        else:
            row.update(output=number_out)
        rows.append(row)
    return rows


def is_linearizable(rows: list[Op]) -> bool:
    """Try every order: exponential, and independent of the checker's reasoning."""
    ops = [row for row in rows if row["outcome"] != "fail"]
    ops = [row for row in ops if row["outcome"] == "ok" or row["f"] == "append"]
    seen: set[tuple[frozenset[int], tuple[int, ...]]] = set()

    def fits(row: Op, log: tuple[int, ...]) -> tuple[int, ...] | None:
        if row["f"] == "append":
            if row["outcome"] == "ok" and row["offset"] != len(log):
                return None
            return (*log, row["input"])
        if row["f"] == "end":
            return log if row["output"] == len(log) else None
        if row["output"] is None:
            return log if len(log) <= row["offset"] else None
        is_there = 0 <= row["offset"] < len(log) and log[row["offset"]] == row["output"]
        return log if is_there else None

    def search(left: frozenset[int], log: tuple[int, ...]) -> bool:
        if all(ops[n]["outcome"] == "info" for n in left):
            return True
        if (left, log) in seen:
            return False
        seen.add((left, log))
        due = min(ops[n]["return_ns"] for n in left if ops[n]["outcome"] == "ok")
        for n in left:
            if ops[n]["call_ns"] <= due:
                grown = fits(ops[n], log)
                if grown is not None and search(left - {n}, grown):
                    return True
        return False

    return search(frozenset(range(len(ops))), ())


def random_history(rng: Random, size: int, span: int = 12) -> list[Op]:
    """Draw a history that is linearizable by construction, then change it a little or not."""
    log: list[int] = []
    rows: list[Op] = []
    moments = sorted(rng.randint(0, span) for _ in range(size))
    width = rng.randint(0, 4)
    for n, moment in enumerate(moments):
        call, end = moment - rng.randint(0, width), moment + rng.randint(0, width)
        f = rng.choices(("append", "read", "end"), (5, 4, 2))[0]
        if f == "append":
            outcome = rng.choices(("ok", "info", "fail"), (6, 3, 1))[0]
            row = op(n, f, call, end, outcome, input=100 + n)
            if outcome == "ok":
                row["offset"] = len(log)
            if outcome == "ok" or (outcome == "info" and rng.random() < 0.6):
                log.append(100 + n)
        elif f == "read":
            offset = rng.randint(0, len(log) + 1)
            value = log[offset] if offset < len(log) else None
            row = op(n, f, call, end, rng.choice(("ok", "ok", "ok", "info")), offset=offset)
            row["output"] = value if row["outcome"] == "ok" else None
        else:
            row = op(n, f, call, end, output=len(log))
        rows.append(row)
    for _ in range(rng.choice((0, 1, 2, 3))):
        _mutate(rng, rows)
    rng.shuffle(rows)
    return rows


def _mutate(rng: Random, rows: list[Op]) -> None:
    row = rng.choice(rows)
    what = rng.choice(("time", "offset", "output", "swap", "fail"))
    if what == "time":
        shift = rng.randint(-6, 6)
        row["call_ns"] += shift
        if row["return_ns"] is not None:
            row["return_ns"] += shift
    elif what == "offset" and row["offset"] is not None:
        row["offset"] = max(0, row["offset"] + rng.choice((-1, 1)))
    elif what == "output" and row["outcome"] == "ok" and row["f"] == "read":
        row["output"] = rng.choice((None, 100 + rng.randrange(len(rows)), 999))
    elif what == "output" and row["f"] == "end":
        row["output"] = max(0, row["output"] + rng.choice((-1, 1)))
    elif what == "fail" and row["f"] == "append":
        row.update(outcome="fail", offset=None, return_ns=row["return_ns"] or row["call_ns"])
    elif what == "swap":
        other = rng.choice(rows)
        if other["f"] == row["f"] and None not in (other["offset"], row["offset"]):
            row["offset"], other["offset"] = other["offset"], row["offset"]
