"""The shape of the tree, in numbers: what a reader has to find the way through.

    .venv/bin/python -m tests.architecture.shape

Prints files, lines, import cycles, folders, fragments and functions of everything outside tests.
tests/architecture/test_shape.py holds those that have a limit.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parents[2]
PACKAGES = ("system", "harness", "checkers", "workloads", "reports")
FRAGMENT_LINES_MAX = 150
FOLDER_FILES_MAX = 20
FUNCTION_LINES_MAX = 70


@dataclass(frozen=True)
class Shape:
    """What was counted; paths are relative to the project's root, modules without `shaketable`."""

    files: int
    lines: int
    import_lines: int
    cycles: list[list[str]]
    large_folders: dict[str, int]
    single_importers: int
    fragments: list[tuple[str, str]]
    """Modules of fewer lines than a paragraph of the one that imports them, alone, beside them."""
    function_lines: list[int]
    long_functions: list[str]


def sources() -> list[Path]:
    """All modules of the product."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports() -> networkx.DiGraph:
    """Who imports whom among the modules; imports for type checking count."""
    graph = grimp.build_graph("shaketable", cache_dir=None)
    arrows = networkx.DiGraph()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            arrows.add_edge(
                module.removeprefix("shaketable."), imported.removeprefix("shaketable.")
            )
    return arrows


def file_of(module: str) -> Path | None:
    """Return a module's file, None for a package."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    return path if path.exists() else None


def shape() -> Shape:
    """Count everything."""
    files = sources()
    texts = {path: path.read_text(encoding="utf-8").splitlines() for path in files}
    arrows = imports()
    single, fragments = 0, []
    for module in sorted(arrows):
        path, importers = file_of(module), list(arrows.predecessors(module))
        if path is None or len(importers) != 1:
            continue
        single += 1
        beside = importers[0].rpartition(".")[0] == module.rpartition(".")[0]
        if beside and len(texts[path]) < FRAGMENT_LINES_MAX:
            fragments.append((module, importers[0]))
    functions = [
        (path, node, (node.end_lineno or 0) - node.lineno + 1)
        for path in files
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in files)
    return Shape(
        files=len(files),
        lines=sum(map(len, texts.values())),
        import_lines=sum(map(_import_lines, files)),
        cycles=[
            sorted(part) for part in networkx.strongly_connected_components(arrows) if len(part) > 1
        ],
        large_folders={name: n for name, n in folders.items() if n > FOLDER_FILES_MAX},
        single_importers=single,
        fragments=fragments,
        function_lines=[length for _, _, length in functions],
        long_functions=[
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
            for path, node, length in functions
            if length > FUNCTION_LINES_MAX
        ],
    )


def _import_lines(path: Path) -> int:
    return sum(
        (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def main() -> None:
    """Print all of it."""
    found = shape()
    rows = {
        "files": found.files,
        "lines": found.lines,
        "  of them imports": found.import_lines,
        "import cycles": f"{len(found.cycles)} ({sum(map(len, found.cycles))} modules)",
        f"folders of more than {FOLDER_FILES_MAX} files": len(found.large_folders),
        "modules with one importer": found.single_importers,
        f"  beside it, under {FRAGMENT_LINES_MAX} lines": len(found.fragments),
        "functions": len(found.function_lines),
        "  median lines": statistics.median(found.function_lines),
        f"  over {FUNCTION_LINES_MAX} lines": len(found.long_functions),
    }
    lines = [f"{name:<36}{value:>8}" for name, value in rows.items()]
    lines += [f"  {count:>4}  {name}" for name, count in sorted(found.large_folders.items())]
    lines += [f"  cycle: {', '.join(cycle)}" for cycle in found.cycles]
    if sys.argv[1:] == ["--all"]:
        lines += [f"  {module} <- {importer}" for module, importer in found.fragments]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
