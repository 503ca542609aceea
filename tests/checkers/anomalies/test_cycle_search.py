"""The cycle search: components against networkx, cycles told edge by edge, long and large ones."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np
import pytest

from shaketable.checkers.anomalies import dependencies
from shaketable.checkers.anomalies.cycles import Cycles, explode
from shaketable.checkers.anomalies.dependencies import search
from shaketable.checkers.anomalies.observations import load_log
from shaketable.checkers.kernels.components import components
from shaketable.harness.contracts.verdict import Outcome
from tests.support.anomaly_histories import judge, kinds_of, parse
from tests.support.checker_histories import context, op, table


def test_components_agree_with_networkx():
    for seed in range(400):
        rng = Random(seed)
        size = rng.randint(0, 12)
        edges = (
            [(rng.randrange(size), rng.randrange(size)) for _ in range(rng.randint(0, 20))]
            if size
            else []
        )
        ends = np.array(edges, dtype=np.int64).reshape(len(edges), 2)
        number = components(size, ends[:, 0].copy(), ends[:, 1].copy())
        net = nx.DiGraph(edges)
        net.add_nodes_from(range(size))
        expected = {frozenset(part) for part in nx.strongly_connected_components(net)}
        parts = {frozenset(np.flatnonzero(number == n).tolist()) for n in set(number.tolist())}
        assert parts == expected, f"seed {seed}"
        assert all(number[a] >= number[b] for a, b in edges)


def test_components_need_no_recursion():
    size = 200_000
    nodes = np.arange(size, dtype=np.int64)
    assert len(set(components(size, nodes[:-1], nodes[1:]).tolist())) == size
    assert set(components(size, nodes, np.roll(nodes, -1)).tolist()) == {0}


def test_every_edge_is_said_in_words(tmp_path):
    rows = parse("""
        0..10  p0 append q/0 5 -> ok 3
        11..20 p1 append q/0 9 -> ok 2
        21..30 p2 read q/0 2 -> ok 9
    """)
    [finding] = judge(tmp_path, rows, "cycles").findings
    assert finding.message == (
        "q/0: a cycle of 2 operations: op 1 (append 9 at offset 2) comes before op 0 (append 5 at"
        " offset 3) in q/0; but op 0 returned before op 1 was called."
    )
    assert finding.operations == (1, 0)
    assert [edge["edge"] for edge in finding.details["cycle"]] == ["ww", "realtime"]
    rows = parse("0..10 p0 read q/0 0 -> ok 1\n10..20 p0 append q/0 1 -> ok 0")
    [finding] = judge(tmp_path, rows, "cycles").findings
    assert finding.message == (
        "q/0: a cycle of 2 operations: op 1 (append 1 at offset 0) was seen by op 0 (read) at"
        " offset 0 of q/0; but op 0 came before op 1 in the same process."
    )


def test_the_shortest_way_goes_along_an_order_in_one_step(tmp_path):
    # Fifty appends one after the other; the first one's offset and the last one's are exchanged.
    rows = [op(n, "append", 10 * n, 10 * n + 5, input=n, offset=n) for n in range(50)]
    rows[0]["offset"], rows[49]["offset"] = 49, 0
    [finding] = judge(tmp_path, rows, "cycles").findings
    assert finding.kind == "G0-realtime"
    assert len(finding.operations) == 2
    assert finding.details["component"] == 50


def test_a_large_component_is_told_by_two_sends_at_any_distance(tmp_path, monkeypatch):
    monkeypatch.setattr(dependencies, "MEMBERS_MAX", 40)
    for process in (None, 7):
        rows = [op(n, "append", 10 * n, 10 * n + 5, input=n, offset=n) for n in range(210)]
        rows[5]["offset"], rows[195]["offset"] = 195, 5
        if process is not None:
            rows[5]["process"] = rows[195]["process"] = process
        [finding] = judge(tmp_path, rows, "cycles").findings
        assert finding.kind == ("G0-realtime" if process is None else "G0-process")
        assert len(finding.operations) == 2
        assert process is not None or finding.details["component"] == 191


@pytest.mark.parametrize("is_small_inside", [True, False])
def test_a_large_component_is_told_by_a_part_or_by_its_size(tmp_path, monkeypatch, is_small_inside):
    monkeypatch.setattr(dependencies, "MEMBERS_MAX", 40)
    # Reads alone turn the order: each sees what is appended far behind it.
    rows = [op(n, "append", 10 * n, 10 * n + 5, input=n, offset=n) for n in range(200)]
    rows.append(op(200, "read", 990, 995, offset=199, output=199))
    if is_small_inside:
        rows.append(op(201, "read", 1500, 1502, offset=155, output=155))
    verdict = judge(tmp_path, rows, "cycles")
    assert verdict.outcome is Outcome.INVALID
    told = [finding.message for finding in verdict.findings]
    assert any("too long to show" in message for message in told) != is_small_inside


def test_cycles_over_keys_need_the_whole_history(tmp_path):
    rows = parse("""
        0..10  p0 send q/0 1 -> ok 0
        &      p0 send q/1 2 -> ok 1
        0..10  p1 send q/0 3 -> ok 1
        &      p1 send q/1 4 -> ok 0
    """)
    assert judge(tmp_path, rows, "cycles").outcome is Outcome.VALID
    [finding] = judge(tmp_path, rows, "transaction-cycles").findings
    assert finding.message == (
        "q/0, q/1: a cycle of 2 operations: op 0 (send 1 at offset 0) comes before op 1 (send 3"
        " at offset 1) in q/0; but op 1 (send 4 at offset 0) comes before op 0 (send 2 at offset"
        " 1) in q/1."
    )


WHOLE = (
    '{"input": [["send", "q/0", 1], ["poll"]],'
    ' "output": [["send", "q/0", [0, 1]], ["poll", {"q/1": [[0, 2], [1, 3]]}]]}'
)


def test_transactions_recorded_whole_are_exploded(tmp_path):
    first = op(0, "txn", 0, 10, key=None, extra=WHOLE)
    unknown = op(1, "txn", 0, None, "info", key=None, extra=WHOLE)
    rows = explode(table([first, unknown])).to_pylist()
    assert [(row["op"], row["f"], row["key"], row["input"], row["offset"]) for row in rows] == [
        (0, "send", "q/0", 1, 0),
        (0, "poll", "q/1", None, None),
        (1, "send", "q/0", 1, None),
    ]
    other = '{"output": [["send", "q/1", [0, 2]], ["poll", {"q/0": [[0, 1]]}]]}'
    both = [first, op(2, "txn", 0, 10, key=None, extra=other)]
    assert kinds_of(judge(tmp_path, both, "transaction-cycles")) == ["G1c"]
    # A checker that splits by key would not see all of it: it refuses.
    verdict = judge(tmp_path, both, "log-anomalies")
    assert verdict.outcome is Outcome.UNKNOWN
    assert "explode it first" in verdict.data["traceback"]
    for extra in ('{"output": [["pull", 1]]}', '{"output": 3}', '{"output": [["send", "q", 4]]}'):
        with pytest.raises(ValueError, match=r"transaction 0: .* is no micro-operation"):
            explode(table([op(0, "txn", 0, 10, key=None, extra=extra)]))


def test_values_sent_twice_leave_it_unknown(tmp_path):
    rows = parse("0..10 p0 append q/0 1 -> ok 0\n11..20 p0 append q/0 1 -> ok 1")
    verdict = judge(tmp_path, rows, "cycles")
    assert verdict.outcome is Outcome.UNKNOWN
    assert "1 in q/0" in verdict.summary


def test_a_hundred_thousand_operations_of_a_correct_log_have_no_cycle():
    rng = np.random.default_rng(7)
    size = 100_000
    effect = np.arange(size) * 10 + rng.integers(0, 9, size)
    rows = [
        op(n, "append", int(e) - 50, int(e) + 50, input=n, offset=n, process=n % 20)
        for n, e in enumerate(effect)
    ]
    searched = search([load_log(table(rows))])
    assert searched.cycles == ()
    assert searched.invocations == size
    assert Cycles().check({"operations": table(rows[:0])}, context()).num_rows == 1
