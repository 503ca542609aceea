"""Texts of others: JSON arrays, calls and returns, intervals, sessions, and events with gaps."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shaketable.checkers.api import Outcome, check
from shaketable.checkers.linearizability.model_choice import model_names, model_of_recording
from shaketable.harness import cli
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign import History, read_history
from shaketable.harness.history.foreign.texts import KINDS

Row = tuple[Any, ...]


def read(tmp_path: Path, text: str, **how: Any) -> History:
    path = tmp_path / "history.txt"
    path.write_text(text)
    return read_history(path, **how)


def rows(history: History) -> list[Row]:
    """Return (process, f, input, output, outcome) of each operation; those in extra as JSON."""
    found = []
    for row in history.operations.to_pylist():
        extra = json.loads(row["extra"] or "{}")
        values = [extra.get(name, row[name]) for name in ("input", "output")]
        found.append((row["process"], row["f"], *values, row["outcome"]))
    return found


def calls_of(history: History) -> list[tuple[int, int | None]]:
    table = history.operations
    return list(zip(table["call_ns"].to_pylist(), table["return_ns"].to_pylist(), strict=True))


# Jepsen's and Elle's events, with and without :process, :f and values of reads.

ARRAY = """[{"type":"invoke","f":"add","process":0,"value":7,"index":0},
{"type":"ok","f":"add","process":0,"value":7,"index":1},
 {"type":"invoke","f":"read","process":"b","value":null,"index":2},
{"type":"ok","f":"read","process":"b","value":[7],"index":3}]
"""


@pytest.mark.parametrize("text", [ARRAY, ARRAY.replace("\n", ""), "\ufeff\n " + ARRAY])
def test_an_array_of_json_is_a_history(tmp_path: Path, text: str) -> None:
    history = read(tmp_path, text)
    assert history.format == "a JSON array of events"
    assert rows(history) == [(0, "add", 7, None, "ok"), (1_000_000, "read", None, [7], "ok")]
    assert history.incomplete is None
    assert check(history).outcome is Outcome.VALID


def test_an_array_of_operations_is_a_history(tmp_path: Path) -> None:
    text = '[{"process": 1, "f": "add", "call_ns": 3, "return_ns": 9, "input": 4}]'
    assert rows(read(tmp_path, text)) == [(1, "add", 4, None, "ok")]


@pytest.mark.parametrize("size", range(1, len(ARRAY) - 2, 7))
def test_a_cut_array_is_a_prefix(tmp_path: Path, size: int) -> None:
    text = ARRAY[:size]
    try:
        history = read(tmp_path, text)
    except UsageError as error:
        assert "line 1" in str(error) or "no history that is known" in str(error)  # noqa: PT017
        return
    assert history.cut is not None
    assert history.hole is None
    whole = rows(read(tmp_path, ARRAY))
    assert [row[:3] for row in rows(history)] == [row[:3] for row in whole][: len(rows(history))]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"process":0,"value":7,"index":1', '"process":0,"value":7 "index":1', 2),
        (',"index":1},', ',"index":1}', 3),
        ('"type":"ok","f":"add"', '"type":"done","f":"add"', 2),
        ("[7]", "[7]}, 3, {", 4),
        ('index":3}]', 'index":3}] more', 4),
    ],
)
def test_damage_in_an_array_is_a_hole(tmp_path: Path, old: str, new: str, line: int) -> None:
    history = read(tmp_path, ARRAY.replace(old, new))
    assert history.hole is not None
    assert f"line {line} " in history.hole


GAPS = {
    "no f": """{:process 0, :type :invoke, :value [[:append x 1] [:r :y]]}
{:process 0, :type :ok, :value [[:append x 1] [:r :y nil]]}
{:process 1, :type :invoke, :value [[:r :x nil]]}
{:process 1, :type :info, :error :timeout}""",
    "no f in JSON": """[{"process": 0, "type": "invoke", "value": [["append","x",1], ["r","y"]]},
{"process": 0, "type": "ok", "value": [["append","x",1], ["r","y",null]]},
{"process": 1, "type": "invoke", "value": [["r","x",null]]},
{"process": 1, "type": "info"}]""",
    "no process": """[{:type :invoke, :f :txn, :value [[:append x 1] [:r :y nil]]}
{:type :invoke, :f :txn, :value [[:r :x nil]]}
{:type :ok, :f :txn, :value [[:append x 1] [:r :y nil]]}
{:type :info, :f :txn, :value :timeout}]""",
    "neither": """#jepsen.history.Op{:index 0, :type :invoke, :value [[:append :x 1] [:r :y nil]]}
#jepsen.history.Op{:index 1, :type :ok, :value [[:append :x 1] [:r :y nil]]}
#jepsen.history.Op{:index 2, :type :invoke, :value [[:r :x nil]]}""",
}


@pytest.mark.parametrize("name", GAPS)
def test_what_events_lack_is_found_from_the_others(tmp_path: Path, name: str) -> None:
    history = read(tmp_path, GAPS[name])
    asked, read_x = [["append", "x", 1], ["r", "y", None]], [["r", "x", None]]
    assert rows(history) == [(0, "txn", asked, asked, "ok"), (1, "txn", read_x, None, "info")]
    assert history.incomplete is None
    named = [note for note in history.notes if "name no process" in note]
    assert len(named) == (name in ("no process", "neither"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (  # either read may have been answered first
            "{:type :invoke, :value [[:r x nil]]}\n{:type :invoke, :value [[:r x nil]]}\n"
            "{:type :ok, :value [[:r x 1]]}",
            "several open operations",
        ),
        ("{:type :invoke, :value [[:w x 1]]}\n{:type :ok, :value [[:w x 1]]}\n"
         "{:type :ok, :value [[:w x 2]]}", "no open operation"),
        ("{:type :invoke, :value [[:w x 1]]}\n{:type :ok, :process 1, :value [[:w x 1]]}",
         "some events have a process and some have none"),
        ("{:process 0, :type :invoke, :value 3}\n{:process 0, :type :ok, :f :add, :value 3}",
         "no event"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_not_guessed(tmp_path: Path, text: str, why: str) -> None:
    history = read(tmp_path, text + "\n{:process 9, :type :invoke, :f :txn, :value []}"
                   if "no event" in why else text)  # fmt: skip
    assert history.hole is not None
    assert why in history.hole


# Calls and returns.

QUEUE = """# @object queue
# a comment

[1] call add(7)
[a] call remove
[1] return
   [2] call remove()
[a] return 7
[2] return empty
[1] call add(8)
"""


def test_calls_and_returns_are_the_operations_of_their_object(tmp_path: Path) -> None:
    history = read(tmp_path, QUEUE)
    assert (history.model, history.is_timed, history.incomplete) == ("fifo-queue", False, None)
    assert rows(history) == [
        (1, "enqueue", 7, None, "ok"), (1_000_000, "dequeue", None, 7, "ok"),
        (2, "dequeue", None, None, "ok"), (1, "enqueue", 8, None, "info"),
    ]  # fmt: skip
    assert calls_of(history) == [(0, 2), (1, 4), (3, 5), (6, None)]
    assert check(history).outcome is Outcome.VALID
    wrong = read(tmp_path, QUEUE.replace("return empty", "return 9"))
    assert check(wrong).outcome is Outcome.INVALID
    assert check(wrong, "unordered-queue").outcome is Outcome.INVALID


def test_every_kind_of_object_has_a_model() -> None:
    assert {kind.model for kind in KINDS.values()} <= set(model_names())
    with pytest.raises(UsageError, match="it is of a heap, for which there is no model"):
        model_of_recording("heap")


DEQUE = """# @object deque
[1] call push_front(3)
[1] return
[2] call push_back(4)
[2] return
[1] call pop_back
[1] return 3
"""


def test_a_text_of_a_deque_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deque.log"
    path.write_text(DEQUE)
    assert cli.run(["check", str(path)]) == 1
    assert "it took 3, the back is 4" in capsys.readouterr().out
    path.write_text(DEQUE.replace("return 3", "return 4"))
    assert cli.run(["check", str(path)]) == 0


MEMBERS = """# @object set
[1] call insert(1)
[1] return true
[2] call contains(1)
[2] return true
[1] call remove(1)
[1] return false
"""


def test_true_is_the_answer_to_the_call_of_1(tmp_path: Path) -> None:
    history = read(tmp_path, MEMBERS)
    assert [row[:4] for row in rows(history)] == [
        (1, "add", 1, 1), (2, "contains", 1, 1), (1, "remove", 1, 0),
    ]  # fmt: skip
    assert check(history).outcome is Outcome.INVALID
    assert check(read(tmp_path, MEMBERS.replace("false", "true"))).outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("# @object queue\n", "", "no line names the object"),
        ("@object queue", "@object heap", "no object that is known: heap"),
        ("# a comment", "# @object stack", "a second object"),
        ("[1] return\n", "[1] retrn\n", "no call and no return"),
        ("[1] return\n", "[5] return\n", "the ok of return by process 5 has no invoke"),
        ("[1] return\n", "[1] return false\n", "objects that refuse are not known"),
    ],
)
def test_a_damaged_text_of_calls_proves_nothing(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    text = QUEUE.replace(old, new, 1)
    try:
        history = read(tmp_path, text)
    except UsageError as error:
        assert why in str(error)  # noqa: PT017 - one line, whatever is left
        return
    assert why in (history.hole or "")
    assert check(history).outcome is Outcome.UNKNOWN


def test_a_cut_text_of_calls_is_a_prefix(tmp_path: Path) -> None:
    history = read(tmp_path, QUEUE[:-8])
    assert history.cut is not None
    assert history.hole is None
    assert len(rows(history)) == 3


# An operation a line.


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        ("# queue\n0 1 5 ENQ 10\n1 2 6 DEQ 10\n2 7 9 DEQ -1\n", "fifo-queue",
         [(0, "enqueue", 10, None), (1, "dequeue", None, 10), (2, "dequeue", None, None)]),
        ("# queue\nenq 10 1 5\ndeq 10 2 6\n\ndeq -1 7 9", "fifo-queue",
         [(0, "enqueue", 10, None), (1, "dequeue", None, 10), (2, "dequeue", None, None)]),
        ("# stack\n0 1 5 PUSH 1\n4 2 9 PEEK -1\n", "stack",
         [(0, "push", 1, None), (4, "peek", None, None)]),
        ("# pqueue\ninsert 5 1 3\npoll 5 6 7\n", "priority-queue",
         [(0, "insert", 5, None), (1, "poll", None, 5)]),
        ("# set\n0 0 4 INSERT 2 1\n3 1 5 CONTAINS 2 0\n2 5 6 REMOVE 2 1\n", "membership-set",
         [(0, "add", 2, 1), (3, "contains", 2, 0), (2, "remove", 2, 1)]),
        ("# semaphore\n0 0 2 INCR 1\n1 1 4 DECR 0\n", "semaphore",
         [(0, "release", None, 1), (1, "acquire", None, 0)]),
        ("# rmw\n0 1 3 READ_MODIFY_WRITE 0 2\n1 1 3 READ_MODIFY_WRITE 2 3\n", "cas-register",
         [(0, "cas", 2, 1), (1, "cas", 3, 1)]),
        ("# deque\n0 push_front 1 1 2\n1 pop_back 1 2 3\n", "deque",
         [(0, "push-front", 1, None), (1, "pop-back", None, 1)]),
    ],
)  # fmt: skip
def test_an_operation_a_line(tmp_path: Path, text: str, model: str, expected: list[Row]) -> None:
    history = read(tmp_path, text)
    assert (history.model, history.incomplete, history.is_timed) == (model, None, True)
    assert Counter(row[:4] for row in rows(history)) == Counter(expected)


def test_a_read_modify_write_register_starts_at_0(tmp_path: Path) -> None:
    text = "# rmw\n0 1 3 READ_MODIFY_WRITE 0 2\n1 1 3 READ_MODIFY_WRITE 2 3\n"
    assert check(read(tmp_path, text)).outcome is Outcome.VALID
    assert check(read(tmp_path, text), initial=5).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0 9 5 ENQ 10", "returned before it was called"),
        ("0 1 5 ENQ", "ENQ has 0 values; 1 expected"),
        ("0 1 5 ENQ 1 2", "ENQ has 2 values; 1 expected"),
        ("0 one 5 ENQ 1", "no operation with its start and end"),
        (f"0 1 {2**63} ENQ 1", "a time of 64 bits or more"),
    ],
)
def test_a_damaged_operation_of_a_line(tmp_path: Path, line: str, why: str) -> None:
    history = read(tmp_path, f"# queue\n0 1 5 ENQ 10\n{line}\n")
    assert why in (history.hole or "")
    assert "line 3 " in (history.hole or "")


# Sessions of transactions.

SESSIONS = "w x 1\nw y 1\n-----\nr x 1\n=====\n\nr y 0\n-----\n-----\nr y 1\nw z -3\n"
TUPLES = "w(x,1,0,0)\nw(y,1,0,0)\nr(x,1,0,1)\nr(y,0,3,0)\nr(y,1,3,1)\nw(z,-3,3,1)\n"


@pytest.mark.parametrize(("text", "nothing"), [(SESSIONS, 0), (TUPLES, None)])
def test_sessions_are_transactions_in_order(tmp_path: Path, text: str, nothing: object) -> None:
    history = read(tmp_path, text)
    other = 3 if text is TUPLES else 1
    written = [["w", "x", 1], ["w", "y", 1]]
    found = sorted(rows(history), key=lambda row: row[0])
    assert found == [
        (0, "txn", written, written, "ok"),
        (0, "txn", [["r", "x", None]], [["r", "x", 1]], "ok"),
        (other, "txn", [["r", "y", None]], [["r", "y", nothing]], "ok"),
        (other, "txn", [["r", "y", None], ["w", "z", -3]], [["r", "y", 1], ["w", "z", -3]], "ok"),
    ]
    assert "real time is not judged" in str(history.notes)
    assert (history.is_timed, history.incomplete) == (False, None)
    times = calls_of(history)
    assert max(call for call, _ in times) < min(end or 0 for _, end in times)


def test_tuples_may_be_aborted_and_may_mix_sessions(tmp_path: Path) -> None:
    text = "w(1,0,0,0)\nr(1,0,1,1)\nw(1,5,2,-1)\nr(1,5,1,2)\n\nr(2,0,2,4)\n"
    history = read(tmp_path, text)
    assert sorted(rows(history), key=lambda row: row[0]) == [
        (0, "txn", [["w", 1, 0]], [["w", 1, 0]], "ok"),
        (1, "txn", [["r", 1, None]], [["r", 1, 0]], "ok"),  # session 0 wrote it
        (1, "txn", [["r", 1, None]], [["r", 1, 5]], "ok"),
        (2, "txn", [["w", 1, 5]], None, "fail"),
        (2, "txn", [["r", 2, None]], [["r", 2, None]], "ok"),  # nobody did
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("r x 1\nr x\nw x 1\n", "line 2 (byte 6): no 'r KEY VALUE'"),
        ("r x 1\nr x", "line 2 (byte 6): no 'r KEY VALUE'"),
        ("r x 1\n--\nw x 1\n", "line 2"),
        ("r(x,1,0,0)\nr(x,1,0)\n", "line 2 (byte 11): no 'r(key,value,session,txn)'"),
        ("r(x,1,0,0)\nr(x,1,0,1)\nw(x,1,0,0)\n", "transaction 0 of session 0 goes on after"),
    ],
)
def test_damaged_sessions_prove_nothing(tmp_path: Path, text: str, why: str) -> None:
    history = read(tmp_path, text)
    assert why in (history.hole or "")


# Histories of others, which are not part of this repository.

FOLDER = Path(os.environ.get("SHAKETABLE_FRONTIER", "none")).resolve()
REASON = "no histories of others: SHAKETABLE_FRONTIER"
FORMATS = {
    "elle-tests": {"Jepsen EDN"},
    "isolation": {"sessions of transactions"},
    "isovista": {"transactions of sessions, an operation a line"},
    "knossos": {"Jepsen EDN", "a JSON array of events"},
    "queue": {"calls and returns of an object"},
    "stack": {"calls and returns of an object"},
    "transactions": {"Jepsen EDN", "a JSON array of events"},
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)
@pytest.mark.parametrize("name", FORMATS)
def test_histories_of_others_are_read(name: str) -> None:
    files = [path for path in sorted((FOLDER / name).iterdir()) if path.name != "VERDICTS.tsv"]
    assert files
    for path in files:
        history = read_history(path)
        assert history.format in FORMATS[name]
        assert history.incomplete is None
        assert history.operations.num_rows


INITIAL = {"multi-register-good-multi-register.edn": {"x": 0, "y": 0}}
"""The first states that comments in the histories give."""


@pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)
@pytest.mark.parametrize("name", ["queue", "stack", "knossos"])
def test_histories_of_others_get_their_verdicts(name: str) -> None:
    folder = FOLDER / name
    lines = [line.split("\t") for line in (folder / "VERDICTS.tsv").read_text().splitlines()[1:]]
    found = {
        file: check(folder / file, initial=INITIAL.get(file)).outcome.name.lower()
        for file, *_ in lines
    }
    assert found == {file: verdict for file, _, verdict, *_ in lines}
