"""Checks one recorded history, whoever recorded it: what `shaketable check` does for each path.

The history is read or looked at, its model is found, an engine judges it, and what is known of
missing events is joined to the verdicts: a history with a cut end is never VALID, one with a
hole proves nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.checkers.api import verdict_on_nothing, with_history_state
from shaketable.checkers.engine.job import CheckJob
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.linearizability.model_choice import (
    model_named,
    recognise_model,
    require_fit,
)
from shaketable.checkers.models.model import Model
from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import CheckContext, Checker, Promises, SearchBudget
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.foreign.read import PartitionBy
from shaketable.harness.history.foreign.source import Source, open_source
from shaketable.harness.judging import judge
from shaketable.harness.run_markers import scratch_prefix
from shaketable.reports.check_page.checked_history import CheckedHistory, shown_findings

LOCAL_ROWS_MAX: Final = 2_000_000
"""Up to so many operations `--engine auto` checks in this process (docs/adr/0010)."""
FILE_ROWS: Final = 250_000
"""Operations in one of the files that a read history is handed to the engine in."""
NAMED_ROWS_MAX: Final = 2_000
"""Operations that findings name and that are looked up for the page."""
NIL_TEXTS: Final = (None, "", "nil", "null", "none")
JEPSEN: Final = "Jepsen"

EngineKind = Literal["auto", "local", "spark"]


TIME_BUDGET_S: Final = SearchBudget().time_s
"""How long a history is checked if nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What a check was asked for.

    `time_budget_s` is for a whole history, from when it is read; the start of a Spark session
    does not count. None: TIME_BUDGET_S, which through Spark is for each object, since the whole
    may be of any size there.
    """

    model: str | None = None
    initial: str | None = None
    partition_by: PartitionBy | None = None
    checkers: tuple[str, ...] = ()
    time_budget_s: float | None = None
    memory_budget_bytes: int = SearchBudget().memory_bytes
    engine: EngineKind = "auto"
    spark_master: str = "local[*]"


Engines = Callable[[str], judge.Engine]
"""Gives the engine of a kind ("local", "spark"); the same one each time."""


def check_path(
    path: Path, settings: CheckSettings, engines: Engines, progress: Callable[[str], None]
) -> CheckedHistory:
    """Check one history.

    Raises:
        UsageError: it cannot be read, its model is not told or does not fit, or Spark cannot be
            had; one line.
        HarnessError: the engine failed.
    """
    start_s = time.time()
    progress(f"reading {path}")
    source = open_source(path, settings.partition_by)
    model = _model(source, settings)
    notes = list(source.history.notes)
    if model is not None:
        source = _without_unknown_reads(source, settings, model, notes)
    kind = _engine_kind(source, settings, notes)
    verdicts: list[Verdict] = []
    if source.rows == 0:
        verdicts = [verdict_on_nothing(source.history)]
    else:
        verdicts = _judge(source, model, settings, engines(kind), start_s, progress)
    named_ops = frozenset(
        op for verdict in verdicts for finding in shown_findings(verdict)
        for op in finding.operations
    )  # fmt: skip
    return CheckedHistory(
        path=str(path),
        format=source.history.format,
        model=None if model is None else model.name,
        engine=kind,
        seconds=time.time() - start_s,
        outcomes=source.outcomes,
        keys=source.keys,
        clients=source.clients,
        verdicts=tuple(verdicts),
        cut=source.history.cut,
        hole=source.history.hole,
        notes=tuple(notes),
        is_timed=source.history.is_timed,
        faults=source.history.faults,
        rows=source.find(frozenset(sorted(named_ops)[:NAMED_ROWS_MAX])),
    )


def _model(source: Source, settings: CheckSettings) -> Model | None:
    """Return the model to check against; None where only anomalies are looked for."""
    if settings.model is not None:
        model = model_named(settings.model)
        with _with_path(source):
            require_fit(model, source.fs)
        return model
    if settings.checkers or not source.rows:
        return None
    with _with_path(source):
        return recognise_model(source.sample, source.fs)


@contextmanager
def _with_path(source: Source) -> Iterator[None]:
    """Say of which history a refusal is, and what of it could not be read: that may be why."""
    try:
        yield
    except UsageError as error:
        incomplete = source.history.incomplete
        more = "" if incomplete is None else f"; and it is incomplete: {incomplete}"
        raise UsageError(f"{source.history.path}: {error}{more}") from error


def _without_unknown_reads(
    source: Source, settings: CheckSettings, model: Model, notes: list[str]
) -> Source:
    """Leave out reads of nil where a register was said to begin with a value.

    Jepsen prints the answer of a read that got none as nil, and knossos lets it match anything.
    A register that begins at nil can hold it: there such a read counts.
    """
    operations = source.history.operations
    is_asked = (
        settings.initial not in NIL_TEXTS
        and model.name in ("register", "cas-register")
        and source.history.format.startswith(JEPSEN)
    )
    if not is_asked:
        return source
    is_unknown = pc.and_(
        pc.and_(pc.equal(operations["f"], "read"), pc.equal(operations["outcome"], "ok")),
        pc.and_(pc.is_null(operations["output"]), pc.is_null(operations["extra"])),
    )
    count = pc.sum(is_unknown).as_py() or 0
    if not count:
        return source
    notes.append(
        f"{count} reads answered nil, which a register that begins with {settings.initial} never"
        " holds: taken as reads of unknown value, as knossos does"
    )
    kept = operations.filter(pc.invert(is_unknown))
    return replace(source, history=replace(source.history, operations=kept))


def _engine_kind(source: Source, settings: CheckSettings, notes: list[str]) -> str:
    if settings.engine != "auto":
        return settings.engine
    if source.rows <= LOCAL_ROWS_MAX:
        return judge.LOCAL
    try:
        judge.Engine(judge.SPARK, settings.spark_master).require_java(os.environ)
    except UsageError:
        notes.append(
            f"more than {LOCAL_ROWS_MAX:,} operations and no Java for Spark: checked in one process"
        )
        return judge.LOCAL
    return judge.SPARK


def _judge(
    source: Source,
    model: Model | None,
    settings: CheckSettings,
    engine: judge.Engine,
    start_s: float,
    progress: Callable[[str], None],
) -> list[Verdict]:
    """Judge by the model, and by the checkers that were asked for."""
    time_s = TIME_BUDGET_S if settings.time_budget_s is None else settings.time_budget_s
    is_bounded = settings.time_budget_s is not None or engine.kind == judge.LOCAL
    waiting_s = time.time()
    engine.wait(progress)  # a session takes longer to start than some budgets last
    start_s += time.time() - waiting_s
    deadline = start_s + time_s if is_bounded else None
    budget = SearchBudget(time_s, settings.memory_budget_bytes, deadline)
    history = source.history
    linearizable = [] if model is None else [Linearizable(model, settings.initial)]
    others: list[Checker] = [discovery.get("checkers", name) for name in settings.checkers]
    context = CheckContext(
        nodes=(),
        committed={},
        promises=_all_promises(source.fs),
        incomplete=history.hole,
        search=budget,
        clock_unix_s=time.time,
    )
    verdicts: list[Verdict] = []
    with _scratch() as folder:
        files = source.files or _write_parts(history.operations, folder)
        # A prefix of a history is a history: what is not linearizable in it stands.
        for checkers, what in ((linearizable, history.hole), (others, history.incomplete)):
            if checkers:
                limited = replace(context, incomplete=what)
                job = CheckJob(files, {}, _no_log, limited, tuple(checkers))
                verdicts += engine.run(job, progress)
    return [with_history_state(verdict, history, source.outcomes["ok"]) for verdict in verdicts]


def _all_promises(fs: frozenset[str]) -> Promises:
    """Return the promises of a system that must show no anomaly that is looked for."""
    from shaketable.checkers.anomalies.promises import ANOMALIES  # noqa: PLC0415 - only where one is

    return Promises(linearizable=fs, excludes=ANOMALIES)


def _write_parts(operations: pa.Table, folder: Path) -> tuple[Path, ...]:
    """Write operations, which stand by key, as Parquet files for the engine.

    Raises:
        HarnessError: there is no room for them.
    """
    paths = []
    for number, start in enumerate(range(0, operations.num_rows, FILE_ROWS)):
        path = folder / f"part-{number:05d}.parquet"
        try:
            pq.write_table(operations.slice(start, FILE_ROWS), path)
        except OSError as error:
            raise _no_room(error) from error
        paths.append(path)
    return tuple(paths)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a folder for a check's own files.

    Raises:
        HarnessError: none can be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=scratch_prefix("check"))
    except OSError as error:
        raise _no_room(error) from error
    with folder as path:
        yield Path(path)


def _no_room(error: OSError) -> HarnessError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return HarnessError(f"cannot write a check's own files: {why} (TMPDIR says where they go)")


def _no_log(_directory: Path, _node: str) -> Any:
    """Stand for the logs of nodes that a foreign history does not have."""
    return iter(())


def require_checkers(names: Sequence[str]) -> None:
    """See to it that checkers exist and judge operations alone.

    Raises:
        UsageError: one line.
    """
    for name in names:
        checker = discovery.get("checkers", name)
        if checker.tables != ("operations",):
            raise UsageError(
                f"the checker {name} judges the nodes' logs, which a history does not have"
            )
