"""The mutation operators: what a tired engineer gets wrong in a replicated log.

Each yields edits of the source text, so that a mutant differs from its file in nothing else.
What no user of the system can see is left alone: logging, metrics, docstrings, `__repr__`,
texts of errors, code for the type checker, and assertions (which are the node's own invariants:
without one, a healthy node does the same).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces an expression or statement by a text."""

    node: ast.expr | ast.stmt
    text: str


Operator = Callable[[ast.AST, "Source"], Iterator[Edit]]

SYNC_CALLS = frozenset(
    {"sync", "sync_dir", "sync_names", "_sync_file", "flush", "move", "_save_flushed"}
)
"""Calls that make something durable (`system.store.disk`; `move` is the durable watermark's)."""

COMPARISONS: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
"""How a comparison is written, and what it is taken for."""

ERRORS = {
    # A definite refusal said as an unknown outcome, and the other way round.
    "RefusedError": "shaketable.system.client.connection.OutcomeUnknownError",
    "OutcomeUnknownError": "shaketable.system.client.connection.RefusedError",
    # Full is not failed: the first refuses a request, the second ends the node.
    "DiskFull": "shaketable.system.store.disk.DiskFailed",
    "DiskFailed": "shaketable.system.store.disk.DiskFull",
    "PendingFullError": "shaketable.system.raft.protocol.DiskFullError",
    "NotLeaderError": "shaketable.system.raft.protocol.PendingFullError",
    "CompactedError": "shaketable.system.raft.protocol.TooManyReadsError",
    "TooManyReadsError": "shaketable.system.raft.protocol.CompactedError",
    "TransferError": "shaketable.system.raft.membership.MembershipError",
    "MembershipError": "shaketable.system.raft.protocol.TransferError",
    "OutsideLog": "shaketable.system.store.index_units.NotContiguous",
    "NotContiguous": "shaketable.system.store.segment_files.OutsideLog",
    "DamagedEntry": "shaketable.system.store.segment_files.OutsideLog",
    "DamagedMessage": "shaketable.system.store.segment_files.OutsideLog",
    "LogDamaged": "shaketable.system.store.disk.DiskFull",
    "EntryTooLarge": "shaketable.system.store.disk.DiskFull",
    "DamagedResponseError": "shaketable.system.client.connection.RefusedError",
}
"""Which class is taken for which, with its module: the file need not know it."""

ARGUMENTS = {"RefusedError": "-1, "}
"""What the constructor of a class takes before a text."""

CODES = {
    # By `system.remoting.codes`: a definite refusal for an unknown outcome, or a read's answer
    # for another one.
    "SYSTEM_ERROR": "SYSTEM_BUSY",
    "SYSTEM_BUSY": "SYSTEM_ERROR",
    "SERVICE_NOT_AVAILABLE": "SYSTEM_ERROR",
    "FLUSH_DISK_TIMEOUT": "SUCCESS",
    "FLUSH_SLAVE_TIMEOUT": "SUCCESS",
    "SLAVE_NOT_AVAILABLE": "SUCCESS",
    "PULL_NOT_FOUND": "PULL_OFFSET_MOVED",
    "PULL_OFFSET_MOVED": "PULL_NOT_FOUND",
    "PULL_RETRY_IMMEDIATELY": "PULL_NOT_FOUND",
    "QUERY_NOT_FOUND": "SYSTEM_ERROR",
    "QUEUE_END_MOVED": "SYSTEM_ERROR",
    "MESSAGE_ILLEGAL": "SYSTEM_ERROR",
    "NO_PERMISSION": "SYSTEM_ERROR",
    "TOPIC_NOT_EXIST": "SYSTEM_ERROR",
}


class Source:
    """A file's text, and where each part of its tree stands in it."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = text.encode()

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()


def drop_condition(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Leave out one of the conditions that are joined by `and` or `or`."""
    if isinstance(node, ast.BoolOp):
        for left_out in range(len(node.values)):
            kept = [source.of(one) for one in node.values if one is not node.values[left_out]]
            word = " and " if isinstance(node.op, ast.And) else " or "
            yield Edit(node, "(" + word.join(f"({one})" for one in kept) + ")")


def drop_guard(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Never do what an `if` without `else` guards."""
    if isinstance(node, ast.If) and not node.orelse and not _is_type_checking(node.test):
        yield Edit(node.test, "False")


def drop_not(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Forget a `not`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Edit(node, f"bool({source.of(node.operand)})")


def swap_comparison(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Take the other boundary, or the opposite, of a comparison."""
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for swapped in range(len(node.ops)):
        parts = [f"({source.of(operands[0])})"]
        for number, operand in enumerate(operands[1:]):
            symbol = COMPARISONS[type(node.ops[number])][number == swapped]
            parts.append(f"{symbol} ({source.of(operand)})")
        yield Edit(node, "(" + " ".join(parts) + ")")


def off_by_one(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Forget a `+ 1` or `- 1`, or begin or end a slice one later."""
    is_one = (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and isinstance(node.right, ast.Constant)
        and node.right.value == 1
    )
    if is_one:
        assert isinstance(node, ast.BinOp)
        yield Edit(node, f"({source.of(node.left)})")
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for bound in (node.slice.lower, node.slice.upper):
            if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                yield Edit(bound, f"({source.of(bound)}) + 1")
    if isinstance(node, ast.Call) and _name_of(node.func) == "range" and node.args:
        last = node.args[min(1, len(node.args) - 1)]
        yield Edit(last, f"({source.of(last)}) - 1")


def swap_min_max(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Take the larger for the smaller."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        other = {"min": "max", "max": "min"}.get(node.func.id)
        if other:
            yield Edit(node.func, other)


def skip_sync(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Do not wait until it is durable."""
    if isinstance(node, ast.Expr) and _called(node) in SYNC_CALLS:
        yield Edit(node, "pass")


def skip_call(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Forget to call something whose answer nobody looks at."""
    name = _called(node)
    if name and name not in SYNC_CALLS and name != "__init__":
        assert isinstance(node, ast.Expr)
        yield Edit(node, "pass")


def skip_assignment(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Forget to change what an object keeps."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    if targets and all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
        yield Edit(node, "pass")


def wrong_answer(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Return the other truth."""
    answer = node.value if isinstance(node, ast.Return) else None
    if isinstance(answer, ast.Constant) and isinstance(answer.value, bool):
        yield Edit(answer, str(not answer.value))


def wrong_error(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Raise or catch an error of another class, or answer with another code."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        other = ERRORS.get(_name_of(node.exc.func), "")
        if other:
            arguments = ", ".join(source.of(one) for one in node.exc.args)
            before = ARGUMENTS.get(other.rpartition(".")[2], "")
            yield Edit(node.exc, f"{_imported(other)}({before}{arguments})")
    if isinstance(node, ast.ExceptHandler):
        classes = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for one in classes:
            if isinstance(one, ast.Name) and one.id in ERRORS:
                yield Edit(one, _imported(ERRORS[one.id]))
    is_code = isinstance(node, ast.Attribute) and _name_of(node.value) == "ResponseCode"
    if is_code and node.attr in CODES:
        yield Edit(node, f"ResponseCode.{CODES[node.attr]}")


OPERATORS: Mapping[str, Operator] = {
    operator.__name__.replace("_", "-"): operator
    for operator in (
        drop_condition,
        drop_guard,
        drop_not,
        swap_comparison,
        off_by_one,
        swap_min_max,
        skip_sync,
        skip_call,
        skip_assignment,
        wrong_answer,
        wrong_error,
    )
}


def _imported(name: str) -> str:
    module, _, found = name.rpartition(".")
    return f'__import__("{module}", fromlist=["{found}"]).{found}'


def _called(node: ast.AST) -> str:
    """Return the name of what a statement calls, if it is a call and nothing else."""
    if not isinstance(node, ast.Expr):
        return ""
    value = node.value.value if isinstance(node.value, ast.Await) else node.value
    return _name_of(value.func) if isinstance(value, ast.Call) else ""


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_type_checking(test: ast.expr) -> bool:
    return _name_of(test) == "TYPE_CHECKING"
