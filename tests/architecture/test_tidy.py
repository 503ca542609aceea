"""Rules of the house that a linter does not hold, over the tree as it is."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.shape import PACKAGES, parsed, sources

ROOT = Path(__file__).parent.parent.parent

ADR_LINES_MAX = 60
VAGUE = re.compile(r"(^|_)(utils?|common|helpers?|managers?|misc)(_|$)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
TEXT_SUFFIXES = frozenset({".py", ".md", ".toml", ".j2", ".css", ".txt", ".sh", ""})


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked() -> list[Path]:
    """Files that belong to the project: what git tracks, or all outside of hidden folders."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [name for name in done.stdout.split("\0") if name]
    found = [ROOT / name for name in names] or [
        path
        for path in ROOT.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    return [path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES]


def test_there_is_something_to_look_at() -> None:
    assert len(sources()) > 50


def test_names_of_modules_say_something() -> None:
    vague = [relative(path) for path in sources() if VAGUE.search(path.stem)]
    vague += [relative(path.parent) for path in sources() if VAGUE.search(path.parent.name)]
    assert not vague


def test_every_module_and_public_thing_is_documented() -> None:
    bare = []
    for path in sources():
        name, tree = relative(path), parsed(path)
        if not ast.get_docstring(tree):
            bare.append(name)
        bare += [f"{name}:{line} {thing}" for line, thing in undocumented(tree.body)]
    assert not bare


def undocumented(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Public functions and classes, and public methods of public classes, without docstring."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_") or "overload" in map(ast.unparse, node.decorator_list):
            continue
        if not ast.get_docstring(node):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node.body)


def test_nothing_is_left_for_later() -> None:
    this = Path(__file__)
    left = [
        f"{relative(path)}:{number}"
        for path in tracked()
        if path != this
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not left


def test_pyspark_is_imported_by_the_engine_alone() -> None:
    """Also where it is imported late, by name, which the import contracts do not see."""
    importers = [
        relative(path)
        for path in sources()
        if re.search(r"""(import_module\(|__import__\()["']pyspark""", path.read_text("utf-8"))
    ]
    assert importers, "the pattern finds nothing any more"
    assert all(name.startswith("checkers/spark/") for name in importers), importers


def test_test_files_have_unique_names_and_no_package() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert not [relative(path) for path in files if path.name == "__init__.py"]
    names = [path.name for path in files if path.name.startswith("test_")]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_the_folder_at_the_top(package: str) -> None:
    module = importlib.import_module(f"shaketable.{package}")
    assert Path(module.__file__ or "").resolve().parent == ROOT / package


def test_decisions_are_numbered_and_a_page_each() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [page.name[:5] for page in pages] == [f"{n:04d}-" for n in range(1, len(pages) + 1)]
    assert pages
    for number, page in enumerate(pages, start=1):
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. "), page.name
        assert len(text.splitlines()) <= ADR_LINES_MAX, page.name
        for heading in ("## Context", "## Decision", "## Consequences"):
            assert heading in text, f"{page.name} has no {heading!r}"
