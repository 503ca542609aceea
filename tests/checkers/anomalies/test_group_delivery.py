"""The delivery to a consumer group against its definition, told in plain loops; and at scale."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa

from shaketable.checkers.queues.group_delivery import AGAIN, LOST, OUT_OF_ORDER, PLUGIN
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.anomaly_histories import EVERYTHING
from tests.support.checker_histories import context, op, table

ABOUT = context(promises=EVERYTHING)
STEPS = ("poll",) * 8 + ("commit", "fetch", "assign") * 2 + ("reset",)
BACK = ("nonmonotonic-poll", "int-nonmonotonic-poll")
COMMITS = ("commit", "reset")
RULES = (LOST, AGAIN, OUT_OF_ORDER, "poll-skip", *BACK)


def group_history(rng: Random, size: int, *, breaks: bool):
    """Return what producers and consumers of one queue see; with `breaks` it may lie anywhere."""
    queue, rows, at, starts_over = [], [], 0, set()
    committed, position, asked = 0, {}, {}
    busy = dict.fromkeys(range(5), 0)
    for n in range(size):
        process = rng.randrange(5)
        at += rng.randint(1, 3)
        call = max(busy[process], at - rng.randint(0, 3))
        at = max(at, call)
        end = at + rng.randint(0, 3)
        busy[process] = end + 1
        f = next_step(rng, process, position, starts_over)
        row = op(n, f, call, end, process=process)
        if f == "send":
            row.update(input=100 + n, offset=len(queue))
            queue.append(100 + n)
            if rng.random() < 0.1:
                row.update(outcome="info", offset=None, return_ns=None)
                if rng.random() < 0.5:
                    queue.pop()
                row["process"] = 100 + n
        elif f == "assign":
            position[process] = asked.pop(process, committed)
            if breaks and rng.random() < 0.2:
                position[process] = rng.randint(0, len(queue))
            row.update(offset=position[process], call_ns=at, return_ns=at)
        elif f == "fetch":
            row["output"] = asked[process] = committed
        elif f == "commit":
            committed = position[process]
            row["input"] = committed
        elif f == "reset":  # who sets the group back begins there, whoever commits meanwhile
            committed = asked[process] = rng.randint(0, position[process])
            starts_over.add(process)
            row["input"] = committed
        else:
            begin = position[process]
            if breaks and rng.random() < 0.1:
                begin = rng.randint(0, len(queue))
            some = list(enumerate(queue))[begin : begin + rng.randint(1, 3)]
            if breaks and len(some) > 1 and rng.random() < 0.05:
                some.reverse()
            row["extra"] = json.dumps({"output": some})
            position[process] = max([begin, *(offset + 1 for offset, _ in some)])
        rows.append(row)
    return rows


def next_step(rng: Random, process: int, position, starts_over):
    if process < 2:
        return "send"
    if process in starts_over:
        starts_over.remove(process)
        return "assign"
    return rng.choice(STEPS if process in position else ("fetch", "assign"))


def by_definition(rows):
    """Return how often each rule is broken, by looking at everything with everything."""
    found = Counter()
    sends = [row for row in rows if row["f"] == "send"]
    polls = [row for row in rows if row["f"] == "poll"]
    brought = [(row, *pair) for row in polls for pair in json.loads(row["extra"])["output"]]
    values = {value for _, _, value in brought}
    standing = {o for _, o, _ in brought} | {r["offset"] for r in sends if r["outcome"] == "ok"}
    for send in sends:
        if send["outcome"] == "ok" and send["input"] not in values:
            offset = send["offset"]
            is_ahead = any(
                row["f"] in COMMITS and row["outcome"] != "fail" and row["input"] > offset
                and row["input"] > given_before(rows, row) + 1
                for row in rows
            )  # fmt: skip
            is_passed = any(
                (o == offset if is_ahead else o >= offset) and poll["return_ns"] > send["call_ns"]
                for poll, o, _ in brought
            ) or any(
                row["f"] == "assign"
                and row["offset"] > offset
                and row["call_ns"] > send["return_ns"]
                and not is_ahead
                for row in rows
            )
            is_passed |= is_ahead and gone_over(rows, send)
            is_gone = any(
                not json.loads(poll["extra"])["output"]
                and poll["call_ns"] > send["return_ns"]
                and stood(rows, poll) <= offset
                for poll in polls
            )
            found[LOST] += is_passed or is_gone
    sender = {row["input"]: row for row in sends}
    last, newest = {}, {}
    for row in sorted((r for r in rows if r["f"] in ("poll", "assign")), key=lambda r: r["op"]):
        process = row["process"]
        if row["f"] == "assign":
            last[process], newest[process] = row["offset"] - 1, {}
            continue
        start = session(rows, row)
        for place, (offset, value) in enumerate(json.loads(row["extra"])["output"]):
            found[BACK[place > 0]] += offset <= last[process]
            found["poll-skip"] += place == 0 and any(last[process] < o < offset for o in standing)
            last[process] = offset
            when, until = asked_at(rows, start)
            floor = min(least_committed(rows, when, until), known_end(rows, when))
            found[AGAIN] += offset < floor
            told = sender[value]
            before = newest[process].get(told["process"], -1)
            found[OUT_OF_ORDER] += told["op"] < before
            newest[process][told["process"]] = told["op"]
    return found


def given_before(rows, commit):
    """Return the offset that its process had been given last, -1 if none."""
    mine = [r for r in rows if r["process"] == commit["process"] and r["op"] < commit["op"]]
    polls = sorted((r for r in mine if r["f"] == "poll"), key=lambda r: r["op"])
    return [-1, *(o for r in polls for o, _ in json.loads(r["extra"])["output"])][-1]


def gone_over(rows, send):
    """Return whether a consumer that stood at or before it was given next what is behind it."""
    for poll in (row for row in rows if row["f"] == "poll"):
        place = stood(rows, poll)
        for offset, _ in json.loads(poll["extra"])["output"]:
            if place <= send["offset"] < offset and poll["return_ns"] > send["call_ns"]:
                return True
            place = offset + 1
    return False


def session(rows, poll):
    """Return where the poll's consumer began."""
    mine = [r for r in rows if r["process"] == poll["process"] and r["op"] < poll["op"]]
    return [r for r in mine if r["f"] == "assign"][-1]


def asked_at(rows, start):
    """Return from when to when the consumer that begins there asked where."""
    mine = [r for r in rows if r["process"] == start["process"] and r["op"] < start["op"]]
    began = max((r["op"] for r in mine if r["f"] == "assign"), default=-1)
    mine = [r for r in mine if r["op"] > began]
    told = [r for r in mine if r["f"] in ("fetch", "reset", "poll")]
    if told and told[-1]["f"] == "reset":
        return told[-1]["return_ns"] + 1, told[-1]["return_ns"] + 1
    if fetches := [r for r in mine if r["f"] == "fetch"]:
        return fetches[-1]["call_ns"], fetches[-1]["return_ns"]
    polls = [r for r in mine if r["f"] == "poll"]
    return (polls or [start])[-1]["call_ns"], start["call_ns"]


def known_end(rows, when):
    """Return how far the queue reached by then, as far as its clients knew."""
    over = [r for r in rows if r["outcome"] == "ok" and r["return_ns"] < when]
    sent = [r["offset"] for r in over if r["f"] == "send"]
    brought = [o for r in over if r["f"] == "poll" for o, _ in json.loads(r["extra"])["output"]]
    return max([*sent, *brought], default=-1) + 1


def stood(rows, poll):
    """Return the offset that a poll looked from on."""
    mine = [r for r in rows if r["process"] == poll["process"] and r["op"] < poll["op"]]
    place = 0
    for row in sorted(mine, key=lambda r: r["op"]):
        if row["f"] == "assign":
            place = row["offset"]
        elif row["f"] == "poll":
            for offset, _ in json.loads(row["extra"])["output"]:
                place = offset + 1
    return place


def least_committed(rows, when, until):
    """Return the least offset that may have been the group's then, -1 if that may be none."""
    commits = [row for row in rows if row["f"] in COMMITS]
    over = [row for row in commits if row["outcome"] == "ok" and row["return_ns"] < when]
    if not over:
        return -1
    newest = max(row["call_ns"] for row in over)
    may = [row for row in commits if row["call_ns"] < max(when, until)]
    return min(row["input"] for row in may if row["return_ns"] >= newest)


def judged(rows):
    verdict = PLUGIN.conclude(PLUGIN.check({"operations": table(rows)}, ABOUT), ABOUT)
    return Counter(finding.kind for finding in verdict.findings), verdict


def test_each_rule_finds_what_its_definition_says():
    seen = Counter()
    for seed in range(160):
        rows = group_history(Random(seed), seed % 45, breaks=True)
        found, _ = judged(rows)
        wanted = by_definition(rows)
        for kind in RULES:
            assert found[kind] == wanted[kind], (seed, kind)
        seen.update(wanted)
    assert all(seen[kind] for kind in RULES), seen


def test_a_queue_that_keeps_its_promises_is_never_accused():
    for seed in range(150):
        rows = group_history(Random(seed), seed % 60, breaks=False)
        found, verdict = judged(rows)
        assert not found, (seed, verdict.findings[0].message)
        assert verdict.outcome in (Outcome.VALID, Outcome.UNKNOWN)


def test_what_was_never_promised_is_observed():
    rows = group_history(Random(5), 45, breaks=True)
    plain = context()
    verdict = PLUGIN.conclude(PLUGIN.check({"operations": table(rows)}, plain), plain)
    assert verdict.outcome is not Outcome.INVALID
    assert not verdict.findings
    assert verdict.observed
    assert "does not promise" in verdict.summary


def test_a_large_queue_is_judged_whole():
    """By columns, not message by message: 1,000,000 take 4 s."""
    size, batch = 200_000, 32
    sends = np.arange(size)
    polls = np.arange(0, size, batch)
    outputs = [
        json.dumps({"output": [[o, o] for o in range(first, min(first + batch, size))]})
        for first in polls.tolist()
    ]
    number = len(polls)
    none = pa.nulls(size + 2 * number, pa.string())
    f = ["send"] * size + ["poll"] * number + ["commit"] * number
    zeros = np.zeros(number, np.int64)
    of_polls = 10 * (np.minimum(polls + batch, size) + 1)
    calls = np.concatenate((10 * sends, of_polls, of_polls + 4))
    is_send = np.arange(len(f)) < size
    operations = pa.table(
        {
            "op": pa.array(np.arange(len(f))),
            "process": pa.array(np.concatenate((zeros[:0], sends % 7, zeros + 8, zeros + 8))),
            "f": f,
            "key": ["q/0"] * len(f),
            "input": pa.array(np.concatenate((sends, zeros, polls)), mask=_only_polls(f)),
            "expected": pa.nulls(len(f), pa.int64()),
            "output": pa.nulls(len(f), pa.int64()),
            "offset": pa.array(np.concatenate((sends, zeros, zeros)), mask=~is_send),
            "call_ns": pa.array(calls),
            "return_ns": pa.array(calls + 2),
            "outcome": ["ok"] * len(f),
            "error": none,
            "node": none,
            "extra": pa.array([None] * size + outputs + [None] * number, pa.string()),
        },
        OPERATIONS,
    )
    verdict = PLUGIN.conclude(PLUGIN.check({"operations": operations}, ABOUT), ABOUT)
    assert verdict.outcome is Outcome.VALID, verdict.summary
    assert verdict.counts["messages_polled"] == size


def _only_polls(f):
    return np.array([each == "poll" for each in f])
