"""Checked histories for the tests of `check`'s page and text."""

from __future__ import annotations

from importlib.metadata import entry_points
from random import Random
from typing import Any

from shaketable.checkers.api import Event, check
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.reports.check_page.checked_history import CheckedHistory

HAS_ENTRY_POINT = any(
    point.value == "shaketable.harness.testing.pytest_plugin"
    for point in entry_points(group="pytest11")
)
"""False where the package was installed before it had the plug-in: then it is named."""
WITH_PLUGIN = () if HAS_ENTRY_POINT else ("-p", "shaketable.harness.testing.pytest_plugin")
HOSTILE = "</style><script>window.hostile=1</script><img src=x onerror=window.hostile=2>{{ 7*7 }}"


def checked(*verdicts: Verdict, **more: Any) -> CheckedHistory:
    facts: dict[str, Any] = {
        "path": "store/history.edn", "format": "Jepsen EDN", "model": "cas-register",
        "engine": "local", "seconds": 0.5, "outcomes": {"ok": 3, "fail": 0, "info": 0},
        "keys": 1, "clients": 3,
    }  # fmt: skip
    return CheckedHistory(verdicts=tuple(verdicts), **{**facts, **more})


def stale_read() -> list[Event]:
    return [
        Event(0, "invoke", "write", 3), Event(0, "ok", "write", 3),
        Event(1, "invoke", "write", 4), Event(2, "invoke", "read"), Event(2, "ok", "read", 4),
        Event(1, "ok", "write", 4), Event(2, "invoke", "read"), Event(2, "ok", "read", 3),
    ]  # fmt: skip


def invalid() -> CheckedHistory:
    return checked(check(stale_read(), "cas-register"))


def long_history(operations: int, *, clients: int = 20, seed: int = 5) -> list[Event]:
    """A register that all clients use at once, and one read that nobody can explain at the end."""
    rng = Random(seed)
    events: list[Event] = []
    value: int | None = None
    open_calls: dict[int, tuple[str, Any]] = {}
    now = 0
    while len(events) < 2 * operations:
        now += rng.randrange(1, 1000)
        client = rng.randrange(clients)
        if client not in open_calls:
            f = rng.choice(("read", "write", "cas"))
            asked = {"read": None, "write": rng.randrange(5),
                     "cas": (rng.randrange(5), rng.randrange(5))}[f]  # fmt: skip
            events.append(Event(client, "invoke", f, asked, time_ns=now))
            open_calls[client] = (f, asked)
            continue
        f, asked = open_calls.pop(client)
        if f == "read":
            events.append(Event(client, "ok", f, value, time_ns=now))
        elif f == "write":
            value = asked
            events.append(Event(client, "ok", f, asked, time_ns=now))
        elif asked[0] == value:
            value = asked[1]
            events.append(Event(client, "ok", f, asked, time_ns=now))
        else:
            events.append(Event(client, "fail", f, asked, time_ns=now))
    events.append(Event(clients, "invoke", "write", 0, time_ns=now + 1))
    events += [
        Event(client, "info", f, time_ns=now + 2) for client, (f, _) in sorted(open_calls.items())
    ]
    events += [
        Event(clients, "ok", "write", 0, time_ns=now + 3),
        Event(clients + 1, "invoke", "read", time_ns=now + 4),
        Event(clients + 1, "ok", "read", 99, time_ns=now + 5),
    ]
    return events


def hostile() -> CheckedHistory:
    details = {
        "model": HOSTILE, "method": HOSTILE, "before": 1, "states": [HOSTILE], "stuck": 2,
        "prefix": [{"op": 1, "state": HOSTILE}], "could_not": [{"op": 2, "why": HOSTILE}],
        "operations": [
            {"op": 1, "process": 0, "call": HOSTILE, "call_ns": 1, "return_ns": 9, "outcome": "ok"},
            {"op": 2, "process": 1, "call": HOSTILE, "call_ns": 2, "return_ns": 5, "outcome": "ok"},
        ],
    }  # fmt: skip
    finding = Finding("not-linearizable", HOSTILE, HOSTILE, None, (2, 1), details)
    other = Finding(HOSTILE, HOSTILE, "k", 4, (7,))
    row = dict.fromkeys(("input", "output", "offset", "expected", "extra"))
    rows = {7: row | {"op": 7, "process": 3, "f": HOSTILE, "call_ns": 3, "return_ns": 4,
                      "outcome": "ok"}}  # fmt: skip
    verdict = Verdict("linearizable", Outcome.INVALID, HOSTILE, (finding, other), 2,
                      data={"traceback": HOSTILE})  # fmt: skip
    return checked(verdict, path=HOSTILE, notes=(HOSTILE,), cut=HOSTILE, rows=rows)


def undecided() -> CheckedHistory:
    part = {**invalid().verdicts[0].findings[0].details, "why": "time", "key": None,
            "message": "undecided when the budget of time was used up"}  # fmt: skip
    verdict = Verdict("linearizable", Outcome.UNKNOWN, "undecided", data={"undecided": [part]})
    return checked(verdict)


def anomalies() -> CheckedHistory:
    """A finding of a checker that knows nothing of orders and states: it names its operations."""
    finding = Finding("lost-element", "9 was acknowledged and never read", "q", None, (4, 8))
    rows = {
        op: {"op": op, "process": op, "f": f, "input": given, "output": output, "offset": None,
             "expected": None, "extra": None, "call_ns": op * 1000, "return_ns": op * 1000 + 700,
             "outcome": "ok"}
        for op, f, given, output in ((4, "enqueue", 9, None), (8, "dequeue", None, None))
    }  # fmt: skip
    verdict = Verdict("total-queue", Outcome.INVALID, "1 lost-element", (finding,), 1)
    return checked(verdict, model=None, rows=rows)
