"""Chooses the sequential model of a history: by name, or recognised from its operations.

| operations | model |
|---|---|
| cas, with or without read and write | cas-register |
| read, write | register |
| get, put (and append) | kv |
| append (and read, end) with offsets | append-log |
| push, pop (and peek) | stack |
| push, pop, peek at the front and the back | deque |
| insert, poll (and peek) | priority-queue |
| add, contains (and remove, read) | membership-set |
| add, count (and remove, contains) | multiset |
| acquire, release | mutex |
| txn of reads and writes | multi-register |
| add, read (and remove), where reads return lists | set |
| add, read, where reads return whole numbers | counter |

Queues are not recognised: operations do not show which order was promised. A history of acquire
and release alone is of a mutex; a semaphore must be named, as must a queue of the least first.
"""

from __future__ import annotations

import difflib
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers import models
from shaketable.checkers.models.model import Model
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign.columns import is_transaction

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "shaketable.models"
EXAMINED_ROWS: Final = 100_000
"""Operations whose answers are examined if their names are ambiguous."""
NAMES_SHOWN_MAX: Final = 12
NAME_MAX: Final = 40
"""Names of operations that a message lists, and the length that it shows of each."""


def model_names() -> tuple[str, ...]:
    """Return the names of all models, built in and of other packages."""
    built_in = {model.name for model in _built_in()}
    return tuple(sorted(built_in | {point.name for point in _external()}))


def _external() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - few need more than the built-in

    return entry_points(group=ENTRY_POINTS)


def model_named(name: str) -> Model:
    """Return the model of that name.

    Raises:
        UsageError: there is none; the message names the nearest one and all that exist.
    """
    for model in _built_in():
        if model.name == name:
            return model
    for point in _external():
        if point.name == name:
            plugin: Model = point.load()
            return plugin
    names = model_names()
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise UsageError(f"unknown model {name!r}{meant} (there are: {', '.join(names)})")


def model_of_recording(name: str) -> Model:
    """Return the model of the object that a recording says it is of.

    Raises:
        UsageError: there is none.
    """
    if name not in model_names():
        raise UsageError(
            f"it is of a {name}, for which there is no model: say another with --model"
            f" ({', '.join(model_names())}), or which anomalies to look for with --checkers"
        )
    return model_named(name)


def recognise_model(operations: pa.Table, fs: Iterable[str] | None = None) -> Model:
    """Return the model that fits the operations.

    Args:
        operations: rows of OPERATIONS, all or the first of them.
        fs: the names of all operations, if `operations` are not all.

    Raises:
        UsageError: none fits, or they are ambiguous; the message names the models that may fit.
    """
    names = frozenset(pc.unique(operations["f"]).to_pylist() if fs is None else fs)
    for name, fits in _RULES:
        model = model_named(name)
        if names and names <= model.fs and fits(names, operations.slice(0, EXAMINED_ROWS)):
            return model
    if appends(operations):
        raise UsageError(
            "the transactions append to lists, for which there is no model: look for anomalies with"
            " --checkers isolation"
        )
    known = [model.name for model in _built_in() if names <= model.fs]
    listed = _listed(names) or "none"
    if known:
        raise UsageError(
            f"the operations ({listed}) do not tell which model is meant: say --model"
            f" {' or --model '.join(sorted(known))}"
        )
    raise UsageError(
        f"no model has all of the operations {listed}; say which one with --model"
        f" ({', '.join(model_names())}), or which anomalies to look for with --checkers"
    )


def require_fit(model: Model, fs: Iterable[str]) -> None:
    """Refuse a history with operations that a model does not have.

    Raises:
        UsageError: it has some; the message is one line.
    """
    unknown = sorted(set(fs) - model.fs)
    if unknown:
        raise UsageError(
            f"the model {model.name} has no {_listed(unknown)} (it has:"
            f" {', '.join(sorted(model.fs))}); the history is about something else"
        )


def _listed(names: Iterable[str]) -> str:
    """Format names of operations for a one-line message, whatever characters they have."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN_MAX
    shown = [
        repr(name) if not name.isprintable() or not name else name
        for name in (f if len(f) <= NAME_MAX else f"{f[: NAME_MAX - 1]}…" for f in ordered)
    ]
    return ", ".join(shown[:NAMES_SHOWN_MAX]) + (f" and {more} others" if more > 0 else "")


def _built_in() -> Iterable[Model]:
    for info in pkgutil.iter_modules(models.__path__):
        module = importlib.import_module(f"{models.__name__}.{info.name}")
        yield from [module.PLUGIN] if hasattr(module, "PLUGIN") else getattr(module, "PLUGINS", ())


def _outputs(operations: pa.Table, f: str) -> list[Any]:
    """Return the outputs of the ok operations of that name, without nulls."""
    rows = operations.filter(
        pc.and_(pc.equal(operations["f"], f), pc.equal(operations["outcome"], "ok"))
    )
    seen = rows.select(["output", "extra"]).to_pylist()
    found = []
    for row in seen:
        extra = json.loads(row["extra"]) if row["extra"] else {}
        output = extra.get("output", row["output"])
        if output is not None:
            found.append(output)
    return found


def _always(_fs: frozenset[str], _operations: pa.Table) -> bool:
    return True


def _has(*needed: str) -> Callable[[frozenset[str], pa.Table], bool]:
    def fits(fs: frozenset[str], _operations: pa.Table) -> bool:
        return bool(fs & set(needed))

    return fits


def _is_log(fs: frozenset[str], operations: pa.Table) -> bool:
    """Return whether the operations are a log's: an append that got an offset, a read at one."""
    return "end" in fs or operations["offset"].null_count < operations.num_rows


def _is_set(fs: frozenset[str], operations: pa.Table) -> bool:
    outputs = _outputs(operations, "read")
    return "remove" in fs or (bool(outputs) and all(isinstance(each, list) for each in outputs))


def _is_counter(_fs: frozenset[str], operations: pa.Table) -> bool:
    outputs = _outputs(operations, "read")
    return bool(outputs) and all(isinstance(each, int) for each in outputs)


def are_transactions(operations: pa.Table) -> bool:
    """Return whether the first answers are all lists of micro-operations [f key value]."""
    given = _answers(operations)
    return bool(given) and all(
        is_transaction(each.get("output", each.get("input"))) for each in given
    )


def has_balances(operations: pa.Table) -> bool:
    """Return whether the first answers to reads are all balances by account.

    As a map, or as steps of our own workload.
    """
    reads = _answers(operations.filter(pc.equal(operations["f"], "read")))
    return bool(reads) and all(
        isinstance(each.get("output"), dict) or balances_in(each.get("output")) for each in reads
    )


def balances_in(steps: object) -> dict[str, int] | None:
    """Return balances by account, of steps as workload `bank` records them; None if they are none.

    A step is ("balance", account, balance).
    """
    if not isinstance(steps, list) or not steps:
        return None
    found = {}
    for step in steps:
        if not isinstance(step, list) or len(step) != 3 or step[0] != "balance":
            return None
        found[str(step[1])] = step[2]
    return found


def _answers(operations: pa.Table) -> list[dict[str, Any]]:
    """Return `extra` of the first ok operations."""
    examined = operations.slice(0, EXAMINED_ROWS)
    texts = examined.filter(pc.equal(examined["outcome"], "ok"))["extra"].to_pylist()
    return [json.loads(text) if text else {} for text in texts]


def appends(operations: pa.Table) -> bool:
    """Return whether one of the first transactions appends to a list."""
    transactions = operations.slice(0, EXAMINED_ROWS)
    is_named = pc.equal(transactions["f"], "txn")
    return "append" in _micro_operations(transactions.filter(is_named))


def _micro_operations(operations: pa.Table) -> set[Any]:
    return {
        step[0] if isinstance(step, list) and step else None
        for text in operations["extra"].to_pylist()
        for step in (json.loads(text).get("input") or () if text else ())
    }


def _is_multi_register(_fs: frozenset[str], operations: pa.Table) -> bool:
    kinds = _micro_operations(operations)
    return bool(kinds) and kinds <= {"r", "w", "read", "write"}


_RULES: Final[tuple[tuple[str, Callable[[frozenset[str], pa.Table], bool]], ...]] = (
    ("register", _has("write")),
    ("cas-register", _has("cas", "write")),
    ("kv", _has("get", "put")),
    ("mutex", _always),
    ("multi-register", _is_multi_register),
    ("stack", _has("push", "pop")),
    ("deque", _always),
    ("priority-queue", _has("insert", "poll")),
    ("membership-set", _has("contains")),
    ("multiset", _has("count")),
    ("set", _is_set),
    ("counter", _is_counter),
    ("append-log", _is_log),
)
