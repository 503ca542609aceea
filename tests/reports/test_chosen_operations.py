"""What the table of operations holds of a large run: nothing that matters is sampled away."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.run_page import chosen_operations as chosen
from shaketable.reports.run_page.chosen_operations import (
    TEXT_CHARACTERS_MAX,
    choose,
    named_operations,
    pack,
)
from shaketable.reports.run_page.html import DIVISORS, PACKED_CHARACTERS_MAX, packed_table

COUNT = 60_000
MS = 1_000_000


def table(count: int = COUNT, **columns: list[object]) -> pa.Table:
    """Return operations by key and time, as the export writes them: four keys, ten clients."""
    number = np.arange(count)
    part = np.sort(number % 4, kind="stable")
    call = (number % (count // 4)) * MS
    whole: dict[str, object] = {
        "op": pa.array(2 * number), "process": pa.array(number % 10),
        "f": ["append"] * count, "key": [f"q/{key}" for key in part],
        "input": pa.array(number), "expected": pa.nulls(count, pa.int64()),
        "output": pa.nulls(count, pa.int64()), "offset": pa.array(number),
        "call_ns": pa.array(call), "return_ns": pa.array(call + 3 * MS + number % 1000),
        "outcome": ["ok"] * count, "error": pa.nulls(count, pa.string()),
        "node": ["n0"] * count, "extra": pa.nulls(count, pa.string()), **columns,
    }  # fmt: skip
    return pa.table(whole).cast(OPERATIONS)


def shown(found: chosen.Chosen) -> set[int]:
    return set(found.rows["op"].to_pylist())


def test_a_small_run_is_shown_whole_and_by_time() -> None:
    found = choose(table(4_000), named=[6])
    assert found.is_whole
    assert found.cut == ()
    calls = found.rows["call_ns"].to_pylist()
    assert calls == sorted(calls)
    reasons = dict(zip(found.rows["op"].to_pylist(), found.why.tolist(), strict=True))
    assert reasons[6] & chosen.NAMED
    assert reasons[8] & chosen.NEAR
    assert list(reasons.values()).count(0) > 3_000  # no reason is needed


def test_every_operation_that_a_finding_names_is_in_it_with_its_neighbours() -> None:
    rng = Random(4)
    named = [2 * rng.randrange(COUNT) for _ in range(500)]
    operations = table()
    found = choose(operations, named)
    assert set(named) <= shown(found)
    keys = operations["key"].to_pylist()
    for op in named:
        place = op // 2
        for near in range(place - chosen.NEIGHBOURS, place + chosen.NEIGHBOURS + 1):
            if 0 <= near < COUNT and keys[near] == keys[place]:
                assert 2 * near in shown(found)
    assert found.missing == 0
    assert found.rows.num_rows < COUNT / 4


def test_every_failed_and_unknown_one_is_in_it() -> None:
    outcome = ["info" if n % 50 == 0 else "fail" if n % 77 == 0 else "ok" for n in range(COUNT)]
    found = choose(table(outcome=outcome))
    wrong = {2 * n for n, one in enumerate(outcome) if one != "ok"}
    assert wrong <= shown(found)
    assert found.cut == ()


def test_what_a_limit_cuts_is_counted() -> None:
    outcome = ["info" if n % 2 else "fail" for n in range(COUNT)]
    found = choose(table(outcome=outcome))
    assert found.cut == (
        ("of unknown outcome", COUNT // 2, chosen.UNKNOWN_MAX),
        ("that failed", COUNT // 2, chosen.FAILED_MAX),
    )
    unknown = found.why & chosen.UNKNOWN != 0
    assert int(unknown.sum()) == chosen.UNKNOWN_MAX


def test_more_named_ones_than_the_limit_are_the_first_named() -> None:
    named = [2 * n for n in range(COUNT)][::-1][: chosen.NAMED_MAX + 500]
    found = choose(table(), named)
    assert ("that findings name", chosen.NAMED_MAX + 500, chosen.NAMED_MAX) in found.cut
    assert set(named[: chosen.NAMED_MAX]) <= shown(found)


def test_the_slowest_and_the_ends_of_each_client_are_in_it() -> None:
    operations = table()
    took = operations["return_ns"].to_numpy() - operations["call_ns"].to_numpy()
    slowest = [int(place) for place in np.argsort(-took)[: chosen.SLOWEST]]
    fastest_of_these = min(took[slowest])
    found = choose(operations)
    in_table = found.rows["return_ns"].to_numpy() - found.rows["call_ns"].to_numpy()
    assert (in_table > fastest_of_these).sum() == (took > fastest_of_these).sum()
    processes, calls = operations["process"].to_numpy(), operations["call_ns"].to_numpy()
    edges = found.rows.filter(pa.array(found.why & chosen.EDGE != 0))
    for process in range(10):
        of_it = edges.filter(pa.array(edges["process"].to_numpy() == process))["call_ns"].to_numpy()
        assert {of_it.min(), of_it.max()} == {
            calls[processes == process].min(), calls[processes == process].max(),
        }  # fmt: skip


def test_the_sample_is_even() -> None:
    found = choose(table())
    sampled = found.rows.filter(pa.array(found.why & chosen.SAMPLE != 0))["call_ns"].to_numpy()
    assert len(sampled) == chosen.SAMPLE_MAX
    halves = (sampled < COUNT // 8 * MS).sum(), (sampled >= COUNT // 8 * MS).sum()
    assert abs(halves[0] - halves[1]) < chosen.SAMPLE_MAX / 20


def test_names_of_operations_that_are_not_there_are_counted() -> None:
    found = choose(table(), [2, 3, 5, 2**62])
    assert found.missing == 3
    assert 2 in shown(found)


def test_findings_of_all_checkers_are_asked_for_names() -> None:
    results = {
        "checkers": {
            "a": {"findings": [{"operations": [4, 2]}, {"operations": [2, 9]}], "observed": None},
            "b": {"observed": [{"operations": [7]}, {"operations": "x"}, 3]},
            "c": {"observed": [{"operations": [True]}]},
            "d": "damaged",
        }
    }  # fmt: skip
    assert named_operations(results) == (4, 2, 9, 7)
    assert named_operations({"checkers": []}) == ()
    assert named_operations({"checkers": {"a": {"findings": [{"operations": [2**70]}]}}}) == ()


@pytest.mark.parametrize("count", [0, 4])
def test_few_operations_or_none_pack_well(count: int) -> None:
    packed = json.loads(pack(choose(table(4).slice(0, count), [0, 8])))
    assert packed["rows"] == count
    assert all(len(column) == count for column in packed["columns"].values())


def test_packed_operations_say_what_the_table_says() -> None:
    operations = table(400, error=["late" if n == 7 else None for n in range(400)])
    packed = json.loads(pack(choose(operations)))
    columns, texts = packed["columns"], packed["texts"]
    rows = operations.sort_by([("call_ns", "ascending")])
    by_op = {row["op"]: row for row in rows.to_pylist()}
    ops, calls = np.cumsum(columns["op"]), np.cumsum(columns["call"])
    for n, op in enumerate(ops.tolist()):
        row = by_op[op]
        assert calls[n] == row["call_ns"] // 1000
        assert columns["took"][n] == (row["return_ns"] - row["call_ns"]) // 1000
        assert texts["key"][columns["key"][n]] == row["key"]
        assert columns["input"][n] == row["input"]
        error = columns["error"][n]
        assert (None if error < 0 else texts["error"][error]) == row["error"]


def test_hostile_texts_and_numbers_stay_data() -> None:
    text = "</script><!--<img src=x onerror=1>&\u2028"
    long = "é" * 5000
    operations = table(4, error=[text, long, None, None], input=[2**63 - 1, -(2**60), 0, None])
    packed = pack(choose(operations))
    assert not set("<>&\u2028") & set(packed)
    decoded = json.loads(packed)
    assert text in decoded["texts"]["error"]
    assert all(len(one) <= TEXT_CHARACTERS_MAX + 1 for one in decoded["texts"]["error"])
    assert str(2**63 - 1) in decoded["columns"]["input"]


def test_the_packed_table_of_a_large_run_is_small() -> None:
    outcome = ["info" if n % 3 == 0 else "fail" if n % 3 == 1 else "ok" for n in range(COUNT)]
    error = [f"timed out after {n % 977} ms" if n % 3 else None for n in range(COUNT)]
    named = tuple(2 * n for n in range(0, COUNT, 5))
    view: Any = SimpleNamespace(operations=table(outcome=outcome, error=error), named=named)
    found, packed = packed_table(view)
    assert len(packed) < 1_500_000
    assert set(named[: chosen.NAMED_MAX]) <= shown(found)


def test_the_documents_say_the_limits() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    assert f"A run of up to {chosen.ALL_MAX:,} operations" in text
    table_of_limits = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("|")]
    limits = {which.strip(): most.strip() for which, most in table_of_limits}
    assert (
        limits["all that findings name, whether or not they break a promise"]
        == f"{chosen.NAMED_MAX:,}"
    )
    assert limits["all that are indeterminate"] == f"{chosen.UNKNOWN_MAX:,}"
    assert limits["all that failed"] == f"{chosen.FAILED_MAX:,}"
    assert limits["the slowest"] == f"{chosen.SLOWEST:,}"
    assert limits["the first and the last of each client"] == f"{chosen.CLIENTS_MAX:,} clients"
    assert limits["an even sample of the others"] == f"{chosen.SAMPLE_MAX:,}"
    near = "four before and four after each of these, on the same key"
    assert limits[near] == f"{chosen.NEAR_MAX:,}"
    assert chosen.NEIGHBOURS == 4


def test_with_long_words_of_their_own_fewer_failures_are_shown_and_what_is_named_stays() -> None:
    outcome = ["fail"] * COUNT
    errors: list[object] = [f"{n}: {'no answer from anybody ' * 6}" for n in range(COUNT)]
    named = tuple(2 * n for n in range(0, COUNT, 97))
    rows = table(outcome=list(outcome), error=errors)
    view: Any = SimpleNamespace(operations=rows, named=named)
    found, packed = packed_table(view)
    assert len(packed) <= PACKED_CHARACTERS_MAX < len(pack(choose(rows, named)))
    assert set(named) <= shown(found)
    of, kept = next((of, kept) for what, of, kept in found.cut if what == "that failed")
    assert of == COUNT
    assert kept in [chosen.FAILED_MAX // each.unsuccessful for each in DIVISORS[1:]]


def test_first_and_last_operations_are_counted_once() -> None:
    many = 2 * chosen.CLIENTS_MAX
    clients: list[object] = [n % many if n < many else 0 for n in range(COUNT)]
    cut = {what: of for what, of, _ in choose(table(process=clients)).cut}
    assert cut["first or last of a client"] == many + 1  # all but one did a single operation
