"""`shrink` over the world itself: a planted bug becomes a handful of events and a story."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shaketable.harness import cli
from shaketable.harness.terminal import output

EVENTS_MAX = 10
"""A bug that needs one append and no fault is not told with more than this."""
KEPT = Path("store/shrunk/dledger-ack-before-quorum-1")


def test_a_planted_bug_is_shrunk_told_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output.out, "width", 80)
    assert cli.run(["shrink", "1", "--mutant", "ack-before-quorum"]) == 1
    told = capsys.readouterr().out
    assert "BROKEN: acknowledged-is-committed" in told
    assert re.search(r"^ +\d+\.\d .*[#|].*n\d", told, re.MULTILINE), "the space-time picture"
    story = told.partition("BROKEN")[2].partition("INVALID")[0]
    assert max(map(len, story.splitlines())) <= 80
    assert f"./shaketable replay {KEPT}/shrunk.json\n" in told

    kept = json.loads((KEPT / "shrunk.json").read_bytes())
    assert kept["mutant"] == "ack-before-quorum"
    assert 1 <= kept["events"] <= EVENTS_MAX
    page = (KEPT / "story.html").read_text()
    assert "acknowledged-is-committed" in page
    assert "<svg class=spacetime" in page

    assert cli.run(["replay", str(KEPT / "shrunk.json")]) == 1
    assert "acknowledged-is-committed broken at " in capsys.readouterr().out
    assert cli.run(["shrink", str(KEPT / "shrunk.json")]) == 1
    again = json.loads((KEPT / "shrunk.json").read_bytes())
    assert again["events"] <= kept["events"]
    assert sorted(path.name for path in KEPT.iterdir()) == ["shrunk.json", "story.html"]


def test_a_planted_bug_that_is_gone_is_bad_usage_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["shrink", "1", "--mutant", "ack-before-quorum"]) == 1
    run = KEPT / "shrunk.json"
    run.write_text(run.read_text().replace("ack-before-quorum", "fixed-long-ago"))
    capsys.readouterr()
    for command in ("shrink", "replay"):
        assert cli.run([command, str(run)]) == 254
        told = capsys.readouterr().err
        assert f"{run} needs the planted bug 'fixed-long-ago', which is not there" in told
        assert told.count("\n") == 1


def test_the_system_as_it_is_breaks_nothing_to_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["shrink", "1", "--time-limit", "10"]) == 0
    assert "seed 1 breaks nothing: there is nothing to shrink\n" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
