"""What docs/glossary.md lists as not used is used nowhere: in code, docs, pages and help."""

from __future__ import annotations

import re
import subprocess

from tests.architecture.shape import PACKAGES, ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
READ = (".py", ".md", ".j2", ".js", ".toml")
HISTORY = ("docs/glossary.md", "reports/samples/")
"""Samples were printed by earlier versions."""
USERS = re.compile(r"\bnobody \(uid 65534\)|name = \"somebody\"")
"""Names of users of a machine."""


def not_used() -> list[str]:
    """Return the words of the table's first column, without those whose meaning is in brackets."""
    table = GLOSSARY.read_text(encoding="utf-8").split("## Words that are not used")[1]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    return [word for row in rows[1:] if "(" not in row for word in row.split(", ")]


def uses(words: list[str], text: str) -> list[str]:
    """Return the lines with one of the words, also as a part of an identifier."""
    pattern = re.compile(rf"(?<![a-z])({'|'.join(words)})(?![a-z])", re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if pattern.search(USERS.sub("", line))]


def test_words_that_are_not_used_are_not() -> None:
    words = not_used()
    assert len(words) > 15
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES, "docs", "examples", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for name in listed.stdout.split("\0"):
        if not name.endswith(READ) or name.startswith((*HISTORY, "CHANGELOG")):
            continue
        if lines := uses(words, (ROOT / name).read_text(encoding="utf-8")):
            found[name] = lines
    assert found == {}


def test_a_word_is_found_in_prose_and_in_names() -> None:
    assert uses(["mend", "in front"], "it mends\nthe mend\n_mend_all()\namend\nIn front of") == [
        "the mend",
        "_mend_all()",
        "In front of",
    ]
