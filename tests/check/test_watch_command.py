"""The command `watch`: what it says while a history grows, and after it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from shaketable.checkers.online import MODELS
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.judging.checking import explain, impossible_read
from tests.support.shaketable_runs import shaketable

WAIT_S = 60.0
REGISTER = ("--model", "register")
WRITE = [
    {"process": 0, "type": "invoke", "f": "write", "key": "x", "value": 1, "time": 1},
    {"process": 0, "type": "ok", "f": "write", "key": "x", "value": 1, "time": 2},
]
STALE = [
    {"process": 1, "type": "invoke", "f": "read", "key": "x", "value": None, "time": 3},
    {"process": 1, "type": "ok", "f": "read", "key": "x", "value": None, "time": 4},
]


def lines(events: list[dict[str, object]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def history(seed: int, operations: int, *, is_stale: bool) -> list[dict[str, object]]:
    """Return events of a few registers, some writes of unknown outcome; perhaps a stale read."""
    rng, state, events = Random(seed), dict.fromkeys("abc", 0), []
    stale_at = operations * 3 // 4 if is_stale else -1
    for number in range(operations):
        key, at = rng.choice("abc"), 10 * number
        event = {"process": number, "key": key, "f": rng.choice(["read", "write"])}
        event["value"] = number if event["f"] == "write" else None
        events.append(event | {"type": "invoke", "time": at})
        if event["f"] == "write":
            is_known = rng.random() > 0.02
            if is_known or rng.random() < 0.5:
                state[key] = number
            events.append(event | {"type": "ok" if is_known else "info", "time": at + 5})
        else:
            read = -1 if stale_at >= 0 and number >= stale_at else state[key]
            stale_at = -1 if read == -1 else stale_at
            events.append(event | {"type": "ok", "time": at + 5, "value": read})
    return events


@contextmanager
def watching(
    *arguments: str | Path,
) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-P", "-m", "shaketable", "watch", *map(str, arguments)]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        wait_s = SPARK_WAIT_S if "--spark-master" in arguments else WAIT_S
        hanging = threading.Timer(wait_s, process.kill)
        hanging.start()
        try:
            yield process
        finally:
            hanging.cancel()
            process.kill()


def until(process: subprocess.Popen[str], text: str) -> str:
    """Read what it prints up to a line with this text."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended before it said {text!r}: {said}")


JOBS = pytest.mark.parametrize("jobs", ["1", "2"])


@JOBS
def test_a_violation_is_told_while_the_history_grows(tmp_path: Path, jobs: str) -> None:
    path, page = tmp_path / "h.jsonl", tmp_path / "page.html"
    path.write_text(lines(WRITE))
    options = ("--initial", "0", "--html", page, "--jobs", jobs)
    with watching(path, *REGISTER, *options) as process:
        time.sleep(1)
        with path.open("a") as file:
            file.write(lines(STALE) + '{"process": 2')
        said = until(process, "page:")
        assert f"INVALID  {path}, key x: read nothing by process 1 (op 2) returned what no" in said
        assert "it read nothing, the register holds" in said
        assert "read nothing" in page.read_text()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == f"INVALID  {path}: 1 of 1 key cannot be put in order\n"
        assert process.wait(WAIT_S) == 1


@JOBS
@pytest.mark.parametrize(("is_stale", "code"), [(False, 0), (True, 1)])
def test_killed_at_any_moment_it_goes_on(
    tmp_path: Path, is_stale: bool, code: int, jobs: str
) -> None:
    path, kept = tmp_path / "h.jsonl", tmp_path / "kept"
    text = lines(history(3, 3_000, is_stale=is_stale))
    path.write_text(text[: len(text) // 3])
    for part in (2, 3):
        options = ("--initial", "0", "--checkpoint", kept, "--jobs", jobs)
        with watching(path, *REGISTER, *options) as process:
            deadline = time.monotonic() + WAIT_S
            while not kept.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(0.3)
            os.kill(process.pid, signal.SIGKILL)
        with path.open("a") as file:
            file.write(text[len(text) * (part - 1) // 3 : len(text) * part // 3])
    done = shaketable("watch", path, *REGISTER, *options, "--until-quiet", "1")
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.startswith("goes on after line ")
    again = shaketable("watch", path, *REGISTER, "--initial", "0", "--until-quiet", "0.5")
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    checked = shaketable("check", path, *REGISTER, "--initial", "0", "--engine", "local")
    assert checked.returncode == code


SPARK_WAIT_S = 180.0


@pytest.mark.spark
def test_killed_on_spark_it_goes_on(tmp_path: Path) -> None:
    path, kept = tmp_path / "h.jsonl", tmp_path / "kept"
    text = lines(history(3, 2_000, is_stale=True))
    cut = text.index("\n", len(text) * 9 // 10) + 1  # after the stale read
    path.write_text(text[:cut])
    given = (path, *REGISTER, "--initial", "0", "--spark-master", "local[*]", "--checkpoint", kept)
    with watching(*given) as process:
        said = until(process, "INVALID")
        until_s = time.monotonic() + WAIT_S
        while not (kept / "told.jsonl").exists() and time.monotonic() < until_s:
            time.sleep(0.1)  # until it is explained
        os.kill(process.pid, signal.SIGKILL)
    assert f"INVALID  {path}, key" in said
    with path.open("a") as file:
        file.write(text[cut:])
    done = shaketable("watch", *given, "--until-quiet", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("INVALID") == 1, "what was told is not told again"
    local = shaketable("watch", path, *REGISTER, "--initial", "0", "--until-quiet", "0.5")
    assert local.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    path.write_text(text[: cut // 2])
    cut_off = shaketable("watch", *given)
    assert cut_off.returncode == 254, cut_off.stdout
    assert cut_off.stderr == (
        f"shaketable: {kept}: not of {path}, which is shorter than what was read\n"
    )


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "shaketable", "watch", "-", *arguments]
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@JOBS
@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (lines(WRITE), "VALID  -: 1 operation on 1 key is linearizable", 0),
        ("", "UNKNOWN  -: there is no operation", 2),
        (lines(WRITE)[:-9], "UNKNOWN  -: line 2 has no end", 2),
        (lines(WRITE[:1]) + "rubbish\n", "line 2 cannot be judged: JSON is malformed", 2),
        (lines(WRITE[1:]), "UNKNOWN  -: a ok of write by process 0 has no invoke", 2),
        (lines([*STALE, *WRITE]), "line 3 cannot be judged: its time is before that of an", 2),
    ],
)  # fmt: skip
def test_a_pipe_is_judged_to_its_end(text: str, said: str, code: int, jobs: str) -> None:
    done = piped(text, *REGISTER, "--jobs", jobs)
    assert said in done.stdout, done.stdout + done.stderr
    assert done.returncode == code


def test_what_was_long_ago_is_not_said_to_have_never_been() -> None:
    events = []
    for number in range(300):  # longer than what is kept of a key
        event = {"process": 0, "f": "write", "key": "x", "value": number}
        events += [
            event | {"type": "invoke", "time": 2 * number},
            event | {"type": "ok", "time": 2 * number + 1},
        ]
    read = {"process": 1, "f": "read", "key": "x", "value": 7}
    events += [read | {"type": "invoke", "time": 1000}, read | {"type": "ok", "time": 1001}]
    done = piped(lines(events), *REGISTER)
    assert done.returncode == 1
    assert "read 7 by process 1 (op 600) cannot take effect before it returns" in done.stdout
    assert "ever" not in done.stdout
    assert "operations    300: " not in done.stdout, "the part that is kept"


def test_a_proof_stands_whatever_is_missing_after_it() -> None:
    later = {"process": 2, "type": "invoke", "f": "read", "key": "y", "value": None, "time": 9}
    done = piped(lines([*WRITE, *STALE, later]) + "rubbish\n", *REGISTER, "--initial", "0")
    assert done.returncode == 1
    assert "  not judged: line 6 cannot be judged" in done.stdout
    at_once = piped(lines([*WRITE, *STALE]) + "rubbish\n", *REGISTER, "--initial", "0")
    assert at_once.returncode == 2, "what is missing may be a write of that, called at that time"


@pytest.mark.parametrize("model", MODELS)
def test_what_it_gets_ready_with_is_a_violation(model: str) -> None:
    explained = explain(impossible_read(model), model)
    assert explained is not None
    assert explained.outcome is Outcome.INVALID


def test_what_it_cannot_do_is_one_line(tmp_path: Path) -> None:
    path, kept = tmp_path / "h.jsonl", tmp_path / "kept"
    path.write_text(lines(WRITE))
    quiet = ("--until-quiet", "0.1", "--checkpoint", kept)
    assert shaketable("watch", path, *REGISTER, *quiet).returncode == 0
    other = tmp_path / "other.jsonl"
    other.write_text(lines(STALE) * 2)
    for arguments, said in (
        ((tmp_path / "none.jsonl", *REGISTER), "none.jsonl: No such file or directory"),
        ((tmp_path, *REGISTER), "a folder; give the file that grows"),
        ((path, "--model", "stack"), "stack"),
        (("-", *REGISTER, "--checkpoint", kept), "a pipe cannot be continued"),
        (("-", *REGISTER, "--checkpoint", kept, "--jobs", "2"), "a pipe cannot be continued"),
        ((path, *REGISTER, *quiet, "--jobs", "2"), "no checkpoint of such a watch"),
        ((path, *REGISTER, "--jobs", "0"), "--jobs 0: from 1 to 64"),
        ((path, "--model", "counter", "--initial", "abc", "--jobs", "2"), "abc"),
        ((path, "--model", "counter", "--initial", "abc", "--spark-master", "local[*]"), "abc"),
        ((path, *REGISTER, "--jobs", "2", "--spark-master", "local[*]"), "exclude each other"),
        (("-", *REGISTER, "--spark-master", "local[*]"), "a file, not a pipe"),
        ((tmp_path, *REGISTER, "--spark-master", "local[*]"), "no file"),
        ((path, *REGISTER, "--spark-master", "sc://localhost"), "no Spark Connect server"),
        ((path, "--model", "kv", *quiet), "of a watch with other options; delete it"),
        ((other, *REGISTER, *quiet), f"not of {other}; delete it"),
    ):
        done = shaketable("watch", *arguments)
        assert done.returncode == 254, done.stdout + done.stderr
        [line] = done.stderr.strip().splitlines()
        assert said in line
    with watching(path, *REGISTER) as process:
        until(process, " 1 operation,")  # a cut of what it had not read yet is none
        path.write_text("")
        assert "it was cut: it has 0 bytes" in until(process, "it was cut")
        assert process.wait(WAIT_S) == 255
