"""Histories in every format become the same operations; damage is told and never passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign import History, jepsen, read_history
from shaketable.harness.history.schema import OPERATIONS

EVENTS = [
    # process, type, f, value
    (0, "invoke", "write", 3),
    (1, "invoke", "read", None),
    (0, "ok", "write", 3),
    ("nemesis", "info", "kill", None),
    (1, "ok", "read", 3),
    (2, "invoke", "cas", (3, 4)),
    (3, "invoke", "cas", (1, 2)),
    (2, "ok", "cas", (3, 4)),
    (3, "fail", "cas", (1, 2)),
    (1, "invoke", "write", 5),
    (1, "info", "write", "timed-out"),
    (0, "invoke", "read", None),
]
COLUMNS = ("process", "f", "input", "expected", "output", "outcome", "error")
EXPECTED = [
    (0, "write", 3, None, None, "ok", None),
    (1, "read", None, None, 3, "ok", None),
    (2, "cas", 4, 3, 1, "ok", None),
    (3, "cas", 2, 1, None, "fail", None),
    (1, "write", 5, None, None, "info", "timed-out"),
    (0, "read", None, None, None, "info", None),
]


def edn_value(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, tuple):
        return "[" + " ".join(map(edn_value, value)) + "]"
    return f":{value}" if isinstance(value, str) else str(value)


def edn_maps() -> list[str]:
    return [
        f"{{:process {edn_value(p)}, :type :{kind}, :f :{f}, :value {edn_value(v)}}}"
        for p, kind, f, v in EVENTS
    ]


def json_events() -> list[str]:
    lines = []
    for number, (p, kind, f, v) in enumerate(EVENTS):
        line = {"time_ns": 10 * number, "process": -1 if p == "nemesis" else p, "type": kind,
                "f": f, "value": None if kind == "info" else v}  # fmt: skip
        if kind == "info":
            line["error"] = v
        lines.append(json.dumps(line))
    return lines


def console() -> list[str]:
    lines = ["10:31:01 INFO  starting up 3 nodes"]
    for p, kind, f, v in EVENTS:
        value = f"\t{edn_value(v)}"
        lines.append(f"INFO  jepsen.util - {edn_value(p)}\t:{kind}\t:{f}{value}")
        lines.append("WARN  something else :ok happened")
    return lines


def operation_lines() -> list[str]:
    lines = []
    for number, (p, f, given, expected, output, outcome, error) in enumerate(EXPECTED):
        line = {"process": p, "f": f, "call_ns": 10 * number, "input": given, "error": error,
                "expected": expected, "output": output, "outcome": outcome}  # fmt: skip
        if outcome != "info":
            line["return_ns"] = 10 * number + 15
        lines.append(json.dumps(line))
    return lines


TEXTS = {
    "one-a-line.edn": "\n".join(edn_maps()),
    "vector.edn": "; a comment\n[" + "\n ".join(edn_maps()) + "]\n",
    "list.edn": "(" + " ".join(edn_maps()) + ")",
    "tagged.edn": "\n".join("#jepsen.history.Op" + each for each in edn_maps()) + "\n",
    "spread.edn": "[" + "\n".join(edn_maps()).replace(", ", ",\n  ") + "]",
    "nested.edn": "\n".join(each.replace("}", ", :debug {:at [1]}}") for each in edn_maps()),
    "events.jsonl": "\n".join(json_events()) + "\n",
    "console.log": "\n".join(console()) + "\n",
    "operations.jsonl": "\n".join(operation_lines()) + "\n",
}


def read(tmp_path: Path, name: str, text: str, **how: str) -> History:
    path = tmp_path / name
    path.write_text(text)
    return read_history(path, **how)


def rows(history: History) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in COLUMNS) for row in history.operations.to_pylist()]


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_says_the_same(tmp_path: Path, name: str) -> None:
    history = read(tmp_path, name, TEXTS[name])
    assert rows(history) == EXPECTED
    assert history.incomplete is None
    assert history.notes == ()
    assert history.operations.schema == OPERATIONS
    calls, returns = history.operations["call_ns"], history.operations["return_ns"]
    # The write was over before the second cas was called, and overlapped the read.
    assert returns[0].as_py() > calls[1].as_py()
    assert returns[0].as_py() < calls[2].as_py()


def test_parquet_is_read_with_the_columns_that_it_has(tmp_path: Path) -> None:
    whole = read(tmp_path, "a.edn", TEXTS["vector.edn"])
    pq.write_table(whole.operations, tmp_path / "whole.parquet")
    assert read_history(tmp_path / "whole.parquet").operations.equals(whole.operations)
    few = whole.operations.drop_columns(["op", "extra", "node", "offset"])
    (tmp_path / "folder").mkdir()
    pq.write_table(few.slice(0, 2), tmp_path / "folder" / "1.parquet")
    pq.write_table(few.slice(2), tmp_path / "folder" / "2.parquet")
    history = read_history(tmp_path / "folder")
    assert rows(history) == EXPECTED
    assert history.operations["op"].to_pylist() == list(range(6))


def test_a_cut_parquet_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    pq.write_table(OPERATIONS.empty_table(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match="cut or no Parquet"):
        read_history(path)


@pytest.mark.parametrize("name", ["one-a-line.edn", "vector.edn", "events.jsonl", "console.log"])
def test_a_cut_last_line_leaves_a_prefix(tmp_path: Path, name: str) -> None:
    text = TEXTS[name].rstrip().rstrip("]")
    if name == "console.log":
        text = text.rpartition("\n")[0]  # behind it stands a line that is no event
    history = read(tmp_path, name, text[:-4])
    lines = text.count("\n")
    assert history.hole is None
    assert history.cut is not None
    assert f"{name}, line {lines + 1} (byte " in history.cut
    assert rows(history) == EXPECTED[:-1]


def test_a_vector_that_nothing_closes_is_cut(tmp_path: Path) -> None:
    history = read(tmp_path, "open.edn", TEXTS["vector.edn"].rstrip().rstrip("]"))
    assert rows(history) == EXPECTED
    assert history.cut is not None


def test_a_cut_file_of_operations_lacks_any_of_them(tmp_path: Path) -> None:
    history = read(tmp_path, "o.jsonl", TEXTS["operations.jsonl"][:-9])
    assert history.cut is None
    assert history.hole is not None
    assert "line 6" in history.hole


def test_a_cut_file_whose_times_are_not_in_order_has_a_hole(tmp_path: Path) -> None:
    lines = json_events()
    text = "\n".join([*lines[4:], *lines[:4]])[:-7]
    history = read(tmp_path, "o.jsonl", text)
    assert history.cut is None
    assert history.hole is not None


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("one-a-line.edn", "{:process 3, :type [}"),
        ("vector.edn", "{:process 3, :type"),
        ("events.jsonl", '{"process": 3'),
        ("events.jsonl", '{"process": 3}'),
        ("console.log", "INFO 3\t:ok\t:cas\t[1 2"),
        ("console.log", "INFO 3\t:ok"),
        ("console.log", "{:process 3, :type :ok, :f :cas}"),
        ("console.log", '{"process": 3, "type": "ok", "f": "cas"}'),
        ("one-a-line.edn", "INFO jepsen.util - 3\t:ok\t:cas\t[1 2]"),
        ("one-a-line.edn", '{"process": 3, "type": "ok", "f": "cas"}'),
        ("events.jsonl", "{:process 3, :type :ok, :f :cas}"),
        ("operations.jsonl", "{}"),
    ],
)
def test_a_damaged_line_is_a_hole(tmp_path: Path, name: str, damage: str) -> None:
    lines = TEXTS[name].split("\n")
    lines[3] = damage
    history = read(tmp_path, name, "\n".join(lines))
    assert history.hole is not None
    assert f"{name}, line" in history.hole
    assert len(rows(history)) >= 3


def test_a_completion_without_its_invoke_is_a_hole(tmp_path: Path) -> None:
    history = read(tmp_path, "a.edn", "\n".join(edn_maps()[1:]))
    assert history.hole is not None
    assert "event 2: the ok of write by process 0 has no invoke before it" in history.hole


def test_a_process_that_invokes_again_leaves_its_operation_open(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1}
{:process 0, :type :invoke, :f :write, :value 2}
{:process 0, :type :ok, :f :write, :value 2}
"""
    history = read(tmp_path, "a.edn", text)
    assert [row[5] for row in rows(history)] == ["info", "ok"]
    assert history.incomplete is None
    assert "1 operations have no end" in history.notes[0]


def test_a_process_goes_on_under_its_number_after_info(tmp_path: Path) -> None:
    text = """0\t:invoke\t:write\t1
0\t:info\t:write\t:timed-out
0\t:invoke\t:write\t2
0\t:ok\t:write\t2
"""
    history = read(tmp_path, "a.log", text)
    assert [row[5] for row in rows(history)] == ["info", "ok"]
    assert history.incomplete is None
    assert history.notes == ()


INDEPENDENT = """{:process 0, :type :invoke, :f :write, :value [x 1]}
{:process 1, :type :invoke, :f :read, :value [7 nil]}
{:process 0, :type :ok, :f :write, :value [x 1]}
{:process 1, :type :ok, :f :read, :value [7 3]}
{:process 1, :type :invoke, :f :cas, :value [7 [3 4]]}
{:process 1, :type :info, :f :cas, :value :timed-out}
"""


def test_tuples_are_split_by_their_key(tmp_path: Path) -> None:
    history = read(tmp_path, "a.edn", INDEPENDENT, partition_by="key")
    got = [(row["key"], row["f"], row["input"], row["expected"], row["output"])
           for row in history.operations.to_pylist()]  # fmt: skip
    assert got == [("7", "read", None, None, 3), ("7", "cas", 4, 3, None),
                   ("x", "write", 1, None, None)]  # fmt: skip


def test_tuples_that_are_not_split_are_pointed_out(tmp_path: Path) -> None:
    text = "\n".join(INDEPENDENT.splitlines()[:4])
    assert "--partition-by key" in read(tmp_path, "a.edn", text).notes[0]


def test_fields_called_key_are_keys(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :append, :key "a", :value "x"}
{:process 0, :type :ok, :f :append, :key "a", :value "x"}
{:process 0, :type :invoke, :f :get, :key "b", :value nil}
{:process 0, :type :ok, :f :get, :key "b", :value "y"}
"""
    history = read(tmp_path, "a.edn", text)
    got = [(row["key"], row["extra"]) for row in history.operations.to_pylist()]
    assert got == [("a", '{"input":"x"}'), ("b", '{"output":"y"}')]
    assert set(read_history(tmp_path / "a.edn", "none").operations["key"].to_pylist()) == {None}


def test_our_own_lines_say_the_columns(tmp_path: Path) -> None:
    event = {"process": 0, "f": "append", "key": "q", "error": None}
    lines = [
        event | {"index": 0, "time_ns": 5, "type": "invoke", "value": {"input": 17}, "node": None},
        event | {"index": 1, "time_ns": 9, "type": "ok", "value": {"offset": 3}, "node": "n1"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (row,) = read(tmp_path, "h.jsonl", text).operations.to_pylist()
    assert (row["input"], row["output"], row["offset"], row["node"]) == (17, None, 3, "n1")
    assert (row["call_ns"], row["return_ns"], row["op"]) == (5, 9, 0)


def test_times_that_disagree_with_the_order_are_pushed_on(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :write, :value 1, :time 100}
{:process 0, :type :ok, :f :write, :value 1, :time 100}
{:process 1, :type :invoke, :f :read, :time 90}
{:process 1, :type :ok, :f :read, :value 1, :time 500}
"""
    history = read(tmp_path, "a.edn", text)
    got = [(row["call_ns"], row["return_ns"]) for row in history.operations.to_pylist()]
    assert got == [(100, 101), (102, 500)]
    assert history.is_timed


@pytest.mark.parametrize("text", ["", "\n \n", "[]", "; nothing\n"])
def test_a_file_without_events_is_empty(tmp_path: Path, text: str) -> None:
    history = read(tmp_path, "a", text)
    assert (history.operations.num_rows, history.events, history.incomplete) == (0, 0, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hello there\n", "no history that is known (hello there)"),
        ('[{"process": 0}]', "no event and no operation"),
        ("\x1f\x8b", "compressed"),
        ("STSEG1\r\n", "give the folder of its run"),
        ('{"process": true, "type": "ok", "f": "x"}\n{}\n', "line 1 (byte 0)"),
        ("{:process 1}\n", "no event (it needs :process, :type and :f)"),
        ("1 :invoke :cas 3\n", "the value of a cas is [old new], not 3"),
    ],
)
def test_what_is_no_history_gets_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_history(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_history(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="it is empty"):
        read_history(tmp_path / "empty")


def test_a_long_history_is_read_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jepsen, "CHUNK_BYTES", 37)
    for name in ("list.edn", "spread.edn", "vector.edn", "nested.edn"):
        assert rows(read(tmp_path, name, TEXTS[name])) == EXPECTED


def test_sets_and_lists_stand_in_extra(tmp_path: Path) -> None:
    text = """{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value #{3 1 2}}
{:process 0, :type :invoke, :f :drain}
{:process 0, :type :ok, :f :drain, :value [5 6]}
"""
    history = read(tmp_path, "a.edn", text)
    extra = [json.loads(each) for each in history.operations["extra"].to_pylist()]
    assert extra == [{"output": [1, 2, 3]}, {"output": [5, 6]}]
    assert history.operations["output"].combine_chunks().equals(pa.nulls(2, pa.int64()))
