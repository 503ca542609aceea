"""Run folders in which one thing of each kind is wrong, as a judged run leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shaketable.harness.history.schema import EVENTS, OPERATIONS

MS = 1_000_000
S = 1_000 * MS
KEY = "shaketable/0"


@dataclass
class Bad:
    """A small run: n0 led term 1 and was isolated from 10 s on, n1 led term 2 from 11 s on."""

    folder: Path
    operations: list[dict[str, Any]] = field(default_factory=list)
    checkers: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[str, int, int, str, str]] = field(
        default_factory=lambda: [("partition", 10 * S, 14 * S, "isolate leader n0", "90 kB held")]
    )
    """Name, begin, end, what was done, what shows that it bit."""

    def op(self, f: str, call_ns: int, return_ns: int | None, **columns: Any) -> int:
        number = 2 * len(self.operations)
        row = dict.fromkeys(OPERATIONS.names)
        row.update(op=number, process=len(self.operations) % 3, f=f, key=KEY, call_ns=call_ns,
                   return_ns=return_ns, outcome="ok", node="n0")  # fmt: skip
        row.update(columns)
        self.operations.append(row)
        return number

    def find(
        self, checker: str, kind: str, named: list[int], /, *, observed: bool = False,
        message: str = "", key: str | None = KEY, offset: int | None = None, **details: Any,
    ) -> None:  # fmt: skip
        verdict = self.checkers.setdefault(
            checker,
            {"valid": True, "summary": "", "counts": {}, "findings": [], "findings_total": 0,
             "observed": [], "data": {}},
        )  # fmt: skip
        finding = {
            "kind": kind, "message": message or f"{key}: something about {kind}.", "key": key,
            "offset": offset, "operations": named, "details": details,
        }  # fmt: skip
        verdict["observed" if observed else "findings"].append(finding)
        if not observed:
            verdict.update(valid=False, findings_total=verdict["findings_total"] + 1)

    def write(self) -> Path:
        folder = self.folder
        (folder / "history" / "operations").mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(self.operations, schema=OPERATIONS)
        pq.write_table(table, folder / "history" / "operations" / "part-0.parquet")
        plan = {"victims": ["n0"], "leader": "n0"}
        rows = []
        for number, (name, from_ns, to_ns, description, evidence) in enumerate(self.faults):
            told = {"fault": number, "phase": "start", "plan": plan, "description": description}
            over = {
                **told,
                "phase": "stop",
                "took_effect": True,
                "evidence": evidence,
                "measures": {},
            }
            for time_ns, value in ((from_ns, told), (to_ns, over)):
                event = dict.fromkeys(EVENTS.names)
                event.update(index=time_ns, time_ns=time_ns, process=-1, type="info", f=name,
                             value=json.dumps(value))  # fmt: skip
                rows.append(event)
        rows.sort(key=lambda event: event["time_ns"])
        events = pa.Table.from_pylist(rows, schema=EVENTS)
        pq.write_table(events, folder / "history" / "events.parquet")
        status = [
            (1 * S, "n0", "leader", 1), (1 * S, "n1", "follower", 1), (1 * S, "n2", "follower", 1),
            (11 * S, "n1", "leader", 2), (11 * S, "n2", "follower", 2),
            (14 * S, "n0", "follower", 2),
        ]  # fmt: skip
        (folder / "status.jsonl").write_text(
            "".join(
                json.dumps({"time_ns": time_ns, "node": node, "role": role, "term": term}) + "\n"
                for time_ns, node, role, term in status
            )
        )
        run = {
            "status": "complete", "name": "bad", "seed": "7", "world": "process",
            "target": "dledger", "mutant": None, "workload": "log", "nodes": ["n0", "n1", "n2"],
            "faults": ["partition"],
            "phases": [{"name": "chaos", "start_ns": 0, "stop_ns": 20 * S}],
            "command": ["./shaketable", "run", "--seed", "7"],
            "clock": {"unix_ns": 1_000 * S, "utc_offset_s": 7200},
            "promises": {"linearizable": ["append", "end", "read"]},
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(run | self.facts))
        (folder / "campaign.toml").write_text('name = "bad"\nseed = "7"\n')
        (folder / "drain.json").write_text(json.dumps({"nodes": {}}))
        for node in ("n0", "n1", "n2"):
            path = folder / "nodes" / node / "node.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in self.lines.get(node, ())))
        results = {"valid": False, "seed": "7", "checkers": self.checkers,
                   "repeat": "./shaketable run --seed 7"}  # fmt: skip
        (folder / "results.json").write_text(json.dumps(results))
        return folder

    def keep_entries(self, **more: Any) -> None:
        """Write evidence/entries.json: n0 has 17 at offset 3 no more, all have 99 of term 2."""
        columns = ["index", "term", "crc", "key", "offset", "value", "size", "problem"]
        log = [[n, 1, 100 + n, KEY, n, 10 + n, 90, None] for n in range(3)]
        log += [[3, 2, 700, None, None, None, 90, None], [4, 2, 800, KEY, 3, 99, 90, None]]
        told = {"entries": 5, "first": 0, "last": 4, "committed": 4, "problem": None}
        strip = {"counts": {"present": 3, "missing": 0, "other": 1},
                 "stretches": [[0, 2, "present", 0], [3, 3, "other", 1]]}  # fmt: skip
        nodes = ("n0", "n1", "n2")
        value = {
            "format": 1, "columns": columns, "nodes": dict.fromkeys(nodes, told),
            "places": [{"key": KEY, "offset": 3, "index": None, "at": {n: [4] for n in nodes}}],
            "entries": dict.fromkeys(nodes, log),
            "maps": [{"key": KEY, "first": 0, "last": 3, "acknowledged": 4, "bin": 1,
                      "nodes": dict.fromkeys(nodes, strip)}],
            "left_out": 0,
        }  # fmt: skip
        path = self.folder / "evidence" / "entries.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value | more))


@pytest.fixture
def bad(tmp_path: Path) -> Bad:
    folder = tmp_path / "store" / "bad" / "20261122T101500.000Z"
    folder.mkdir(parents=True)
    return Bad(folder)


@pytest.fixture
def lost(bad: Bad) -> Bad:
    """An append is lost: n0 acknowledged it while it was isolated."""
    for n in range(3):
        bad.op("append", (2 + n) * S, (2 + n) * S + 3 * MS, input=10 + n, offset=n)
    append = bad.op("append", 10 * S + 8 * MS, 10 * S + 10 * MS, input=17, offset=3)
    bad.op("append", 12 * S, 12 * S + 3 * MS, input=99, offset=3, node="n1")
    bad.op("read", 16 * S, 16 * S + 2 * MS, output=99, offset=3, node="n1")
    bad.find(
        "durability", "lost-append", [append], offset=3,
        message=f"{KEY}: the append of 17 (op {append}) is lost.",
        value=17, process=0, acknowledged_by="n0", acknowledged_ns=10 * S + 10 * MS, fault=0,
        faults=["partition 0 (isolate leader n0)"], held_by=[],
        instead=dict.fromkeys(("n0", "n1", "n2"), "99 (op 8, entry 4)"),
    )  # fmt: skip
    bad.keep_entries()
    bad.lines = {
        "n0": [
            "--- shaketable: n0 incarnation 1 starts at 0.100 s",
            "1970-01-01T02:16:50.500 level=INFO event=role role=leader",
        ],
        "n1": ["1970-01-01T02:16:51.000 level=INFO event=role role=leader term=2"],
    }
    return bad


@pytest.fixture
def page_of() -> Callable[[Path, str], str]:
    """Return the text of the first page about a kind."""

    def page(folder: Path, kind: str) -> str:
        found = sorted((folder / "violations").glob(f"*-{kind}.html"))
        assert found, f"no page of {kind}"
        return found[0].read_text(encoding="utf-8")

    return page
