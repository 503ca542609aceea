"""Whole campaigns for tests of the engines: clean ones, and histories and logs that disagree."""

from __future__ import annotations

from random import Random

from shaketable.checkers import stats, vacuity
from shaketable.checkers.logs import committed_prefix, durability, linearizable_log
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.targets.logs.dledger_files import read_entries
from tests.support.checker_histories import job, op, random_history
from tests.support.dledger_encoder import write_log

ALL = tuple(
    module.PLUGIN for module in (linearizable_log, durability, committed_prefix, stats, vacuity)
)
NODES = ("n0", "n1", "n2")
WINDOWS = (FaultWindow(0, "kill", "kill n1", 0, 9, True, ""),)


def campaign(tmp_path, seed, **more):
    """Many queues with random operations, and logs that partly disagree with them."""
    rng = Random(seed)
    rows, logs = [], {node: [(None, b"", 1)] for node in NODES}
    for queue in range(6):
        for row in random_history(rng, 12):
            row.update(key=f"q/{queue}", op=len(rows), process=len(rows), node="n0")
            if row["f"] == "append":
                row["input"] = 1000 * queue + row["input"]
                for entries in logs.values():
                    if rng.random() < 0.9:
                        entries.append((row["key"], row["input"], 1))
            elif row["output"] is not None and row["f"] == "read":
                row["output"] += 1000 * queue
            rows.append(row)
    directories = {node: tmp_path / f"{node} [odd]{{name}}" for node in NODES}
    for node, entries in logs.items():
        directories[node].mkdir(parents=True)
        write_log(directories[node], node, entries, file_bytes=2048)
    more = {
        "committed": {node: len(logs[node]) - 1 for node in NODES},
        "windows": WINDOWS, "faults_asked": ("kill",), "logs": directories,
        "read_log": read_entries, **more,
    }  # fmt: skip
    return job(tmp_path, rows, ALL, **more)


def clean(tmp_path, file_bytes=4096, **more):
    """A history and logs in which nothing is wrong."""
    rows, entries = [], [(None, b"", 1)]
    for n in range(120):
        key, offset = f"q/{n % 4}", n // 4
        rows.append(op(len(rows), "append", n * 10, n * 10 + 5, input=n, offset=offset, key=key))
        rows.append(op(len(rows), "read", n * 10 + 6, n * 10 + 8, output=n, offset=offset, key=key))
        rows.append(op(len(rows), "end", n * 10 + 6, n * 10 + 8, output=offset + 1, key=key))
        entries.append((key, n, 1))
    logs = {node: tmp_path / node for node in NODES}
    for node, directory in logs.items():
        directory.mkdir(parents=True)
        write_log(directory, node, entries, file_bytes)
    more = {
        "committed": dict.fromkeys(NODES, len(entries) - 1), "logs": logs,
        "read_log": read_entries, "faults_asked": ("kill",),
        "windows": (FaultWindow(0, "kill", "kill n1", 0, 900, True, ""),), **more,
    }  # fmt: skip
    return job(tmp_path, rows, ALL, **more)
