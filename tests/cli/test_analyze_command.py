"""`analyze`: a promise is kept in the run's campaign only once the run was judged by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from shaketable.checkers.engine import java
from shaketable.harness import cli, run_markers
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import judge
from shaketable.harness.terminal import session


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = run_folder.create(tmp_path, "quick", datetime.now(UTC))
    folder.segments.mkdir(parents=True, exist_ok=True)
    folder.campaign_toml.write_text(campaigns.to_toml(campaigns.resolve(Campaign(seed="1"))))
    return folder


def test_without_java_the_campaign_stays_as_it_was(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_java(_env: object) -> None:
        raise UsageError("no Java")

    monkeypatch.setattr(java, "find_java", find_java)
    before = run.campaign_toml.read_text()
    assert cli.run(["analyze", str(run.path), "--promise", "multi-master"]) == ExitCode.USAGE
    assert run.campaign_toml.read_text() == before


def test_where_judging_fails_the_campaign_stays_as_it_was(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise HarnessError("the recordings cannot be read")

    monkeypatch.setattr(judge, "judge", fail)
    before = run.campaign_toml.read_text()
    arguments = ["analyze", str(run.path), "--engine", "local", "--promise", "multi-master"]
    assert cli.run(arguments) == ExitCode.HARNESS
    assert run.campaign_toml.read_text() == before


def test_a_promise_is_kept_under_the_lock_of_the_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by: list[str | None] = []
    locked: list[bool] = []

    def judge_it(_folder: object, campaign: Campaign, *_: object) -> SimpleNamespace:
        judged_by.append(campaign.promise)
        return SimpleNamespace(outcome="valid", verdicts=())

    def note_lock(path: Path, content: bytes | str) -> None:
        with run_markers.try_exclusive(run.path) as is_free:
            locked.append(not is_free)
        run_folder.write_atomically(path, content)

    monkeypatch.setattr(judge, "judge", judge_it)
    # Only there: what is first imported meanwhile would keep this function for good.
    noting = SimpleNamespace(**{**vars(run_folder), "write_atomically": note_lock})
    monkeypatch.setattr(session, "run_folder", noting)
    monkeypatch.setattr(session, "conclude", lambda *_: ExitCode.VALID)
    arguments = ["analyze", str(run.path), "--engine", "local"]
    assert cli.run([*arguments, "--promise", "multi-master"]) == ExitCode.VALID
    assert cli.run(arguments) == ExitCode.VALID
    assert judged_by == ["multi-master"] * 2
    assert locked == [True]


@pytest.mark.parametrize("command", [["analyze", "--engine", "local"], ["report"]])
def test_a_run_that_cannot_be_written_to_is_refused_in_one_line(
    run: RunFolder, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    run.log.mkdir()
    assert cli.run([*command, str(run.path)]) == ExitCode.HARNESS
    assert capsys.readouterr().err == f"shaketable: cannot write {run.log}: Is a directory\n"
