"""Makes the mutants of a package, and draws a sample of them."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tests.mutation.operators import OPERATORS, Edit, Source

UNSEEN_FUNCTIONS = frozenset({"__repr__", "__str__", "__rich_repr__"})
UNSEEN_CALLS = frozenset(
    {"debug", "info", "warning", "error", "exception", "log", "say", "trace", "record"}
)
"""Logging and recording: forgetting them breaks no promise to a client."""

IMPORTED: Final = re.compile(r"__import__\([^)]*\)\.")
"""Where another error class comes from: no part of what a mutant is."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        id: The same as long as operator, function and line are, wherever in the package they move.
        line: Where the statement that it changes begins, for the measured reach...
        last_line: ... and where that statement, or the head of a compound one, ends.
        start, end: Which bytes of the file it replaces...
        new: ... and by what.
    """

    id: str
    package: str
    path: str
    function: str
    operator: str
    line: int
    last_line: int
    start: int
    end: int
    new: str

    def text(self, root: Path) -> str:
        """Return the whole changed file."""
        old = (root / self.path).read_bytes()
        return (old[: self.start] + self.new.encode() + old[self.end :]).decode()

    def diff(self, root: Path) -> str:
        """Return the change as `diff -U0` shows it, without the heading."""
        before = (root / self.path).read_text().splitlines()
        lines = list(difflib.unified_diff(before, self.text(root).splitlines(), n=0, lineterm=""))
        return "\n".join(line for line in lines[2:] if not line.startswith("@@"))


def mutants_of(root: Path, package: str) -> list[Mutant]:
    """Return all mutants of a package of `system`, in the order of the files."""
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for path in sorted((root / "system" / package).rglob("*.py")):
        name = str(path.relative_to(root))
        found += mutants_in(Source(name, path.read_text()), package, seen)
    return found


def mutants_in(source: Source, package: str, seen: Counter[str]) -> Iterator[Mutant]:
    """Return all mutants of one file; `seen` counts those of the package that look alike."""
    for function, place, node in _places(source.tree):
        for name, operator in OPERATORS.items():
            for edit in operator(node, source):
                if _called_unseen(node) or _only_crashes(name, function):
                    continue
                yield _mutant(source, package, function, name, place, edit, seen)


def _only_crashes(operator: str, function: str) -> bool:
    """Say whether it is of a kind that ends everything at once, and so shows nothing."""
    return operator == "skip-assignment" and function.endswith(("__init__", "__post_init__"))


def sample(
    mutants: list[Mutant], count: int, seed: int, judged: Collection[str] = ()
) -> list[Mutant]:
    """Draw `count` mutants, the same ones for the same seed: operators and files in turn.

    Those that are `judged` already, by their ids, come first: a sample that goes on from a journal
    loses what the source lost, and changes no more than that.
    """
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    in_order = sorted(mutants, key=lambda one: _drawn(seed, one.id))
    chosen = [mutant for mutant in in_order if mutant.id in judged][:count]
    of_file = Counter(mutant.path for mutant in chosen)
    for mutant in in_order:
        if mutant.id not in judged:
            by_operator[mutant.operator].append(mutant)
    while len(chosen) < count and any(by_operator.values()):
        for operator in sorted(by_operator):
            waiting = by_operator[operator]
            if not waiting or len(chosen) == count:
                continue
            mutant = min(waiting, key=lambda one: of_file[one.path])  # the first of the rarest
            waiting.remove(mutant)
            of_file[mutant.path] += 1
            chosen.append(mutant)
    return chosen


def _drawn(seed: int, mutant: str) -> bytes:
    return blake2b(f"{seed} {mutant}".encode(), digest_size=8).digest()


def _mutant(
    source: Source,
    package: str,
    function: str,
    operator: str,
    place: tuple[int, int],
    edit: Edit,
    seen: Counter[str],
) -> Mutant:
    line = " ".join(source.lines[edit.node.lineno - 1].split())
    change = IMPORTED.sub("", " ".join(edit.text.split()))
    key = f"{operator} {package} {function} {line} {change}"
    seen[key] += 1
    name = blake2b(f"{key} {seen[key]}".encode(), digest_size=4).hexdigest()
    span = source.span(edit.node)
    return Mutant(name, package, source.path, function, operator, *place, *span, edit.text)


def _places(tree: ast.Module) -> Iterator[tuple[str, tuple[int, int], ast.AST]]:
    """Return all that may be changed, each with its function and the lines of its statement."""

    def walk(node: ast.AST, function: str, lines: tuple[int, int]) -> Iterator:
        for child in ast.iter_child_nodes(node):
            if _is_unseen(child, node):
                continue
            inner, place = function, lines
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{function}.{child.name}" if function else child.name
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                place = (child.lineno, _end_of_head(child))
            yield inner, place, child
            yield from walk(child, inner, place)

    yield from walk(tree, "", (1, 1))


def _end_of_head(node: ast.stmt | ast.ExceptHandler) -> int:
    body = getattr(node, "body", None)
    if not body:
        return node.end_lineno or node.lineno
    heads = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return max([node.lineno, *(head.end_lineno or 0 for head in heads)])


def _is_unseen(node: ast.AST, parent: ast.AST) -> bool:
    """Say whether no user of the system can see what stands here."""
    if isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.FunctionDef) and node.name in UNSEEN_FUNCTIONS:
        return True
    if isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
    ):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return True
    if isinstance(parent, ast.Raise):
        return True  # its class is looked at from the statement, its text is nobody's
    if isinstance(parent, ast.AnnAssign):
        return node is parent.annotation
    if isinstance(parent, ast.arg):
        return True
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and node is parent.returns


def _called_unseen(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return isinstance(called, ast.Attribute) and called.attr in UNSEEN_CALLS
