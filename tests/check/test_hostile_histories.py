"""Histories that somebody's bad luck has damaged: one clear line, and never a false verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from check_shell import Shell

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign import jepsen, read_history
from shaketable.harness.history.foreign.edn import EdnError, parse
from shaketable.harness.history.foreign.read import open_source
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.terminal.histories import check as check_terminal

EDN = """[{:process 0, :type :invoke, :f :write, :value 3}
 {:process 0, :type :ok, :f :write, :value 3}
 {:process 1, :type :invoke, :f :read, :value nil}
 {:process 1, :type :ok, :f :read, :value 3}]
"""
EVENTS = """{"process": 0, "type": "invoke", "f": "write", "value": 3}
{"process": 0, "type": "ok", "f": "write", "value": 3}
{"process": 1, "type": "invoke", "f": "read"}
{"process": 1, "type": "ok", "f": "read", "value": 3}
"""
OPERATION_LINES = """{"process": 0, "f": "write", "call_ns": 1, "return_ns": 2, "input": 3}
{"process": 1, "f": "read", "call_ns": 3, "return_ns": 4, "output": 3}
"""
CONSOLE = """0 :invoke :write 3
0 :ok :write 3
1 :invoke :read nil
1 :ok :read 3
"""


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_terminal, "LINE_EVERY_S", 3600.0)  # on a slow machine, too
    return Shell(tmp_path, capsys)


@pytest.mark.parametrize("text", [EDN, EVENTS, OPERATION_LINES, CONSOLE])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_windows_line_ends(shell: Shell, text: str, end: str) -> None:
    (shell.folder / "h").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", end).encode())
    assert shell.check("h") == 0, shell.out + shell.err
    assert shell.err == ""


def test_places_count_the_byte_order_mark(tmp_path: Path) -> None:
    bad = {"h.edn": "{:process 1, :ty}", "h.jsonl": '{"proc: 1, :ty}'}
    for name, text in (("h.edn", EDN), ("h.jsonl", EVENTS)):
        lines = text.splitlines()
        damaged = "\n".join([lines[0], bad[name], *lines[2:]])
        told = []
        for mark in (b"", b"\xef\xbb\xbf"):
            (tmp_path / name).write_bytes(mark + damaged.encode())
            told.append(read_history(tmp_path / name).hole or "")
        at = [int(each.partition("(byte ")[2].partition(")")[0]) for each in told]
        assert at[1] == at[0] + 3


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("h.edn", ["{:process 0, :type :invoke, :f :write, :value \"%\"}",
                   "{:process 0, :type :ok, :f :write, :value \"%\"}",
                   "{:process 0, :type :invoke, :f :read}",
                   "{:process 0, :type :ok, :f :read, :value \"&\"}"]),
        ("h.log", ["0 :invoke :write \"%\"", "0 :ok :write \"%\"", "0 :invoke :read nil",
                   "0 :ok :read \"&\"", ""]),
        ("h.jsonl", ['{"process": 0, "type": "invoke", "f": "write", "value": "%"}',
                     '{"process": 0, "type": "ok", "f": "write", "value": "%"}',
                     '{"process": 0, "type": "invoke", "f": "read"}',
                     '{"process": 0, "type": "ok", "f": "read", "value": "&"}', ""]),
    ],
)  # fmt: skip
def test_texts_in_another_encoding_are_never_taken_for_equal(
    shell: Shell, name: str, lines: list[str]
) -> None:
    """Both letters would become the same sign of replacement, and a wrong read a right one."""
    text = "\n".join(lines).encode().replace(b"%", b"\xe4").replace(b"&", b"\xf6")
    (shell.folder / name).write_bytes(text)
    assert shell.check(name, "--model", "register") in (2, 254)
    assert "UTF-8" in shell.out + shell.err
    assert f"{name}, line 1 (byte " in shell.out + shell.err


def test_messages_of_a_console_log_may_be_in_any_encoding(shell: Shell) -> None:
    (shell.folder / "h.log").write_bytes(b"M\xfcll\n" + CONSOLE.encode())
    assert shell.check("h.log") == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"process": 99999999999999999999, "f": "read", "call_ns": 5, "return_ns": 6}',
        '{"process": 1, "f": "read", "call_ns": 5, "return_ns": 99999999999999999999}',
        '{"process": 1, "f": "read", "call_ns": 9223372036854775807}',
        '{"process": 1, "f": "read", "call_ns": 5, "return_ns": 6, "op": 99999999999999999999}',
        '{"process": 1, "f": "write", "call_ns": 5, "return_ns": 6, "input": 1' + "0" * 5000 + "}",
        '{"process": 1, "f": "write", "call_ns": 5, "input": ' + "[" * 900 + "]" * 900 + "}",
        '{"process": 1, "f": "write", "call_ns": 5, "input": ' + "[" * 9000 + "]" * 9000 + "}",
    ],
)
def test_numbers_and_nesting_without_bounds_are_damage(shell: Shell, line: str) -> None:
    shell.write("o.jsonl", f"{line}\n{OPERATION_LINES}")
    assert shell.check("o.jsonl", "--model", "register") == 2
    assert "o.jsonl, line 1 (byte 0): " in shell.said
    assert len(shell.said) < 2000


@pytest.mark.parametrize(
    "value", ["1" * 5000, "1/0", '"\\ud800"', "[" * 900 + "]" * 900, "#_" * 900 + "1"]
)
def test_values_that_are_none_are_damage(shell: Shell, value: str) -> None:
    shell.write("h.edn", EDN.replace(":value 3", f":value {value}", 1))
    assert shell.check("h.edn", "--model", "register") == 2
    assert "h.edn, line 1 (byte " in shell.said
    assert len(shell.said) < 2000


@pytest.mark.parametrize("field", [":process 0", ":process 0, :time 0"])
def test_a_process_or_time_beyond_all_bounds_is_damage(shell: Shell, field: str) -> None:
    shell.write("h.edn", EDN.replace(":process 0", field + "9" * 30))
    assert shell.check("h.edn", "--model", "register") in (2, 254)
    assert "h.edn, line 1 (byte 1): " in shell.out + shell.err
    assert "64 bits" in shell.out + shell.err


@pytest.mark.parametrize(
    "value",
    ['#{[1 "a"] ["b" 2] {:k 1} nil "x"}', "##NaN", "##Inf", "100000000000000000000000000000N",
     '"\\ud83d\\ude00"', "1/3", '#a/b #c [1 #d {:x #{1 [2] "3"}}]', ":name/space"],
)  # fmt: skip
def test_any_value_of_edn_can_be_written_and_read(shell: Shell, value: str) -> None:
    text = EDN.replace(":value 3", f":value {value}")
    assert shell.check(shell.write("h.edn", text)) == 0, shell.out + shell.err
    wrong = text.replace(f":read, :value {value}", ":read, :value 3")
    assert shell.check(shell.write("h.edn", wrong)) == 1


def test_numbers_of_edn_keep_their_worth() -> None:
    assert parse('"\\ud83d\\ude00"')[0] == "\N{GRINNING FACE}"
    assert parse("1/2")[0] == 0.5
    assert parse("1/3")[0] != parse("100000000000000000001/300000000000000000000")[0]
    assert parse("9" * 400 + "/3")[0] == "3" * 400
    with pytest.raises(EdnError, match="half of a pair"):
        parse('"\\ude00"')


def test_a_long_text_takes_no_more_memory_than_some_copies_of_it() -> None:
    program = """
import resource
from shaketable.harness.history.foreign.edn import parse
resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
text = '"' + "y" * 16_000_000 + '"'
assert len(parse(text)[0]) == 16_000_000
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=110)


def test_an_event_without_end_is_given_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jepsen, "EVENT_CHARACTERS_MAX", 1 << 20)
    long = f"{{:process 7, :type :invoke, :f :write, :value [{'1 ' * (3 << 20)}]}}"
    shell.write("h.edn", EDN.replace("]", f"\n{long}]"))
    assert shell.check("h.edn") == 2
    assert "h.edn, line 5 (byte " in shell.said
    assert "an event of more than 1,048,576 characters" in shell.said


def test_true_is_not_one(shell: Shell) -> None:
    text = OPERATION_LINES.replace(": 3}", ": 1}", 1).replace('"output": 3', '"output": true')
    assert shell.check(shell.write("o.jsonl", text)) == 1


def test_ids_that_several_operations_bear_are_given_anew(shell: Shell) -> None:
    rows = [(0, "write", {"input": 1}), (1, "write", {"input": 2}), (2, "read", {"output": 1})]
    lines = [
        json.dumps({"process": p, "f": f, "call_ns": 10 * p, "return_ns": 10 * p + 1, "op": 7, **v})
        for p, f, v in rows
    ]
    assert shell.check(shell.write("o.jsonl", "\n".join(lines) + "\n")) == 1
    assert "|-X read 1" in shell.out
    assert "client 0" in shell.out
    assert "numbered anew" in shell.said
    events = [line.replace("}", ', "index": 1}') for line in EVENTS.splitlines()]
    assert shell.check(shell.write("e.jsonl", "\n".join(events) + "\n")) == 0
    assert "numbered anew" in shell.said


@pytest.mark.parametrize("process", ["", ":process nil, "])
def test_a_fault_may_have_no_process(shell: Shell, process: str) -> None:
    """A client's `info` without its process would leave its call open: unknown, as it is."""
    fault = f"{{{process}:type :info, :f :start, :value nil}}"
    assert shell.check(shell.write("h.edn", EDN.replace("[{", f"[{fault}\n{{"))) == 0


@pytest.mark.parametrize("process", ['"nemesis"', "-1"])
def test_a_fault_among_operations_is_no_operation(shell: Shell, process: str) -> None:
    fault = f'{{"process": {process}, "f": "kill", "call_ns": 0, "return_ns": 9}}\n'
    assert shell.check(shell.write("o.jsonl", fault + OPERATION_LINES)) == 0


def test_a_pipe_or_a_device_is_refused(shell: Shell) -> None:
    os.mkfifo(shell.folder / "pipe")
    for path in ("pipe", "/dev/zero"):
        assert shell.check(path) == 254
        assert "is no file" in shell.err
        assert shell.err.count("\n") == 1


def test_what_hides_the_model_is_said(shell: Shell) -> None:
    shell.write("h.edn", EDN.replace(":value 3", ":value 1/0"))
    assert shell.check("h.edn") == 254
    assert "h.edn, line 1 (byte " in shell.err
    shell.write("h.jsonl", EVENTS.replace("write", "w" * 100_000))
    assert shell.check("h.jsonl") == 254
    assert len(shell.err) < 1000


def table(**columns: list[Any]) -> pa.Table:
    given: dict[str, list[Any]] = {
        "op": [0, 1], "process": [0, 1], "f": ["write", "read"], "key": [None, None],
        "input": [3, None], "expected": [None, None], "output": [None, 3], "offset": [None, None],
        "call_ns": [1, 3], "return_ns": [2, 4], "outcome": ["ok", "ok"], "error": [None, None],
        "node": [None, None], "extra": [None, None], **columns,
    }  # fmt: skip
    return pa.table(given, schema=OPERATIONS)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"outcome": [None, "ok"]}, "none of ok, fail, info"),
        ({"outcome": ["maybe", "ok"]}, "none of ok, fail, info"),
        ({"process": [None, 1]}, "process is null"),
        ({"f": [None, "read"]}, "f is null"),
        ({"call_ns": [None, 3]}, "call_ns is null"),
        ({"op": [None, 3]}, "op is null"),
        ({"return_ns": [None, 4]}, "has no return_ns"),
        ({"return_ns": [0, 4]}, "returned before it was called"),
        ({"op": [1, 1]}, "several rows have the op 1"),
    ],
)
def test_unsound_parquet_of_our_columns_is_refused(
    shell: Shell, columns: dict[str, list[Any]], told: str
) -> None:
    pq.write_table(table(**columns), shell.folder / "o.parquet")
    assert shell.check("o.parquet") == 254
    assert told in shell.err
    assert shell.err.count("\n") == 1


def test_parts_of_a_folder_may_not_repeat_each_other(shell: Shell) -> None:
    (shell.folder / "parts").mkdir()
    for name in ("1.parquet", "2.parquet"):
        pq.write_table(table(), shell.folder / "parts" / name)
    assert shell.check("parts") == 254
    assert "several rows have the op" in shell.err


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    strange = table().drop_columns(["process"]).append_column("process", pa.array(["a", "b"]))
    pq.write_table(strange, tmp_path / "o.parquet")
    with pytest.raises(UsageError, match=r"o\.parquet: column process: "):
        open_source(tmp_path / "o.parquet")


def test_what_a_history_says_never_steers_the_terminal(shell: Shell) -> None:
    evil = '"\\u001b]0;owned\\u0007\\u001b[41m\\u202e"'
    text = EDN.replace(":read, :value 3", f":read, :value {evil}").replace("3", evil)
    wrong = text.replace(f":read, :value {evil}", ":read, :value 7")
    name = "h\x1b[1m\n.edn"
    shell.write(name, wrong)
    assert shell.check(name) == 1
    for sign in ("\x1b", "\x07", "\u202e"):
        assert sign not in shell.out
    assert shell.out.startswith("INVALID  h")
    assert ".edn" in shell.out.splitlines()[0]
    assert shell.check("gone\x1b[1m.edn") == 254
    assert "\x1b" not in shell.err
