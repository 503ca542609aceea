"""What is kept of the nodes' logs around findings, and the map of a queue."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.logs import entries_around
from shaketable.checkers.logs.entries_around import (
    AckedAppends,
    NodeOffsets,
    Place,
    Read,
    collect,
    map_of,
)
from shaketable.harness.history.schema import ENTRIES, OPERATIONS

KEY = "q/0"


def row(index: int, offset: int | None, value: int | None, term: int = 1) -> dict[str, object]:
    key = None if offset is None else KEY
    return {"node": "n", "index": index, "term": term, "position": index, "size": 1, "crc": index,
            "key": key, "offset": offset, "value": value, "problem": None}  # fmt: skip


def reader(rows: list[dict[str, object]], batch: int = 3) -> Read:
    def read() -> Iterator[pa.RecordBatch]:
        for begin in range(0, len(rows), batch):
            yield pa.RecordBatch.from_pylist(rows[begin : begin + batch], schema=ENTRIES)

    return read


def acked(*pairs: tuple[int, int]) -> AckedAppends:
    rows = [{"offset": offset, "input": value} for offset, value in pairs]
    schema = pa.schema([OPERATIONS.field("offset"), OPERATIONS.field("input")])
    return AckedAppends.of(pa.Table.from_pylist(rows, schema))


def indices(found: dict, node: str) -> list[int]:
    return [each[0] for each in found["entries"][node]]


def test_each_node_keeps_its_entries_around_where_any_node_has_the_place() -> None:
    whole = [row(n, n, 10 + n) for n in range(30)]
    other = [row(n, n, 10 + n) for n in range(9)] + [row(9, None, None, term=2)]
    other += [row(n + 10, n + 9, 99 + n, term=2) for n in range(20)]
    logs = {"n0": reader(whole), "n1": reader(other), "n2": reader([])}
    found = collect(logs, [Place(KEY, 20)], {}, {"n0": 29, "n1": 29})
    assert found["places"][0]["at"] == {"n0": [20], "n1": [21], "n2": []}
    assert indices(found, "n0") == indices(found, "n1") == list(range(16, 26))
    assert indices(found, "n2") == []
    assert found["nodes"]["n2"] == {
        "entries": 0, "first": None, "last": None, "committed": None, "problem": None
    }  # fmt: skip
    assert found["nodes"]["n1"]["last"] == 29


def test_a_place_that_no_node_has_is_shown_by_what_stands_before_it() -> None:
    found = collect({"n0": reader([row(n, n, n) for n in range(12)])}, [Place(KEY, 50)], {}, {})
    assert indices(found, "n0") == [7, 8, 9, 10, 11]


def test_an_index_is_a_place_too_and_bytes_as_indices_keep_neighbours() -> None:
    logs = {"n0": reader([row(n * 100, n, n) for n in range(12)])}
    found = collect(logs, [Place(index=500)], {}, {})
    assert indices(found, "n0") == [100, 200, 300, 400, 500, 600, 700, 800, 900]


def test_a_log_that_cannot_be_read_is_a_problem_and_no_traceback() -> None:
    def read() -> Iterator[pa.RecordBatch]:
        raise FileNotFoundError(2, "No such file or directory")
        yield  # pragma: no cover - what makes it a generator

    found = collect({"n0": read, "n1": reader([row(0, 0, 1)])}, [Place(KEY, 0)], {}, {})
    assert found["nodes"]["n0"]["problem"] == "its files cannot be read: No such file or directory"
    assert indices(found, "n1") == [0]


def test_places_entries_and_what_is_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_around, "PLACES_MAX", 2)
    monkeypatch.setattr(entries_around, "ENTRIES_KEPT_MAX", 5)
    monkeypatch.setattr(entries_around, "ENTRIES_READ_MAX", 20)
    logs = {"n0": reader([row(n, n, n) for n in range(30)])}
    found = collect(logs, [Place(KEY, n) for n in (3, 8, 19, 3)], {}, {})
    assert found["left_out"] == 1
    assert indices(found, "n0") == [0, 1, 2, 3, 4]
    assert "only the first 18 entries" in found["nodes"]["n0"]["problem"]


def test_what_comes_after_the_read_limit_is_neither_kept_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entries_around, "ENTRIES_READ_MAX", 20)
    rows = [row(n, n, n) for n in range(40)]
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start, stop in ((0, 10), (10, 25), (25, 30), (30, 40)):
            read.append(start)
            yield pa.RecordBatch.from_pylist(rows[start:stop], schema=ENTRIES)

    found = collect({"n0": batches}, [Place(KEY, 9)], {}, {})
    assert indices(found, "n0") == [5, 6, 7, 8, 9]
    assert read == [0, 10, 0, 10]


def offsets(*pairs: tuple[int, int | None]) -> NodeOffsets:
    rows = [
        {"index": n, "ordinal": n, "offset": offset, "value": value, "problem": None}
        for n, (offset, value) in enumerate(pairs)
    ]
    names = [ENTRIES.field(name) for name in ("index", "offset", "value", "problem")]
    schema = pa.schema([*names, pa.field("ordinal", pa.int64())])
    return NodeOffsets.of(pa.Table.from_pylist(rows, schema))


def test_a_map_tells_what_is_there_what_is_not_and_what_is_something_else() -> None:
    appends = acked((0, 10), (1, 11), (2, 12), (4, 14))
    told = map_of(
        KEY,
        appends,
        {"n0": offsets((0, 10), (1, 99), (4, 14)), "n1": None, "n2": offsets((0, None), (2, 12))},
        None,
    )
    assert (told["first"], told["last"], told["acknowledged"], told["bin"]) == (0, 4, 4, 1)
    assert told["nodes"]["n0"]["counts"] == {"present": 2, "missing": 1, "other": 1}
    assert told["nodes"]["n0"]["stretches"] == [
        [0, 0, "present", 0], [1, 1, "other", 1], [2, 2, "missing", 1], [4, 4, "present", 0],
    ]  # fmt: skip
    assert told["nodes"]["n1"]["stretches"] == [[0, 2, "missing", 3], [4, 4, "missing", 1]]
    assert told["nodes"]["n2"]["counts"] == {"present": 1, "missing": 2, "other": 1}


def test_what_stands_behind_the_committed_index_is_no_copy() -> None:
    told = map_of(KEY, acked((0, 10), (1, 11)), {"n0": offsets((0, 10), (1, 11))}, 0)
    assert told["nodes"]["n0"]["counts"] == {"present": 1, "missing": 1, "other": 0}


def test_a_value_that_stands_second_at_its_offset_is_there() -> None:
    told = map_of(KEY, acked((0, 10)), {"n0": offsets((0, 7), (0, 10), (0, 8))}, None)
    assert told["nodes"]["n0"]["counts"] == {"present": 1, "missing": 0, "other": 0}


def test_one_loss_among_a_million_is_on_the_map() -> None:
    count = 1_000_000
    values = np.arange(count, dtype=np.int64)
    nobody = np.ones(count, dtype=np.bool_)
    altered = values.copy()
    altered[777_777] = -1
    node = NodeOffsets(values, values, values, altered, nobody)
    told = map_of(KEY, AckedAppends(values, values), {"n0": node}, None)
    stretches = told["nodes"]["n0"]["stretches"]
    assert len(stretches) == 3
    begin, end, state, wrong = stretches[1]
    assert begin <= 777_777 <= end
    assert (state, wrong) == ("other", 1)
    assert end - begin < count // (entries_around.BINS_MAX - 1)


def test_offsets_without_end_need_no_memory_without_end() -> None:
    told = map_of(KEY, acked((0, 1), (2**62, 2)), {"n0": offsets((2**62, 2))}, None)
    assert [each[2] for each in told["nodes"]["n0"]["stretches"]] == ["missing", "present"]


def test_a_queue_without_acknowledged_appends_has_an_empty_map() -> None:
    assert map_of(KEY, acked(), {"n0": None}, None)["nodes"] == {}


def test_an_append_is_found_behind_any_number_of_entries_at_its_offset() -> None:
    stored = [(7, 99)] * 1_000 + [(7, 10), (7, 98)]
    told = map_of(KEY, acked((7, 10), (8, 11)), {"n0": offsets(*stored)}, None)
    assert told["nodes"]["n0"]["counts"] == {"present": 1, "missing": 1, "other": 0}
    told = map_of(KEY, acked((7, 12)), {"n0": offsets(*stored)}, None)
    assert told["nodes"]["n0"]["counts"] == {"present": 0, "missing": 0, "other": 1}
