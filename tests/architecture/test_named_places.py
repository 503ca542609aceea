"""What docs, docstrings and comments name is there: files by their path, modules by their name.

Modules move; a reader who follows a name must not end at nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.architecture.shape import PACKAGES, ROOT

TOPS = "|".join(PACKAGES)
PATH = re.compile(rf"(?<![\w/.-])((?:{TOPS})(?:/[a-z_](?:[\w.-]*\w)?)+)")
MODULE = re.compile(rf"(?:(?<=`)|shaketable\.)((?:{TOPS})(?:\.[A-Za-z_]\w*)+)")
WRITTEN = (".py", ".md", ".j2")
MADE_UP = frozenset({"system/client/some.py"})


def texts() -> Iterator[tuple[str, str]]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in done.stdout.split("\0"):
        is_news = name.startswith(("newsfragments/", "CHANGELOG"))
        if name.endswith(WRITTEN) and not is_news:
            yield name, (ROOT / name).read_text(encoding="utf-8")


def has_path(path: str) -> bool:
    return path in MADE_UP or (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def has_name(name: str) -> bool:
    """Say whether a module is there, and has what is named of it."""
    folder, *parts = ROOT / name.partition(".")[0], *name.split(".")[1:]
    while parts:
        first, *parts = parts
        if (folder / first).is_dir():
            folder /= first
            continue
        module = folder / f"{first}.py"
        if not module.exists():
            module, parts = folder / "__init__.py", [first]
        return not parts or bool(re.search(rf"\b{parts[0]}\b", module.read_text(encoding="utf-8")))
    return True


@pytest.fixture(scope="module")
def named() -> list[tuple[str, str, bool]]:
    """Where something is named, what, and whether it is there."""
    found = []
    for where, text in texts():
        found += [(where, path, has_path(path)) for path in PATH.findall(text)]
        found += [(where, name, has_name(name)) for name in MODULE.findall(text)]
    return found


def test_what_is_named_is_there(named: list[tuple[str, str, bool]]) -> None:
    assert len(named) > 1000, "the patterns find nothing any more"
    assert [(where, what) for where, what, is_there in named if not is_there] == []


def test_what_is_not_there_is_noticed() -> None:
    assert not has_path("system/raft/" + "no_such_file.py")
    assert not has_name("system.raft.no_such_module")
    assert not has_name("system.raft.core.NoSuchName")
    assert has_name("system.raft.core.RaftCore")
