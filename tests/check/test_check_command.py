"""`shaketable check`: verdicts, exit codes and clear answers, whatever the file is like."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from check_shell import Shell
from hard_queue import hard_queue

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import cli
from shaketable.harness.history.foreign import read, read_history
from shaketable.harness.judging import checking
from shaketable.harness.terminal.histories import check as check_terminal
from shaketable.harness.terminal.histories.check import bytes_of

VALID_EDN = """[{:process 0, :type :invoke, :f :write, :value 3}
 {:process 0, :type :ok, :f :write, :value 3}
 {:process 1, :type :invoke, :f :read, :value nil}
 {:process 1, :type :ok, :f :read, :value 3}
 {:process 1, :type :invoke, :f :cas, :value [3 4]}
 {:process 1, :type :ok, :f :cas, :value [3 4]}]
"""
INVALID_EDN = """[{:process 0, :type :invoke, :f :write, :value 3}
 {:process 0, :type :ok, :f :write, :value 3}
 {:process 1, :type :invoke, :f :write, :value 4}
 {:process 1, :type :ok, :f :write, :value 4}
 {:process 2, :type :invoke, :f :read, :value nil}
 {:process 2, :type :ok, :f :read, :value 3}]
"""


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_terminal, "LINE_EVERY_S", 3600.0)  # on a slow machine, too
    return Shell(tmp_path, capsys)


def test_a_valid_history(shell: Shell) -> None:
    assert shell.check(shell.write("h.edn", VALID_EDN)) == 0
    assert shell.out.startswith("VALID")
    assert "Jepsen EDN, model cas-register" in shell.out
    assert shell.err == ""


def test_a_step_that_takes_long_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_terminal, "LINE_EVERY_S", 0.001)
    monkeypatch.setattr(Linearizable, "check", lambda *_: time.sleep(0.3))
    monkeypatch.setattr(Linearizable, "check_keys", lambda *_: time.sleep(0.3))
    shell.check(shell.write("h.edn", VALID_EDN))
    assert re.search(r"shaketable: judging linearizable \(\d+ s\)", shell.err)


def test_an_invalid_history_shows_what_fails_and_why(shell: Shell) -> None:
    assert shell.check(shell.write("h.edn", INVALID_EDN), "--model", "cas-register") == 1
    first = shell.out.splitlines()[0]
    assert first.startswith("INVALID")
    assert "h.edn" in first
    assert "read 3" in first
    assert "client 2" in shell.out
    assert "|-X read 3" in shell.out
    assert "Next cannot be read 3 by client 2: " in shell.said


def test_the_verdicts_as_json(shell: Shell) -> None:
    told = shell.json(shell.write("h.edn", INVALID_EDN))
    assert told["valid"] is False
    (history,) = told["histories"]
    assert history["operations"] == {"ok": 3, "fail": 0, "info": 0}
    finding = history["checkers"]["linearizable"]["findings"][0]
    assert finding["details"]["stuck"] in finding["operations"]


def test_several_histories_of_mixed_formats_get_the_worst_verdict(shell: Shell) -> None:
    edn = shell.write("h.edn", VALID_EDN)
    log = shell.write("j.log", "INFO 0 :invoke :write 1\nINFO 0 :ok :write 1\n")
    lines = shell.write(
        "o.jsonl",
        '{"process": 0, "f": "write", "call_ns": 1, "return_ns": 2, "input": 1}\n'
        '{"process": 0, "f": "read", "call_ns": 3, "return_ns": 4, "output": 2}\n',
    )
    pq.write_table(read_history(edn).operations, shell.folder / "h.parquet")
    assert shell.check(edn, log, lines, "h.parquet") == 1
    said = [line.split()[0] for line in shell.out.splitlines() if line.strip()]
    assert said == ["VALID", "VALID", "INVALID", "VALID", "INVALID"]
    assert "4 histories: 3 valid, 1 invalid" in shell.said


def test_one_file_of_mixed_formats_is_damaged(shell: Shell) -> None:
    text = '{"process": 0, "type": "invoke", "f": "write", "value": 1}\n' + VALID_EDN
    assert shell.check(shell.write("mixed", text)) == 2
    assert "mixed, line 2 (byte 59): " in shell.said


@pytest.mark.parametrize("cut", [1, 2, 5, 17])
def test_a_cut_last_line_is_unknown_and_named(shell: Shell, cut: int) -> None:
    assert shell.check(shell.write("h.edn", VALID_EDN.rstrip()[:-cut])) == 2
    assert shell.out.startswith("UNKNOWN")
    assert "the history is incomplete: h.edn, line 6 (byte " in shell.said


def test_a_violation_before_a_cut_stands(shell: Shell) -> None:
    text = INVALID_EDN.rstrip().rstrip("]") + "\n {:process 7, :type :inv"
    assert shell.check(shell.write("h.edn", text), "--model", "cas-register") == 1
    assert "h.edn, line 7 (byte " in shell.said


def test_a_violation_beside_a_hole_proves_nothing(shell: Shell) -> None:
    lines = INVALID_EDN.splitlines()
    lines[3] = " {:process 1, :ty"
    assert shell.check(shell.write("h.edn", "\n".join(lines)), "--model", "cas-register") == 2
    assert shell.out.startswith("UNKNOWN")


def test_a_cas_on_a_missing_key(shell: Shell) -> None:
    """It failed, or was answered "no": fine. It succeeded: there was nothing to compare with."""
    asked = {"process": 0, "type": "invoke", "f": "cas", "key": "k", "value": [1, 2]}
    for end, code in (("fail", 0), ("ok", 1)):
        lines = [asked, {**asked, "type": end}]
        lines += [{**asked, "type": "invoke", "f": "read", "value": None, "process": 1}]
        lines += [{**asked, "type": "ok", "f": "read", "process": 1,
                   "value": None if end == "fail" else 2}]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        assert shell.check(shell.write("h.jsonl", text), "--model", "cas-register") == code
    assert "the register holds nothing" in shell.out
    answered = {"process": 0, "f": "cas", "key": "k", "call_ns": 1, "return_ns": 2,
                "expected": 1, "input": 2, "output": 0}  # fmt: skip
    assert shell.check(shell.write("o.jsonl", json.dumps(answered) + "\n")) == 0


@pytest.mark.parametrize("text", ["", "[]", "\n"])
def test_no_operations_at_all_are_unknown(shell: Shell, text: str) -> None:
    assert shell.check(shell.write("h.edn", text)) == 2
    assert "0 operations" in shell.out


def test_events_without_a_client_give_nothing_to_object_to(shell: Shell) -> None:
    text = "[{:process :nemesis, :type :info, :f :kill, :value nil}]"
    assert shell.check(shell.write("h.edn", text)) == 0
    assert "nothing to object to: 1 events" in shell.said


def test_a_checker_that_crashes_is_unknown_with_its_trace(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Linearizable, tables: object, context: object) -> None:
        raise RuntimeError("a planted crash")

    monkeypatch.setattr(Linearizable, "check", crash)
    page = shell.folder / "page.html"
    assert shell.check(shell.write("h.edn", INVALID_EDN), "--html", page) == 2
    assert "the checker crashed" in shell.out
    assert "RuntimeError: a planted crash" in shell.out
    assert "RuntimeError: a planted crash" in page.read_text()


def test_what_the_budget_does_not_decide_is_unknown_and_named(shell: Shell) -> None:
    path = shell.write("h.jsonl", "".join(json.dumps(row) + "\n" for row in hard_queue()))
    assert shell.check(path, "--model", "fifo-queue", "--time-budget", "0.2") == 2
    assert shell.out.startswith("UNKNOWN")
    is_named = "undecided when the budget of time was used up; open from operation" in shell.said
    assert is_named or "were not judged: the deadline passed before" in shell.said
    bounds = ("--memory-budget", "1MB", "--time-budget", "20")
    assert shell.check(path, "--model", "fifo-queue", *bounds) == 2
    assert "when the budget of " in shell.said  # of memory, on a machine that is not too slow


@pytest.mark.parametrize("budget", ["0.000001", "0.01"])
def test_a_deadline_that_passes_before_anything_is_judged_is_unknown(
    shell: Shell, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing judged is no answer: least of all "nothing to object to"."""
    path = shell.write("h.edn", INVALID_EDN)
    later = itertools.count(10)
    monkeypatch.setattr(checking.time, "time", lambda: float(next(later)))
    assert shell.check(path, "--model", "cas-register", "--time-budget", budget) == 2
    assert "the deadline passed" in shell.said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "takes the PATH of a history"),
        (["gone.edn"], "gone.edn: no such file or folder"),
        (["h.edn", "--model", "cas-registre"], "did you mean 'cas-register'?"),
        (["h.edn", "--model", "mutex"], "the model mutex has no read, write"),
        (["h.edn", "--checkers", "nothing"], "unknown checker 'nothing'"),
        (["h.edn", "--checkers", "durability"], "judges the nodes' logs"),
        (["h.edn", "--model", "mutex", "--time-budget", "0"], "--time-budget 0"),
        (["h.edn", "--memory-budget", "lots"], "expected a size such as 512MB"),
        (["h.edn", "--memory-budget", "3kB"], "a search needs 1MB at least"),
        (["h.edn", "--engine", "local", "--spark-master", "yarn"], "uses no Spark"),
        (["h.edn", "--spark-remote", "yarn"], "expected sc://HOST:PORT"),
        (["h.edn", "--html", "gone/page.html"], "no folder gone"),
        (["h.edn", "--json", "."], "a folder; give the name of a file in it"),
        (["h.edn", "--initial", "[", "--model", "set"], "gives the model set no first values"),
        (["q.edn"], "say --model fifo-queue or --model unordered-queue"),
        (["x.edn"], "no model has all of the operations fly, walk"),
        (["run.toml"], "no history that is known"),
    ],
)
def test_bad_usage_gets_one_line(shell: Shell, arguments: list[str], told: str) -> None:
    shell.write("h.edn", INVALID_EDN if "set" not in arguments else "{:process 0, :type :invoke,"
                " :f :add, :value 1}")  # fmt: skip
    shell.write("q.edn", "{:process 0, :type :invoke, :f :enqueue, :value 1}\n"
                "{:process 1, :type :invoke, :f :dequeue, :value nil}")  # fmt: skip
    shell.write(
        "x.edn", "{:process 0, :type :invoke, :f :walk}\n{:process 1, :type :invoke, :f :fly}"
    )
    shell.write("run.toml", 'name = "x"\n')
    assert shell.check(*arguments) == 254
    assert told in shell.err
    assert shell.err.count("\n") == 1


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "free_memory_bytes", lambda: 100)
    assert shell.check(shell.write("h.edn", VALID_EDN)) == 254
    assert "GB of memory" in shell.err


def test_parquet_of_operations_is_handed_to_the_engine_as_it_is(shell: Shell) -> None:
    table = read_history(shell.write("h.edn", INVALID_EDN)).operations
    (shell.folder / "parts").mkdir()
    pq.write_table(table, shell.folder / "parts" / "1.parquet")
    looked = read.open_source(shell.folder / "parts")
    assert [path.name for path in looked.files] == ["1.parquet"]
    assert looked.history.operations.num_rows == 0
    assert (looked.rows, looked.outcomes["ok"], looked.clients) == (3, 3, 3)
    assert shell.check("parts", "--model", "register") == 1


def test_reads_of_nil_say_nothing_where_a_register_begins_with_a_value(shell: Shell) -> None:
    text = """{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value nil}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value 0}
"""
    path = shell.write("h.edn", text)
    model = ("--model", "cas-register")
    assert shell.check(path, *model, "--initial", "0") == 0
    assert "1 reads answered nil" in shell.said
    assert shell.check(path, *model) == 1


def test_a_big_history_goes_to_spark_by_itself(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Engine:
        def __init__(self, kind: str, master: str) -> None:
            self.kind = kind
            asked.append((kind, master))

        def require_java(self, env: object) -> None: ...

        def wait(self, progress: object) -> None: ...

        def run(self, job: object, progress: object) -> list[object]:
            raise AssertionError("not here")

        def stop(self) -> None: ...

    monkeypatch.setattr(checking.engines, "Engine", Engine)
    monkeypatch.setattr(checking, "LOCAL_ROWS_MAX", 2)
    assert shell.check(shell.write("h.edn", VALID_EDN)) == 255
    assert asked[-1] == ("spark", "local[*]")


@pytest.mark.parametrize(
    ("text", "size"), [("1MB", 1 << 20), ("2GiB", 2 << 30), ("1.5g", 3 << 29), ("1048576", 1 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "models"]) == 0
    out = capsys.readouterr().out
    for name in ("append-log", "cas-register", "fifo-queue", "kv", "mutex", "set"):
        assert name in out


@pytest.mark.parametrize(("text", "code"), [(VALID_EDN, 0), (INVALID_EDN, 1), ("", 2)])
def test_the_exit_code_stands_though_nobody_reads_on(tmp_path: Path, text: str, code: int) -> None:
    path = tmp_path / "h.edn"
    path.write_text(text)
    command = [sys.executable, "-P", "-m", "shaketable", "check", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=110) == code
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_says_the_same(shell: Shell) -> None:
    """In a process of its own: the session of other tests is not this one's to stop."""
    path = shell.write("h.edn", INVALID_EDN)
    told = []
    for engine in ("local", "spark"):
        command = [sys.executable, "-P", "-m", "shaketable", "check", str(path),
                   "--model", "cas-register", "--engine", engine, "--json", "-"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 1, done.stderr
        (history,) = json.loads(done.stdout)["histories"]
        assert history["engine"] == engine
        told.append(history["checkers"])
    assert told[0] == told[1]


FOLDER = Path(os.environ.get("SHAKETABLE_HISTORIES", "none")).resolve()


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no recorded histories: SHAKETABLE_HISTORIES")
def test_recorded_histories_get_their_verdicts(shell: Shell) -> None:
    folder = FOLDER
    rows = [line.split("\t") for line in (folder / "VERDICTS.tsv").read_text().splitlines()[1:]]
    models = {"kv-partitioned": "kv"}
    for model in {row[1] for row in rows}:
        mine = {str(folder / row[0]): row[4] for row in rows if row[1] == model}
        told = shell.json(*mine, "--model", models.get(model, model))
        verdicts = {True: "valid", False: "invalid", "unknown": "unknown"}
        assert {each["path"]: verdicts[each["valid"]] for each in told["histories"]} == mine


def test_a_check_does_not_wait_for_pandas(tmp_path):
    history = tmp_path / "history.edn"
    history.write_text(
        "{:process 0, :type :invoke, :f :write, :value 1}\n"
        "{:process 0, :type :ok, :f :write, :value 1}\n"
    )
    program = (
        "import sys\n"
        "from shaketable.harness import cli\n"
        "code = cli.run(['check', sys.argv[1]])\n"
        "print(code, 'pandas' in sys.modules)\n"
        "import pyarrow as pa\n"
        "print(pa.table({'a': [1]}).to_pandas().shape)\n"
    )
    argv = [sys.executable, "-P", "-c", program, str(history)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0 False", "(1, 1)"]
