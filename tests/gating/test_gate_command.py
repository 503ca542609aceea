"""The command `gate`: exit codes, what it prints at 80 columns, files, GitHub's runner."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gated_runs import results, write_run

from shaketable.harness import cli

TOKEN = r"[0-9a-f]{32}"


@pytest.fixture(autouse=True)
def no_runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_good_run_passes(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("store/quick/1"), results())
    assert cli.run(["gate", "store/quick/1"]) == 0
    assert capsys.readouterr().out == "PASSED  1 run, 2 rules, by the default policy\n"


def test_what_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("store/quick/1"), results(False))
    Path("gate.toml").write_text("[ceilings]\nrecovery_worst_s = 1\np99_ms = 5\n")
    assert cli.run(["gate", "store/quick/1", "--policy", "gate.toml"]) == 1
    assert capsys.readouterr().out == (
        "FAILED  2 of 4 rules, 1 of 1 run, by gate.toml\n\n"
        "  quick/1\n"
        "    durability        1 lost-append\n"
        "    recovery_worst_s  recovery after a fault, worst: 1.00 s; at most 1 s\n"
        "    report  store/quick/1/report.html\n"
    )


def test_a_run_whose_faults_did_not_bite_fails(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("store/quick/1"), results(took_effect=0))
    assert cli.run(["gate", "store/quick/1"]) == 2
    assert "vacuous: no requested fault took effect (kill)" in capsys.readouterr().out


def test_files_are_written_also_where_the_gate_fails() -> None:
    write_run(Path("store/quick/1"), results(False))
    files = ["--junit", "g.xml", "--sarif", "g.sarif", "--markdown", "g.md"]
    assert cli.run(["gate", "store/quick/1", *files]) == 1
    assert "<failure" in Path("g.xml").read_text()
    (run,) = json.loads(Path("g.sarif").read_text())["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location["uri"] == "store/quick/1/campaign.toml"
    assert Path("g.md").read_text().startswith("## shaketable gate failed")


def test_github_gets_annotations_and_a_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("# before\n")
    hostile = results(False)
    hostile["checkers"]["durability"]["summary"] = "x\n::set-output name=a::b"
    write_run(Path("store/quick/1"), hostile)
    assert cli.run(["gate", "store/quick/1"]) == 1
    out = capsys.readouterr().out
    # The runner obeys nothing between the two lines with the token, which nobody can guess.
    match = re.fullmatch(rf"::stop-commands::({TOKEN})\n(.*)\n::\1::\n(.*)", out, re.DOTALL)
    assert match is not None
    assert match[3] == "::error title=quick/1%3A durability::x ::set-output name=a::b\n"
    summary = Path("summary.md").read_text()
    assert summary.startswith("# before\n## shaketable gate failed")
    assert summary.count("\n::") == 0


def test_a_summary_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "none/summary.md")
    write_run(Path("store/quick/1"), results())
    assert cli.run(["gate", "store/quick/1"]) == 255
    said = capsys.readouterr().err
    assert said == "shaketable: cannot write $GITHUB_STEP_SUMMARY none/summary.md: " + (
        "No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "gate takes the RUN to judge"),
        (["none"], "none: there is no such folder"),
        (["."], "not the folder of a run"),
        (["store/quick/1", "--policy", "none.toml"], "cannot read the policy none.toml: No such"),
        (["store/quick/1", "--policy", "."], "cannot read the policy .: Is a directory"),
        (["store/quick/1", "--junit", "store/quick/1/results.json"], "is judged; write it some"),
        (["store/quick/1", "--sarif", "store/quick/1/new.sarif"], "is judged; write it somewhere"),
        (["store/quick/1", "--policy", "bad.toml"], "bad.toml: unknown key 'x'"),
        (["store/quick/1", "--junit", "none/g.xml"], "none/g.xml: no folder none"),
        (["store/quick/1", "--junit", "store"], "store: a folder"),
        (["store/quick/1", "--junit", "g", "--sarif", "g"], "g: given twice"),
        (["store/quick/1", "--policy", "bad.toml", "--sarif", "bad.toml"], "bad.toml: given twice"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("store/quick/1"), results())
    Path("bad.toml").write_text("x = 1\n")
    assert cli.run(["gate", *arguments]) == 254
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error
    assert error.count("\n") == 1
