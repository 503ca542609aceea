"""evidence/entries.json as a page reads it: side by side, and whatever stands in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shaketable.reports.violation_page import node_evidence
from shaketable.reports.violation_page.node_evidence import entries_around, map_around, read_kept

KEY = "q/0"
COLUMNS = ["index", "term", "crc", "key", "offset", "value", "size", "problem"]


def write(folder: Path, logs: dict[str, list[list[Any]]], **more: Any) -> None:
    nodes = {
        node: {"entries": len(rows), "first": 0, "last": len(rows) - 1, "committed": 3,
               "problem": None}
        for node, rows in logs.items()
    }  # fmt: skip
    value = {"format": 1, "columns": COLUMNS, "nodes": nodes, "places": [], "entries": logs,
             "maps": [], "left_out": 0} | more  # fmt: skip
    (folder / "evidence").mkdir()
    (folder / "evidence" / "entries.json").write_text(json.dumps(value))


def entry(index: int, offset: int | None, value: int | None, term: int = 1) -> list[Any]:
    key = None if offset is None else KEY
    return [index, term, 1000 * term + index, key, offset, value, 90, None]


def test_entries_stand_side_by_side_and_those_that_differ_are_marked(tmp_path: Path) -> None:
    same = [entry(n, n, 10 + n) for n in range(3)]
    write(tmp_path, {"n0": [*same, entry(3, 3, 17)], "n1": [*same, entry(3, 3, 99, term=2)],
                     "n2": same})  # fmt: skip
    found = entries_around(read_kept(tmp_path), KEY, 3, ())
    assert found is not None
    assert found.nodes == ("n0", "n1", "n2")
    assert [row.index for row in found.rows] == [0, 1, 2, 3]
    last = found.rows[-1].cells
    assert [[each.value for each in cell] for cell in last] == [[17], [99], []]
    assert all(each.is_at_place and each.differs for cell in last for each in cell)
    assert not any(each.differs for row in found.rows[:3] for cell in row.cells for each in cell)
    assert dict(found.of_nodes)["n2"].startswith("nothing; its log ends at index 2")
    assert dict(found.of_nodes)["n0"].startswith("value 17 (entry 3, term 1)")


def test_where_nobody_has_it_the_logs_end_is_shown(tmp_path: Path) -> None:
    write(tmp_path, {"n0": [entry(n, n, n) for n in range(8)], "n1": []})
    found = entries_around(read_kept(tmp_path), KEY, 40, ())
    assert found is not None
    assert [row.index for row in found.rows] == [3, 4, 5, 6, 7]
    assert dict(found.of_nodes)["n1"].startswith("nothing; its log ends at index -1")


def test_two_places_far_apart_leave_a_gap(tmp_path: Path) -> None:
    write(tmp_path, {"n0": [entry(n, n, n) for n in range(60)]})
    found = entries_around(read_kept(tmp_path), None, None, (5, 50))
    assert found is not None
    assert [row.index for row in found.rows if row.gap] == [46]


def test_logs_whose_index_is_a_byte_show_neighbours(tmp_path: Path) -> None:
    write(tmp_path, {"n0": [entry(n * 200, n, n) for n in range(9)]})
    found = entries_around(read_kept(tmp_path), KEY, 4, ())
    assert found is not None
    assert [row.index for row in found.rows] == [n * 200 for n in range(9)]
    assert not any(row.gap for row in found.rows)


def test_what_was_not_kept_of_a_node_is_not_called_nothing(tmp_path: Path) -> None:
    """n1 lacks index 5, and of it entries are kept up to index 10 only: there is more behind."""
    logs = {"n0": [entry(n, n, n) for n in range(1, 10)],
            "n1": [entry(n, n, n) for n in (*range(1, 5), *range(6, 11))]}  # fmt: skip
    write(tmp_path, logs)
    found = entries_around(read_kept(tmp_path), None, None, (5,))
    assert found is not None
    assert [row.index for row in found.rows] == [*range(1, 10)]
    assert [row.kept for row in found.rows] == [(True, True)] * 9
    assert found.rows[4].cells[1] == ()


def test_bytes_of_a_log_that_were_not_kept_are_not_called_nothing(tmp_path: Path) -> None:
    far = [entry(n * 200, n, n) for n in range(20, 29)]
    far[4][4] = 4  # the same offset stands elsewhere on n1
    write(tmp_path, {"n0": [entry(n * 200, n, n) for n in range(9)], "n1": far})
    found = entries_around(read_kept(tmp_path), KEY, 4, ())
    assert found is not None
    kept = {row.index: row.kept for row in found.rows}
    assert (kept.pop(800), kept.pop(4_800)) == ((True, True), (True, True))  # looked for on both
    assert {told for index, told in kept.items() if index < 4_000} == {(True, False)}
    assert {told for index, told in kept.items() if index >= 4_000} == {(False, True)}


def test_of_a_log_that_cannot_be_read_nothing_is_claimed(tmp_path: Path) -> None:
    facts = {"entries": 1, "first": 0, "last": 0, "problem": None}
    nodes = {"n0": facts, "n1": {"entries": 0, "problem": "its files cannot be read"}}
    write(tmp_path, {"n0": [entry(0, 0, 10)], "n1": []}, nodes=nodes)
    found = entries_around(read_kept(tmp_path), KEY, 0, ())
    assert found is not None
    assert found.rows[0].kept == (True, False)
    said = dict(found.of_nodes)["n1"]
    assert said == "a log that was not read whole (its files cannot be read); found of it: nothing"


def test_a_place_that_was_not_kept_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"n0": []})
    found = entries_around(read_kept(tmp_path), KEY, 4, ())
    assert found is not None
    assert found.notes == (node_evidence.NOT_THIS,)


def test_what_is_about_no_place_has_no_entries(tmp_path: Path) -> None:
    write(tmp_path, {"n0": [entry(0, 0, 0)]})
    assert entries_around(read_kept(tmp_path), KEY, None, ()) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "7", "null", '{"format": 2}', "[" * 100_000, '{"format": 1, "nodes": 7}',
        '{"format": 1, "nodes": {"n0": {}}, "entries": {"n0": [7, [], ["x"], [null]]},'
        ' "columns": 7, "maps": [7, {"key": "q/0", "first": "x"}], "places": {}}',
        '{"format": 1, "nodes": {"n0": {}}, "columns": ["index"], "entries": {"n0": [[true]]},'
        ' "maps": [{"key": "q/0", "first": 0, "last": 9, "nodes": {"n0": {"stretches":'
        ' [[5, 2, "other", 1], [0, 99, "other", 1], [0, 1, "x", 1], [0], 7]}, "n1": 7}}]}',
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_a_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "entries.json").write_text(text)
    kept = read_kept(tmp_path)
    found = entries_around(kept, KEY, 4, ())
    assert found is not None
    assert found.rows == ()
    assert found.notes
    drawn = map_around(kept, KEY, 4)
    assert drawn is None or not any(strip.stretches for strip in drawn.strips)


def test_the_map_marks_the_offset_and_stays_inside(tmp_path: Path) -> None:
    strip = {"counts": {"present": 99, "missing": 1, "other": 0},
             "stretches": [[0, 98, "present", 0], [99, 99, "missing", 1]]}  # fmt: skip
    write(tmp_path, {"n0": []}, maps=[{"key": KEY, "first": 0, "last": 99, "acknowledged": 100,
                                       "bin": 1, "nodes": {"n0": strip}}])  # fmt: skip
    drawn = map_around(read_kept(tmp_path), KEY, 99)
    assert drawn is not None
    (only,) = drawn.strips
    assert only.counts == (("present", 99), ("missing", 1), ("other", 0))
    last = only.stretches[-1]
    assert last.x + last.width <= node_evidence.MAP_WIDTH - node_evidence.RIGHT + 0.01
    assert drawn.marker is not None
    assert last.x - 3 <= drawn.marker <= last.x + last.width + 3
    assert map_around(read_kept(tmp_path), "q/1", 99) is None
