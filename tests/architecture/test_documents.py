"""What the documents say is true of the code."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.terminal.commands import app

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/checking.md", "docs/models.md",
    "docs/upgrading.md", "docs/extending.md", "docs/gate.md", "docs/store.md",
    "docs/violation.md", "docs/calibration.md", "docs/debugging.md",
    "docs/lives.md", "docs/first-bug.md", "docs/ci.md", "docs/concepts.md", "docs/python.md",
    "docs/using.md",
)  # fmt: skip
COMMAND = re.compile(r"(?:^|`)(\./shaketable[^`#\n]*)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)\)")
START_SCRIPT_OWN = ("test", "docs")
"""The start script runs these commands itself; the command line knows nothing of them."""


def commands() -> list[str]:
    found = {
        match.strip()
        for name in DOCUMENTS
        for match in COMMAND.findall((ROOT / name).read_text(encoding="utf-8"))
    }
    return sorted(found)


def test_the_documents_show_every_command() -> None:
    shown = {words[1] for line in commands() if len(words := line.split()) > 1}
    assert shown >= {"run", "analyze", "report", "list", *START_SCRIPT_OWN}


@pytest.mark.parametrize("line", commands())
def test_every_command_shown_is_one(line: str) -> None:
    words = shlex.split(line)[1:]
    if words[:1] and words[0] in START_SCRIPT_OWN:
        help_text = subprocess.run(
            ["sh", str(ROOT / "shaketable"), words[0], "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        assert all(word in help_text for word in words)
        return
    app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    links = LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    folder = (ROOT / name).parent
    assert not [link for link in links if not (folder / link).exists()]


def test_architecture_names_every_package_and_nothing_that_is_not() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^- \*\*`([a-z_/]+)/`\*\*", text, re.MULTILINE))
    there = {
        str(path.parent.relative_to(ROOT))
        for top in ("system", "harness", "checkers", "workloads", "reports")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert named - {"tests", "docs", "workloads/campaigns"} == there


def test_every_fault_has_a_row() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE))
    assert set(discovery.built_ins("faults")) - rows == set()


def test_no_conflict_is_left() -> None:
    listed = subprocess.run(
        ["git", "grep", "-lIE", "^(<{7}|>{7}) "],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.stdout == ""
