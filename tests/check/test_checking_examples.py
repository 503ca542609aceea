"""Every example of docs/checking.md, isolation.md and python.md does what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from check_samples import WITH_PLUGIN

from shaketable.harness import cli

PAGE = Path(__file__).parents[2] / "docs" / "checking.md"
PAGES = (PAGE, PAGE.parent / "isolation.md", PAGE.parent / "python.md")
NOT_HERE = "notest"
"""Programs that run a campaign: tests/e2e does that."""
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
pytest_plugins = ("pytester",)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = [
    (command, expected)
    for language, _, text in BLOCKS
    if language == "console"
    for command, expected in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=[c for c, _ in COMMANDS])
def test_commands(
    command: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    assert words[0] == "./shaketable"
    code = cli.run(words[1:])
    said = " ".join(capsys.readouterr().out.split())
    *lines, last = expected.strip().splitlines()
    assert last == f"exit code {int(code)}"
    for line in lines:
        assert " ".join(line.split()) in said


PROGRAMS = [text for language, name, text in BLOCKS if language == "python" and name != NOT_HERE]
TESTS = [text for text in PROGRAMS if "def test_" in text]


@pytest.mark.parametrize("program", [text for text in PROGRAMS if text not in TESTS])
def test_programs(program: str, folder: Path) -> None:
    exec(compile(program, str(PAGE), "exec"), {})


@pytest.mark.parametrize("program", TESTS)
def test_tests(program: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program)
    for _, name, text in BLOCKS:
        if name:
            (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess(*WITH_PLUGIN, "-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=program.count("def test_"))


def test_the_page_has_examples() -> None:
    assert len(COMMANDS) >= 5
    assert len(PROGRAMS) >= 3
