"""Check one recorded history of any origin: what `shaketable check` does for each path.

Open the history, choose its model, judge it with an engine, and join the verdicts with what is
known of missing events: a history with a cut end is never VALID, one with a hole proves nothing.

A violation that was found while a history grew is explained by such a check of its last part.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.checkers.api import verdict_on_nothing, with_history_state
from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.linearizability.model_choice import (
    appends,
    are_transactions,
    has_balances,
    model_named,
    model_of_recording,
    recognise_model,
    require_fit,
)
from shaketable.checkers.models.model import Model
from shaketable.harness.budget_clock import budget_clock_s, uncounted
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.finding_kinds import ANOMALIES
from shaketable.harness.contracts.isolation import STRONGEST
from shaketable.harness.contracts.plugins import CheckContext, Checker, Promises, SearchBudget
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.history.foreign.read import Format, PartitionBy, Source, open_source
from shaketable.harness.history.schema import TRANSACTION
from shaketable.harness.judging import engines
from shaketable.harness.run_markers import scratch_prefix
from shaketable.reports.check_page.checked_history import CheckedHistory, shown_findings

if TYPE_CHECKING:
    from shaketable.checkers.online import Violation

LOCAL_ROWS_MAX: Final = 2_000_000
"""Up to this many operations `--engine auto` checks in this process (docs/adr/0010)."""
FILE_ROWS: Final = 250_000
"""Operations in each Parquet file that is written for the engine."""
NAMED_ROWS_MAX: Final = 2_000
"""Most operations named by findings that are looked up for the page."""
NIL_TEXTS: Final = (None, "", "nil", "null", "none")
JEPSEN: Final = "Jepsen"

TRANSACTIONS: Final = frozenset((TRANSACTION, "read", "write"))
"""What operations are called whose values may be transactions."""
BANK_FS: Final = frozenset(("read", "transfer"))
ISOLATION, BANK = "isolation", "bank"
"""Checkers of transactions, by name."""
TRANSACTIONAL: Final = "multi-register"
"""The model of transactions; it says whether they are strict serializable, and nothing else."""

EngineKind = Literal["auto", "local", "spark"]


TIME_BUDGET_S: Final = SearchBudget().time_s
"""Default time budget of a history."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The settings of a check.

    `time_budget_s` covers a whole history, from reading it on, without the start of a Spark
    session. None means TIME_BUDGET_S; through Spark, where a history may be of any size, that is
    the budget of each object. `is_part`: the history begins in the middle of another, so what is
    found may not be said of all that ever happened. `against` is the program of a reference that
    judges each object too (`against.build`).
    """

    model: str | None = None
    initial: str | None = None
    partition_by: PartitionBy | None = None
    checkers: tuple[str, ...] = ()
    time_budget_s: float | None = None
    memory_budget_bytes: int = SearchBudget().memory_bytes
    engine: EngineKind = "auto"
    spark_master: str = "local[*]"
    is_part: bool = False
    against: Path | None = None


Engines = Callable[[str], engines.Engine]
"""Returns the engine of a kind ("local", "spark"); always the same one."""


def check_path(
    path: Path, settings: CheckSettings, engine_of: Engines, progress: Callable[[str], None]
) -> CheckedHistory:
    """Check one history.

    Raises:
        UsageError: it cannot be read, its model is unknown or does not fit, or Spark is not
            available; one line.
        HarnessError: the engine failed.
    """
    start_s, budget_from_s = time.time(), budget_clock_s()
    progress(f"reading {path}")
    source = open_source(path, settings.partition_by)
    settings = _with_default_checkers(settings, source)
    model = _model(source, settings)
    notes = list(source.history.notes)
    if model is not None:
        source = _without_unknown_reads(source, settings, model, notes)
    kind = _engine_kind(source, settings, notes)
    verdicts: list[Verdict] = []
    if source.rows == 0:
        verdicts = [verdict_on_nothing(source.history)]
    else:
        verdicts = _judge(source, model, settings, engine_of(kind), budget_from_s, progress)
    if settings.against is not None:
        verdicts.append(_compared(source, model, settings, settings.against, progress))
    is_chosen = settings.model is None and model is not None and model.name == TRANSACTIONAL
    if is_chosen and any(verdict.outcome is not Outcome.VALID for verdict in verdicts):
        notes.append(
            "which isolation levels hold, and which anomalies there are: --checkers isolation"
        )
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


def _with_default_checkers(settings: CheckSettings, source: Source) -> CheckSettings:
    """Return the settings, with a checker of transactions where no model is of use.

    The checker of banks is for reads of balances. That of isolation levels is for transactions that
    append; for those without times, where it is not known which of two sessions' transactions was
    first; and for reads and writes that are transactions by their values.
    """
    if settings.model is not None or settings.checkers:
        return settings
    if source.fs <= BANK_FS and has_balances(source.sample):
        return replace(settings, checkers=(BANK,))
    if not source.fs <= TRANSACTIONS:
        return settings
    form = source.history.format
    has_no_times = form in (Format.SESSIONS.value, Format.TUPLES.value)
    is_hidden = source.fs != {TRANSACTION} and are_transactions(source.sample)
    if has_no_times or appends(source.sample) or is_hidden:
        return replace(settings, checkers=(ISOLATION,))
    return settings


def _model(source: Source, settings: CheckSettings) -> Model | None:
    """Return the model to check against; None if only anomalies are searched for."""
    if settings.model is not None:
        model = model_named(settings.model)
        with _with_path(source):
            require_fit(model, source.fs)
        return model
    if settings.checkers or not source.rows:
        return None
    with _with_path(source):
        if source.history.model is not None:
            return model_of_recording(source.history.model)
        return recognise_model(source.sample, source.fs)


@contextmanager
def _with_path(source: Source) -> Iterator[None]:
    """Add to a refusal the history's path and which part of it is missing, a likely reason."""
    try:
        yield
    except UsageError as error:
        incomplete = source.history.incomplete
        more = "" if incomplete is None else f"; and it is incomplete: {incomplete}"
        raise UsageError(f"{source.history.path}: {error}{more}") from error


def _without_unknown_reads(
    source: Source, settings: CheckSettings, model: Model, notes: list[str]
) -> Source:
    """Drop reads of nil from the history of a register with a given initial value.

    Jepsen prints nil for a read without a result, and knossos lets such a read match any value. A
    register that starts at nil can hold nil: there the read is kept.
    """
    operations = source.history.operations
    has_initial_value = (
        settings.initial not in NIL_TEXTS
        and model.name in ("register", "cas-register")
        and source.history.format.startswith(JEPSEN)
    )
    if not has_initial_value:
        return source
    is_unknown = pc.and_(
        pc.and_(pc.equal(operations["f"], "read"), pc.equal(operations["outcome"], "ok")),
        pc.and_(pc.is_null(operations["output"]), pc.is_null(operations["extra"])),
    )
    count = pc.sum(is_unknown).as_py() or 0
    if not count:
        return source
    notes.append(
        f"{count} reads answered nil, which a register that starts with {settings.initial} never"
        " holds: taken as reads of unknown value, as knossos does"
    )
    known = operations.filter(pc.invert(is_unknown))
    return replace(source, history=replace(source.history, operations=known))


def _engine_kind(source: Source, settings: CheckSettings, notes: list[str]) -> str:
    if settings.engine != "auto":
        return settings.engine
    if source.rows <= LOCAL_ROWS_MAX:
        return engines.LOCAL
    try:
        engines.Engine(engines.SPARK, settings.spark_master).require_java(os.environ)
    except UsageError:
        notes.append(
            f"more than {LOCAL_ROWS_MAX:,} operations and no Java for Spark: checked in one process"
        )
        return engines.LOCAL
    return engines.SPARK


def _judge(
    source: Source,
    model: Model | None,
    settings: CheckSettings,
    engine: engines.Engine,
    budget_from_s: float,
    progress: Callable[[str], None],
) -> list[Verdict]:
    """Check against the model and with the requested checkers."""
    time_s = TIME_BUDGET_S if settings.time_budget_s is None else settings.time_budget_s
    is_bounded = settings.time_budget_s is not None or engine.kind == engines.LOCAL
    with uncounted():  # a session takes longer to start than some budgets last
        engine.wait(progress)
    deadline = budget_from_s + time_s if is_bounded else None
    budget = SearchBudget(time_s, settings.memory_budget_bytes, deadline)
    history = source.history
    initial = history.initial if settings.initial is None else settings.initial
    whole = not settings.is_part  # special cases say what no client ever did
    linearizable = [] if model is None else [Linearizable(model, initial, use_special_cases=whole)]
    others: list[Checker] = [_checker(name) for name in settings.checkers]
    context = CheckContext(
        nodes=(),
        committed={},
        promises=_all_promises(source.fs),
        incomplete=history.hole,
        search=budget,
        clock_unix_s=budget_clock_s,
        is_timed=history.is_timed,
        initial=initial,
    )
    if others and source.history.format == Format.RUN.value:
        context = _of_run(context, source, others)
    verdicts: list[Verdict] = []
    with _scratch() as folder:
        files = source.files or _write_parts(history.operations, folder)
        # Linearizability and isolation are prefix-closed: a violation in a history with a cut end
        # is real. A hole can hide a write that was read, so there nothing is proven.
        closed = [each for each in others if getattr(each, "judges_prefixes", False)]
        rest = [each for each in others if each not in closed]
        for checkers, what in (
            (linearizable, history.hole), (closed, history.hole), (rest, history.incomplete),
        ):  # fmt: skip
            if checkers:
                limited = replace(context, incomplete=what)
                job = CheckJob(files, {}, _no_log, limited, tuple(checkers))
                verdicts += engine.run(job, progress)
    return [with_history_state(verdict, history, source.outcomes["ok"]) for verdict in verdicts]


def _of_run(context: CheckContext, source: Source, checkers: Sequence[Checker]) -> CheckContext:
    """Add what disturbed a run, what its target promises, and who judges which of its topics.

    Without it a checker would take each answer that a fault had delayed for one that is late.

    Raises:
        UsageError: the run's folder lacks it, and one of the checkers needs it.
    """
    from shaketable.harness.history.export import load_windows  # noqa: PLC0415 - few are of a run
    from shaketable.harness.history.run_folder import RunFolder  # noqa: PLC0415
    from shaketable.harness.judging import judge  # noqa: PLC0415

    folder = RunFolder(source.history.path)
    if folder.campaign_toml.exists():
        campaign = judge.stored_campaign(folder)
        context = replace(context, promises=judge.promises_by(campaign))
        return judge.with_run(context, folder, campaign, load_windows(folder))
    needing = [checker.name for checker in checkers if getattr(checker, "needs_run", False)]
    if needing:
        raise UsageError(
            f"{folder.path}: a run without its campaign.toml, which says what disturbed it:"
            f" {', '.join(needing)} cannot judge it; other checkers and --model can"
        )
    return context


def _compared(
    source: Source,
    model: Model | None,
    settings: CheckSettings,
    program: Path,
    progress: Callable[[str], None],
) -> Verdict:
    """Judge each object by a reference as well.

    Raises:
        UsageError: the history is judged without a model, or the reference cannot judge it.
    """
    from shaketable.harness.judging import against  # noqa: PLC0415 - few checks ask a reference

    if model is None:
        raise UsageError(
            f"{source.history.path}: --against compares verdicts on a model, and this history is"
            " judged without one; give it: --model NAME"
        )
    initial = source.history.initial if settings.initial is None else settings.initial
    time_s = TIME_BUDGET_S if settings.time_budget_s is None else settings.time_budget_s
    context = CheckContext(
        nodes=(),
        committed={},
        promises=_all_promises(source.fs),
        search=SearchBudget(time_s, settings.memory_budget_bytes),
        clock_unix_s=budget_clock_s,
        initial=initial,
    )
    operations = source.history.operations
    if source.files:
        if source.rows > against.OPERATIONS_MAX:
            raise UsageError(against.too_many(source.rows))
        operations = pa.concat_tables([pq.read_table(file) for file in source.files])
    first = Linearizable(model, initial).initial
    with _with_path(source):
        return against.compare(program, operations, model, first, context, progress)


def _all_promises(fs: frozenset[str]) -> Promises:
    """Return promises that exclude every anomaly, since the system declared none."""
    return Promises(linearizable=fs, excludes=ANOMALIES, isolation=STRONGEST)


def _write_parts(operations: pa.Table, folder: Path) -> tuple[Path, ...]:
    """Write operations, sorted by key, as Parquet files for the engine.

    Raises:
        HarnessError: they cannot be written.
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
    """Create a temporary folder for the files of a check.

    Raises:
        HarnessError: it cannot be created.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=scratch_prefix("check"))
    except OSError as error:
        raise _no_room(error) from error
    with folder as path:
        yield Path(path)


def _no_room(error: OSError) -> HarnessError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return HarnessError(f"cannot write a check's own files: {why} (TMPDIR names their folder)")


def _no_log(_directory: Path, _node: str) -> Any:
    """Return no entries: a foreign history has no node logs."""
    return iter(())


def _checker(name: str) -> Checker:
    from shaketable.harness import discovery  # noqa: PLC0415 - takes long; a check against a model alone does without

    found: Checker = discovery.get("checkers", name)
    return found


def require_checkers(names: Sequence[str]) -> None:
    """Check that these checkers exist and need only operations.

    Raises:
        UsageError: one line.
    """
    for name in names:
        checker = _checker(name)
        if checker.tables != ("operations",):
            raise UsageError(
                f"the checker {name} judges the nodes' logs, which a history does not have"
            )


# What a check says of a violation that was found while the history grew.


def explain(violation: Violation, model: str) -> CheckedHistory | None:
    """Return what `check` says of the events around a violation of `model`.

    None if these events were too many to be kept, or do not show it by themselves.
    """
    if not violation.window:
        return None
    events = b"".join(msgspec.json.encode(each) + b"\n" for each in violation.window)
    settings = CheckSettings(
        model=model,
        initial=violation.first,
        partition_by="none",
        engine="local",
        is_part=violation.is_part,
    )
    engine = engines.Engine("local", "")
    try:
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("watch")) as folder:
            part = Path(folder) / "part.jsonl"
            part.write_bytes(events)
            one = check_path(part, settings, lambda _: engine, lambda _: None)
    except (OSError, HarnessError, UsageError):  # a full disk hides no violation
        return None
    finally:
        engine.stop()
    return one if one.outcome is Outcome.INVALID else None


def impossible_read(model: str) -> Violation:
    """Return an answer that nothing explains, as the model has it: a read, or a release.

    To be explained once before it is urgent: what explains is loaded and compiled then.
    """
    f, value = {"kv": ("get", "7"), "mutex": ("release", None)}.get(model, ("read", 7))
    window = tuple(
        EventLine(type=kind, process=0, key="k", time=at, f=f, value=value)
        for at, kind in enumerate(("invoke", "ok"))
    )
    from shaketable.checkers.online import Violation  # noqa: PLC0415 - as above

    return Violation(None, 0, None, window, is_part=False)
