"""`check` of a run's folder knows what disturbed the run, and which topic each checker judges."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from check_shell import Shell

from shaketable.harness.campaigns.campaign import Campaign, resolve, to_toml
from shaketable.harness.history.export import export
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Recorder

SECOND_NS = 1_000_000_000


def run_of(
    path: Path, *, topic: str = "queue", fault: bool = False, target: str = "dledger"
) -> RunFolder:
    """Store a run in which a request had no answer, though another client got one."""
    folder = RunFolder(path)
    folder.segments.mkdir(parents=True)
    folder.campaign_toml.write_text(
        to_toml(msgspec.structs.replace(resolve(Campaign(seed="1")), target=target))
    )
    now_ns = 0
    worker = Recorder(folder.segment("worker-0"), start_ns=0, clock_ns=lambda: now_ns)
    nemesis = Recorder(folder.segment("nemesis"), start_ns=0, clock_ns=lambda: now_ns)
    now_ns = 20 * SECOND_NS
    if fault:
        nemesis.nemesis("partition", {"fault": 0, "phase": "start"})
    worker.invoke(0, "misrequest", topic, value=16, expected=16)
    now_ns += SECOND_NS // 100
    worker.invoke(1, "find", topic, value=0, expected=1)
    worker.complete(1, "ok", "find", topic)
    now_ns += 5 * SECOND_NS
    worker.complete(0, "info", "misrequest", topic, error="no answer within 3 s")
    if fault:
        nemesis.nemesis("partition", {"fault": 0, "phase": "stop"})
    for recorder in (worker, nemesis):
        recorder.close()
    export(folder)
    return folder


@pytest.mark.parametrize(
    ("topic", "fault", "code"),
    [("queue", False, 1), ("queue", True, 2), ("log", False, 2)],
    ids=["undisturbed", "under a fault", "on a topic of another checker"],
)
def test_a_bound_on_time_holds_where_nothing_disturbed_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], topic: str, fault: bool, code: int
) -> None:
    folder = run_of(tmp_path / "run", topic=topic, fault=fault)
    shell = Shell(tmp_path, capsys)
    assert shell.check(folder.path, "--checkers", "refusals") == code
    assert ("1 no-answer" in shell.said) == (code == 1)


def test_a_run_that_does_not_say_what_disturbed_it_is_not_judged_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_of(tmp_path / "run")
    folder.campaign_toml.unlink()
    shell = Shell(tmp_path, capsys)
    assert shell.check(folder.path, "--checkers", "total-queue,refusals") == 254
    assert "without its campaign.toml" in shell.err
    assert ": refusals cannot judge it" in shell.err
    assert shell.check(folder.path, "--checkers", "total-queue") == 2
    assert "no fault was asked for" not in shell.said


@pytest.mark.parametrize(("target", "code"), [("dledger", 1), ("pysyncobj", 2)])
def test_a_run_is_judged_by_what_its_target_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, code: int
) -> None:
    folder = run_of(tmp_path / "run", target=target)
    shell = Shell(tmp_path, capsys)
    assert shell.check(folder.path, "--checkers", "refusals") == code, shell.said
    assert ("observed, not counted: 1 no-answer" in shell.said) == (code == 2)
