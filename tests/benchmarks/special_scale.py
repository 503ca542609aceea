"""Times the cases that need no search: registers, queues, stacks, logs, sets.

Run: python -m tests.benchmarks.special_scale [--operations 1000000] [OBJECT...]

Each row is the whole checker, `linearizable`, on one object: encoding, the closing of unknown
outcomes and the decision, in processor time of one process, warmed by a small history. The last
column is for one value changed in a read near the end, which must be found.
"""

from __future__ import annotations

import argparse
import sys
import time

import pyarrow as pa

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome
from tests.support import synthetic_histories as made

OBJECTS = {
    "register": (made.unique_register, "read"),
    "fifo-queue": (made.unique_fifo, "dequeue"),
    "append-log": (made.append_log, "read"),
    "stack": (made.unique_stack, "pop"),
    "priority-queue": (made.unique_priority_queue, "poll"),
    "membership-set": (made.members, "contains"),
}
CLIENTS = (5, 50, 500)
UNKNOWN = (0.0, 0.02)


def judge(model: str, table: pa.Table) -> tuple[Outcome, str, float]:
    """Judge one object's history; return the outcome, the method and the seconds."""
    checker = Linearizable(discovery.get("models", model))
    context = CheckContext((), {}, Promises())
    began = time.process_time()
    verdict = checker.conclude(checker.check({"operations": table}, context), context)
    spent = time.process_time() - began
    by = [name.removeprefix("by_") for name in verdict.counts if name.startswith("by_")]
    return verdict.outcome, ", ".join(by), spent


def spoil(operations: list[made.Operation], f: str) -> None:
    """Let a read near the end answer the value of another."""
    reads = [o for o in operations if o.f == f and o.output is not None]
    if f == "contains":  # one answer may have been right as well: the last hundredth is wrong
        for read in reads[-len(reads) // 100 :]:
            read.output = 1 - (read.output or 0)
    else:
        reads[-len(reads) // 100].output = reads[len(reads) // 2].output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("objects", nargs="*", default=[], metavar="OBJECT")
    asked = parser.parse_args()
    count = asked.operations
    say = sys.stdout.write
    say(f"{'object':16s}{'clients':>8s}{'unknown':>8s}{'valid s':>9s}{'wrong s':>9s}  method\n")
    for model in asked.objects or OBJECTS:
        make, f = OBJECTS[model]
        judge(model, made.as_table(make(1, 1000, 5, 0.02)))
        for clients in CLIENTS:
            for unknown in UNKNOWN:
                operations = make(count + clients, count, clients, unknown)
                right, method, right_s = judge(model, made.as_table(operations))
                spoil(operations, f)
                wrong, _, wrong_s = judge(model, made.as_table(operations))
                assert (right, wrong) == (Outcome.VALID, Outcome.INVALID), (right, wrong)
                row = f"{model:16s}{clients:8d}{unknown:8.0%}{right_s:9.2f}{wrong_s:9.2f}"
                say(f"{row}  {method}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
