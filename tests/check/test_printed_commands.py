"""Commands that README, docs/using.md and the pages about checking print work.

That the command line understands all of them is tests/architecture/test_documents.py; here those
are run that need no real processes and end soon. The examples with answers in docs/checking.md
are run by test_checking_examples.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shaketable.harness import cli
from shaketable.harness.history.foreign import read_history
from tests.support.shaketable_runs import shaketable

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/using.md", "docs/checking.md", "docs/models.md")
RUN = {
    "check history.edn": 0,
    "check store/latest history.jsonl jepsen.log --html page.html": 0,
    "check queue.jsonl --model fifo-queue --time-budget 5": 1,
    "watch history.jsonl --model cas-register --checkpoint watch.state --until-quiet 2s": 0,
    "list models": 0,
    "list faults": 0,
    "run --help": 0,
    "simulate --seed 42 --trace trace.txt": 0,
    "replay 42 --from 11000 --to 12000": 0,
}
"""Commands that are run here, and their exit codes."""
ON_SPARK = (
    "watch history.jsonl --model cas-register --spark-master 'local[*]' --checkpoint watch.state"
    " --until-quiet 2s"
)
HISTORY = (
    '{"process": 0, "type": "invoke", "f": "write", "value": 1}\n'
    '{"process": 0, "type": "ok", "f": "write", "value": 1}\n'
)

EDN = """{:process 0, :type :invoke, :f :write, :value 3}
{:process 0, :type :ok, :f :write, :value 3}
{:process 0, :type :invoke, :f :read, :value nil}
{:process 0, :type :ok, :f :read, :value 3}
"""
QUEUE = """{"process": 0, "f": "enqueue", "call_ns": 0, "return_ns": 40, "input": 7}
{"process": 1, "f": "enqueue", "call_ns": 50, "return_ns": 90, "input": 8}
{"process": 2, "f": "dequeue", "call_ns": 100, "return_ns": 130, "output": 8}
"""


def test_they_are_printed() -> None:
    printed = "\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    for command in (*RUN, ON_SPARK):
        assert f"./shaketable {command}" in printed


@pytest.mark.parametrize(("command", "code"), RUN.items())
def test_it_works(
    command: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "history.edn").write_text(EDN)
    (tmp_path / "queue.jsonl").write_text(QUEUE)
    (tmp_path / "history.jsonl").write_text(HISTORY)
    (tmp_path / "jepsen.log").write_text("0 :invoke :write 1\n0 :ok :write 1\n")
    run = tmp_path / "store" / "quick" / "run"
    (run / "history" / "operations").mkdir(parents=True)
    operations = read_history(tmp_path / "history.edn").operations
    pq.write_table(operations, run / "history" / "operations" / "part.parquet")
    (run / "campaign.toml").write_text("")
    (run / "results.json").write_text('{"valid": true, "incomplete": null}')
    (tmp_path / "store" / "latest").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    assert cli.run(shlex.split(command)) == code
    assert "fault of the harness" not in capsys.readouterr().err


@pytest.mark.spark
def test_that_on_spark_works(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(HISTORY)
    done = shaketable(*shlex.split(ON_SPARK), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "VALID  history.jsonl: 1 operation on 1 key is linearizable\n"
    assert sorted(each.name for each in (tmp_path / "watch.state").iterdir()) == [
        "ended", "spark", "watch.json",
    ]  # fmt: skip
