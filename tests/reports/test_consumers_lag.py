"""How far consumers are behind: by offsets, queue by queue."""

from __future__ import annotations

import json

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.plotting import client_plots as lags
from shaketable.reports.plotting.client_plots import consumer_lag

S = 1_000_000_000


def table(*rows: dict[str, object]) -> pa.Table:
    whole = []
    for op, row in enumerate(rows):
        full = dict.fromkeys(OPERATIONS.names)
        full.update(op=op, process=0, outcome="ok", **row)
        whole.append(full)
    return pa.Table.from_pylist(whole, schema=OPERATIONS)


def send(time_s: float, key: str, offset: int) -> dict[str, object]:
    return {"f": "send", "key": key, "input": offset, "offset": offset,
            "call_ns": round((time_s - 0.01) * S), "return_ns": round(time_s * S)}  # fmt: skip


def poll(time_s: float, key: str, *offsets: int) -> dict[str, object]:
    told = json.dumps({"output": [[offset, 7] for offset in offsets]})
    return {"f": "poll", "key": key, "extra": told, "call_ns": round((time_s - 0.01) * S),
            "return_ns": round(time_s * S)}  # fmt: skip


def at(found: lags.ConsumerLag, values: object, time_s: float) -> float:
    """Return a value at the end of the slice that ends at that time."""
    return float(values[list(found.ends_s.round(3)).index(time_s)])  # type: ignore[index]


def test_what_is_acknowledged_and_not_delivered_waits() -> None:
    rows = [send(1 + n / 10, "t/0", n) for n in range(10)] + [send(2, "t/1", 0)]
    rows += [poll(2.5, "t/0", 0, 1, 2), poll(3.5, "t/0", 3, 4, 5, 6, 7, 8, 9), poll(3.6, "t/1")]
    found = consumer_lag(table(*rows), 10 * S)
    assert found is not None
    assert [queue for queue, _ in found.undelivered] == ["t/0", "t/1"]
    whole = dict(found.undelivered)
    assert at(found, whole["t/0"], 2.4) == 10
    assert at(found, whole["t/0"], 3.0) == 7
    assert at(found, whole["t/0"], 4.0) == 0
    assert at(found, found.undelivered_all, 4.0) == 1
    assert found.most == 11
    assert found.uncommitted_all is None


def test_what_comes_again_makes_no_lag_smaller_and_commits_count_by_themselves() -> None:
    rows = [send(1, "t/0", n) for n in range(6)]
    rows += [poll(2, "t/0", 0, 1, 2, 3), poll(3, "t/0", 0, 1)]
    rows += [{"f": "commit", "key": "t/0@group", "input": 2, "call_ns": 2 * S, "return_ns": 3 * S}]
    found = consumer_lag(table(*rows), 10 * S)
    assert found is not None
    assert found.uncommitted_all is not None
    assert at(found, found.undelivered_all, 5.0) == 2
    assert at(found, found.uncommitted_all, 2.5) == 6
    assert at(found, found.uncommitted_all, 5.0) == 4


def test_a_row_a_message_is_read_too() -> None:
    one = {
        "f": "poll",
        "key": "t/0",
        "offset": 1,
        "output": 7,
        "call_ns": 2 * S,
        "return_ns": 3 * S,
    }
    found = consumer_lag(table(send(1, "t/0", 0), send(1, "t/0", 1), send(1, "t/0", 2), one), 9 * S)
    assert found is not None
    assert at(found, found.undelivered_all, 4.0) == 1


def test_a_run_without_consumers_has_none() -> None:
    assert consumer_lag(table(send(1, "t/0", 0)), S) is None
    assert consumer_lag(table(), S) is None


def test_hostile_polls_are_no_messages() -> None:
    hostile = ('{"output": [[99999999999999999999, 1]]}', "[[", '{"output": []}', "x" * 5000)
    polls = [{**poll(2, "t/0"), "extra": extra} for extra in hostile]
    found = consumer_lag(table(send(1, "t/0", 0), *polls), 4 * S)
    assert found is not None
    assert found.undelivered_all[-1] == 1


def test_the_queues_with_the_most_are_shown() -> None:
    rows = [send(1, f"t/{queue}", n) for queue in range(20) for n in range(queue + 1)]
    found = consumer_lag(table(*rows, poll(2, "t/0", 0)), 4 * S)
    assert found is not None
    assert [queue for queue, _ in found.undelivered][:2] == ["t/19", "t/18"]
    assert len(found.undelivered) == lags.QUEUES_MAX
    assert found.queues == 20
    assert found.undelivered_all[-1] == sum(range(1, 21)) - 1
