"""What `check` leaves behind when the world around it is full, closed or in a hurry."""

from __future__ import annotations

import datetime
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from check_shell import Shell
from hard_queue import hard_queue

from shaketable.checkers.engine.judge import CheckJob
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.gating import read
from shaketable.harness.judging import checking
from shaketable.harness.terminal.histories import check as check_terminal
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import decide

VALID = """0 :invoke :write 3
0 :ok :write 3
1 :invoke :read nil
1 :ok :read 3
"""
INVALID = VALID.replace(":ok :read 3", ":ok :read 4")


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_terminal, "LINE_EVERY_S", 3600.0)  # on a slow machine, too
    shell = Shell(tmp_path, capsys)
    shell.write("valid.log", VALID)
    shell.write("invalid.log", INVALID)
    return shell


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "shaketable", *arguments]


def test_one_that_cannot_be_read_takes_nothing_from_the_others(shell: Shell) -> None:
    shell.write("none.log", "Hello\n")
    paths = ("gone.log", "invalid.log", "none.log", "valid.log")
    assert shell.check(*paths, "--json", "out.json", "--html", "page.html") == 254
    assert "2 histories: 1 valid, 1 invalid; 2 could not be checked" in shell.said
    assert [line.split(":")[1].strip() for line in shell.err.splitlines()] == [
        "gone.log",
        "none.log",
    ]
    told = json.loads((shell.folder / "out.json").read_text())
    assert [each["valid"] for each in told["histories"]] == [False, True]
    assert "✗ INVALID" in (shell.folder / "page.html").read_text()


@pytest.mark.parametrize(
    "options",
    [("--html", "valid.log"), ("--json", "./valid.log"), ("--html", "x", "--json", "x"),
     ("--html", "link.html")],
)  # fmt: skip
def test_no_result_is_written_over_a_history_or_another_result(
    shell: Shell, options: tuple[str, ...]
) -> None:
    (shell.folder / "link.html").symlink_to("valid.log")
    assert shell.check("valid.log", *options) == 254
    assert "would be written over" in shell.err
    assert (shell.folder / "valid.log").read_text() == VALID


def test_one_result_that_cannot_be_written_takes_nothing_from_the_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = check_terminal.write_atomically

    def full(path: Path, content: bytes | str) -> None:
        write(Path("/proc/no/such") if path.suffix == ".json" else path, content)

    monkeypatch.setattr(check_terminal, "write_atomically", full)
    assert shell.check("invalid.log", "--json", "out.json", "--html", "page.html") == 255
    assert shell.err.startswith("shaketable: cannot write ")
    assert shell.err.count("\n") == 1
    assert shell.out.startswith("INVALID")
    assert (shell.folder / "page.html").exists()


def limited(limit: int) -> Callable[[], None]:
    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return limit_files


@pytest.mark.parametrize("limit", [0, 2000, 12_000])
def test_a_full_disk_gets_one_line_and_leaves_no_half_page(shell: Shell, limit: int) -> None:
    """At 0 nothing at all fits, nor at 2000 the engine's own files, at 12,000 the page."""
    temp = shell.folder / "temp"
    temp.mkdir()
    done = subprocess.run(
        command("check", "invalid.log", "--model", "register", "--html", "page.html"),
        capture_output=True, text=True, timeout=110, check=False, preexec_fn=limited(limit),
        env={**os.environ, "TMPDIR": str(temp), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    page = shell.folder / "page.html"
    if done.returncode == 1:
        assert page.read_text().rstrip().endswith("</html>")
        return
    assert done.returncode == 255
    assert done.stderr.startswith("shaketable: cannot write")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not page.exists()
    assert list(temp.iterdir()) == []
    assert sorted(p.name for p in shell.folder.iterdir()) == ["invalid.log", "temp", "valid.log"]


def test_a_full_disk_behind_stdout_is_told_and_the_page_written(shell: Shell) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("check", "invalid.log", "--model", "register", "--html", "page.html"),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=110, check=False,
        )  # fmt: skip
    assert done.returncode == 255
    assert done.stderr == "shaketable: cannot write to stdout: No space left on device\n"
    assert (shell.folder / "page.html").exists()


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
)  # fmt: skip
@pytest.mark.parametrize(("name", "code"), [("valid.log", 0), ("invalid.log", 1), ("gone", 254)])
def test_closed_files_change_no_exit_code(shell: Shell, closed: str, name: str, code: int) -> None:
    line = " ".join(command("check", name, "--model", "register", "--html", "page.html"))
    done = subprocess.run(
        ["sh", "-c", f"{line} {closed}"], capture_output=True, timeout=110, check=False
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    if code != 254:
        assert (shell.folder / "page.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check", "invalid.log", "--model", "register"], 1),
        (["check", "valid.log", "--json", "-"], 0),
        (["list"], 0),
        (["--help"], 0),
        (["check", "--help"], 0),
        (["--version"], 0),
        (["simulate", "--seed", "3", "--mutant", "ack-before-quorum"], None),
        (["replay", "3", "--to", "500"], 0),
    ],
)
def test_who_stops_reading_gets_the_same_exit_code(
    shell: Shell, arguments: list[str], code: int | None
) -> None:
    """A closed pipe (`| head`) is no verdict: rich would end with 1, which is ours for invalid."""
    if code is None:
        whole = subprocess.run(command(*arguments), capture_output=True, timeout=110, check=False)
        code = whole.returncode
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=110) == code
    assert said == b""


def test_nobody_listens_on_stderr(shell: Shell) -> None:
    with subprocess.Popen(command("check", "gone"), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(timeout=110) == 254


def test_ctrl_c_keeps_what_was_found(shell: Shell) -> None:
    """The second history takes its time; the first one's verdict is written all the same."""
    nobodys = {"process": 0, "f": "dequeue", "value": 3, "time": 5, "type": "ok"}
    shell.write("invalid.jsonl", json.dumps(nobodys | {"time": 1, "type": "invoke", "value": None})
                + "\n" + json.dumps(nobodys) + "\n")  # fmt: skip
    shell.write("slow.jsonl", "".join(json.dumps(row) + "\n" for row in hard_queue()))
    temp = shell.folder / "temp"
    temp.mkdir()
    asked = command(
        "check", "invalid.jsonl", "slow.jsonl", "--model", "fifo-queue", "--json", "o.json"
    )
    with subprocess.Popen(
        ["env", "--default-signal=INT", *asked],  # tests in the background ignore Ctrl-C
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temp)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stdout is not None
        told = process.stdout.readline()  # kernels may be compiled before
        assert told.startswith("INVALID  invalid.jsonl"), told + process.stderr.read()
        deadline = time.monotonic() + 60
        while not list(temp.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)  # until the second one is judged
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(timeout=60) == 255, said
    assert said.splitlines()[-1] == "shaketable: interrupted before a verdict"
    assert "Traceback" not in said
    assert list(temp.iterdir()) == []
    told = json.loads((shell.folder / "o.json").read_text())
    assert [one["path"] for one in told["histories"]] == ["invalid.jsonl"]
    assert [one["path"] for one in told["refused"]] == ["slow.jsonl"]


def test_the_start_of_spark_costs_no_budget(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than five seconds here and there: then nothing would ever be judged."""
    now = [1000.0]
    left_s: list[float] = []

    class Slow(checking.engines.Engine):
        def wait(self, progress: object) -> None:
            now[0] += 20

        def run(self, job: CheckJob, progress: object) -> list[Verdict]:
            clock, deadline = job.context.clock_unix_s, job.context.search.deadline_unix_s
            assert clock is not None
            assert deadline is not None
            left_s.append(deadline - clock())
            return []

    monkeypatch.setattr(checking.time, "time", lambda: now[0])
    monkeypatch.setattr(checking.engines, "Engine", Slow)
    shell.check("valid.log", "--model", "register", "--time-budget", "5")
    assert left_s == [pytest.approx(5)]


def test_the_json_names_what_was_refused_and_the_gate_fails_for_it(shell: Shell) -> None:
    file = shell.folder / "checked.json"
    assert shell.check("valid.log", "none.edn", "--json", str(file)) == 254
    told = json.loads(file.read_text())
    assert [one["path"] for one in told["refused"]] == ["none.edn"]
    assert (told["valid"], len(told["histories"])) == ("unknown", 1)
    facts = read([file], Policy())
    result = decide(Policy(), facts, datetime.date(2026, 11, 22))
    assert result.code == 255
    assert any("none.edn" in run for run, _ in result.breaches)
    assert shell.check("none.edn", "--json", str(file)) == 254
    told = json.loads(file.read_text())
    assert (told["valid"], told["histories"]) == ("unknown", []), "the file before is not left"
    assert shell.check("valid.log", "--json", str(file)) == 0
    assert json.loads(file.read_text())["refused"] == []
