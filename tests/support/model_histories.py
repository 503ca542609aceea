"""A text format for small histories of any model's operations.

    # invalid fifo fifo-queue
    # says: took a value though
    0..1   p0 enqueue 1  -> ok
    2..3   p0 enqueue 2  -> ok
    4..5   p1 dequeue    -> ok 2
    4..?   p2 dequeue    -> info

The first line says the verdict, what must decide it, and the model; the second a part of the
message. Arguments are JSON: the input, for a cas the expected value before it; `@3` is an offset.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checker_histories import op

_LINE = re.compile(
    r"(?P<call>\d+)\.\.(?P<end>\d+|\?)\s+p(?P<process>\d+)\s+(?P<f>[a-z]+(?:-[a-z]+)*)(?P<arguments>.*?)"
    r"->\s*(?P<outcome>ok|fail|info)(?P<output>.*)"
)


@dataclass(frozen=True, slots=True)
class Golden:
    verdict: str
    method: str
    model: str
    says: str
    rows: list[dict[str, Any]]


def golden(path: Path) -> Golden:
    text = path.read_text(encoding="utf-8")
    first, second, *_ = [*text.splitlines(), ""]
    verdict, method, model = first.removeprefix("#").split()
    says = second.removeprefix("# says:").strip() if second.startswith("# says:") else ""
    return Golden(verdict, method, model, says, parse_model_history(text))


def parse_model_history(text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        assert match, f"{raw!r} is no operation"
        outcome = match["outcome"]
        end = None if match["end"] == "?" else int(match["end"])
        assert (end is None) == (outcome == "info"), f"{raw!r}: info returns at ?"
        row = op(len(rows), match["f"], int(match["call"]), end, outcome, key="k")
        row["process"] = int(match["process"])
        extra: dict[str, Any] = {}
        arguments = match["arguments"].split()
        if arguments and arguments[-1].startswith("@"):
            row["offset"] = int(arguments.pop()[1:])
        values = json.loads(f"[{','.join(arguments)}]") if match["f"] != "txn" else []
        if match["f"] == "txn":
            values = [json.loads(match["arguments"])]
        if len(values) == 2:
            row["expected"] = values.pop(0)
        for name, texts in (("input", values), ("output", [match["output"].strip()])):
            for value in texts:
                found = json.loads(value) if name == "output" and value else value or None
                put(row, extra, name, found)
        row["extra"] = json.dumps(extra) if extra else None
        rows.append(row)
    return rows


def put(row: dict[str, Any], extra: dict[str, Any], name: str, value: Any) -> None:
    if type(value) is int or value is None:
        row[name] = value
    else:
        extra[name] = value
