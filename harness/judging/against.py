"""Judges each object of a history by another program too, and tells where the verdicts differ.

The reference is porcupine, a Go module: a program around it (the folder porcupine) is built into
the cache of what is installed. It is asked object by object, within limits that this side enforces:
it may use up all memory, and go past its own time limit.

Source: github.com/anishathalye/porcupine.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.linearizability.deciding import Decider
from shaketable.checkers.models.encoding import call_of
from shaketable.checkers.models.model import UNKNOWN, Call, Model
from shaketable.checkers.search.problem import State
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.installing import (
    folder_of,
    is_installed,
    keep,
    partial_folder,
    require,
    run,
)
from shaketable.harness.run_markers import scratch_prefix
from shaketable.harness.untrusted_text import printable

PORCUPINE: Final = "porcupine"
REFERENCES: Final = (PORCUPINE,)
"""What a history can be judged by as well."""
VERSION: Final = "1.3.0"
"""Of the module, as go.mod pins it."""
SOURCE: Final = Path(__file__).parent / PORCUPINE
"""The program around it."""
OPERATIONS_MAX: Final = 2_000_000
"""A larger history is not handed to a reference."""
GRACE_S: Final = 10.0
"""So long after its time limit the reference is killed."""
BYTES_MAX: Final = 2 << 30
"""What the reference may hold; porcupine takes gigabytes where it does not find an order."""
OBJECTS_KEPT_MAX: Final = 1_000
"""Objects that a result lists: those whose verdicts differ first."""
LINE_BYTES_MAX: Final = 1 << 16
ERROR_CHARS_MAX: Final = 200
NAMES: Final = {"Ok": Outcome.VALID, "Illegal": Outcome.INVALID}
"""Its verdicts; all others are none."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """One object: both verdicts ("valid", "invalid", "unknown") and what they took.

    `why` says why the reference gave none.
    """

    key: str | None
    operations: int
    ours: str
    ours_s: float
    theirs: str
    theirs_s: float | None
    why: str = ""

    @property
    def differs(self) -> bool:
        """Return whether one says valid and the other invalid."""
        return {self.ours, self.theirs} == {"valid", "invalid"}


def require_reference(name: str) -> None:
    """Check that there is such a reference.

    Raises:
        UsageError: there is none; one line.
    """
    if name not in REFERENCES:
        raise UsageError(unknown_name("reference for --against", name, REFERENCES))


def build(cache: Path, tell: Progress) -> Path:
    """Build the program around porcupine into the cache, unless it is there; return its path.

    Raises:
        HarnessError: there is no Go, or it could not be built; one line.
    """
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(SOURCE.iterdir())))
    version = f"{VERSION}-{digest.hexdigest()[:12]}"
    kept = folder_of(cache, PORCUPINE, version) / PORCUPINE
    if is_installed(cache, PORCUPINE, version):
        return kept
    require(("go",), f"--against {PORCUPINE}")
    with partial_folder(cache, tell) as partial:
        if not is_installed(cache, PORCUPINE, version):  # by another process, meanwhile
            tell(f"go: building {PORCUPINE} {VERSION} into {cache}")
            shutil.copytree(SOURCE, partial / "source")
            built = partial / "installed"
            run(
                ["go", "build", "-mod=readonly", "-trimpath", "-o", str(built / PORCUPINE), "."],
                partial / "source",
                {"CGO_ENABLED": "0"},
            )
            keep(built, cache, PORCUPINE, version)
    return kept


def compare(
    program: Path,
    operations: pa.Table,
    model: Model,
    initial: State,
    context: CheckContext,
    progress: Progress,
) -> Verdict:
    """Judge each object twice.

    Args:
        program: what `build` returned.
        operations: rows of OPERATIONS.
        model: the model.
        initial: the first state of each object.
        context: the limits for each object, of either side.
        progress: is called with what is being done.

    Returns:
        UNKNOWN, with a finding for each object whose verdicts differ, else VALID.

    Raises:
        UsageError: the reference has no such model, or there are too many operations.
        HarnessError: nothing can be written for it.
    """
    if model.name not in FIRST_STATES:
        there_are = ", ".join(sorted(FIRST_STATES))
        raise UsageError(f"{PORCUPINE} is given no model {model.name} (there are: {there_are})")
    if operations.num_rows > OPERATIONS_MAX:
        raise UsageError(too_many(operations.num_rows))
    objects = list(_objects(operations))
    ours = []
    for n, (_, table) in enumerate(objects):
        progress(f"judging object {n + 1} of {len(objects)}")
        ours.append(_judged(table, model, initial, context))
    theirs: list[_Answer] = []
    with _written(objects, model) as file:
        question = (str(program), model.name, f"{context.search.time_s:g}",
                    FIRST_STATES[model.name](initial), str(file))  # fmt: skip
        while len(theirs) < len(objects):
            theirs += _answers(question, len(theirs), len(objects), context, progress)
    return _verdict(
        [
            Compared(key, table.num_rows, outcome, ours_s, other.verdict, other.seconds, other.why)
            for (key, table), (outcome, ours_s), other in zip(objects, ours, theirs, strict=True)
        ]
    )


def too_many(count: int) -> str:
    """Return the error text for a history that is too large."""
    return f"{count:,} operations are too many for --against (at most {OPERATIONS_MAX:,})"


def _objects(operations: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield each object's key and its operations."""
    table = operations.select(OPERATIONS.names).sort_by([("key", "ascending"), ("op", "ascending")])
    keys = table["key"].to_pylist()
    bounds = [n for n, key in enumerate(keys) if not n or key != keys[n - 1]]
    for start, stop in zip(bounds, [*bounds[1:], len(keys)], strict=True):
        yield keys[start], table.slice(start, stop - start)


def _judged(
    table: pa.Table, model: Model, initial: State, context: CheckContext
) -> tuple[str, float]:
    """Return our verdict on one object, and the seconds that it took."""
    begin_s = time.perf_counter()
    outcome, _ = Decider(model, initial, True, context, context.begin_search()).judge(table)
    return outcome.name.lower(), time.perf_counter() - begin_s


# What the program reads.


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _texts(values: Iterable[Any]) -> str:
    return f"[{','.join(sorted(map(_text, values)))}]"


FIRST_STATES: Final[Mapping[str, Callable[[Any], str]]] = {
    "register": lambda state: _text(state[0]),
    "cas-register": lambda state: _text(state[0]),
    "mutex": _text,
    "counter": _text,
    "set": _texts,
    "fifo-queue": lambda state: _text(list(state)),
    "unordered-queue": lambda state: _texts(
        value for value, count in state.held for _ in range(count)
    ),
    "stack": lambda state: _text(list(state)),
    "kv": _text,
    "multi-register": lambda state: (
        f"[{','.join(f'{name},{value}' for name, value in sorted(map(_pair, state)))}]"
    ),
}
"""For each model that the program has: a first state as it takes it."""


def _pair(named: tuple[Any, Any]) -> tuple[str, str]:
    return _text(named[0]), _text(named[1])


class _written:  # noqa: N801 - a context manager, used as a function
    """Writes objects as the program reads them, into a file of our own."""

    def __init__(self, objects: Sequence[tuple[str | None, pa.Table]], model: Model) -> None:
        self._objects, self._model = objects, model

    def __enter__(self) -> Path:
        try:
            self._folder = TemporaryDirectory(prefix=scratch_prefix("against"))
            file = Path(self._folder.name) / "objects.jsonl"
            with file.open("w", encoding="utf-8") as out:
                for _, table in self._objects:
                    out.write(_text(_recorded(table, self._model)) + "\n")
        except OSError as error:
            why = error.strerror or error
            raise HarnessError(f"cannot write what {PORCUPINE} reads: {why}") from error
        return file

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _recorded(table: pa.Table, model: Model) -> list[dict[str, Any]]:
    """Return an object's operations; times are numbered, at one time calls come first."""
    rows = [
        row for row in table.to_pylist()
        if row["outcome"] == "ok" or (row["outcome"] == "info" and row["f"] not in model.observers)
    ]  # fmt: skip
    is_ok = np.array([row["outcome"] == "ok" for row in rows], np.bool_)
    call = np.array([row["call_ns"] for row in rows], np.int64)
    end = np.array([row["return_ns"] if row["outcome"] == "ok" else 0 for row in rows], np.int64)
    is_return = np.repeat((False, True), len(rows))
    rank = np.empty(2 * len(rows), np.int64)
    rank[np.lexsort((is_return, np.concatenate((call, end))))] = np.arange(2 * len(rows))
    found = []
    for n, row in enumerate(rows):
        asked = call_of(row)
        one = {"process": row["process"], "f": row["f"], "call": int(rank[n])}
        one |= {"input": _given(asked.input, model), "expected": asked.expected}
        if is_ok[n]:
            one |= {"return": int(rank[len(rows) + n]), "output": _answer_of(asked, model)}
        found.append(one)
    return found


def _answer_of(call: Call, model: Model) -> Any:
    """Return an answer; a transaction of writes alone may leave it out."""
    is_left_out = model.name == "multi-register" and call.output is None
    return _given(call.input if is_left_out else call.output, model)


def _given(value: Any, model: Model) -> Any:
    """Return a value as the program compares it: texts of kv, 0 and 1 for false and true."""
    if value is UNKNOWN:
        return None
    if isinstance(value, bool):
        return int(value)
    return str(value) if model.name == "kv" and value is not None else value


# How it is asked.


@dataclass(frozen=True, slots=True)
class _Answer:
    verdict: str
    seconds: float | None = None
    why: str = ""


def _answers(
    question: Sequence[str], start: int, count: int, context: CheckContext, progress: Progress
) -> list[_Answer]:
    """Ask from object `start` on; return the answers until it ended, one at the least."""
    limit_s = context.search.time_s + GRACE_S
    found: list[_Answer] = []
    environ = {**os.environ, "GOMAXPROCS": "1"}
    with TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [*question, str(start)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=errors, env=environ, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise HarnessError(f"{question[0]} does not start: {error.strerror}") from error
        assert process.stdout is not None, "it has a pipe"
        is_late = False
        try:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
            lines = _lines(process.stdout, limit_s)
            for line in lines:
                found.append(_answer(line, question[0]))
                progress(f"{PORCUPINE}: {start + len(found)} of {count} objects")
        except TimeoutError:
            is_late = True
        finally:
            if process.poll() is None:
                if is_late or start + len(found) < count:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
        if start + len(found) < count:
            found.append(_Answer("unknown", None, "time" if is_late else _reason(errors)))
    return found


def _lines(pipe: IO[bytes], limit_s: float) -> Iterator[str]:
    """Yield the lines of a pipe.

    Raises:
        TimeoutError: none came within the limit.
    """
    left = b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while True:
            if not ready.select(limit_s):
                raise TimeoutError
            more = os.read(pipe.fileno(), LINE_BYTES_MAX)
            if not more:
                return
            *whole, left = (left + more).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")


def _answer(line: str, program: str) -> _Answer:
    """Parse "NUMBER VERDICT SECONDS".

    Raises:
        HarnessError: it is something else.
    """
    try:
        _, verdict, seconds = line.split()
        took_s = float(seconds)
    except ValueError:
        shown = printable(line[:ERROR_CHARS_MAX])
        raise HarnessError(f"{program} answered {shown!r}, which is no verdict") from None
    if verdict in NAMES:
        return _Answer(NAMES[verdict].name.lower(), took_s)
    return _Answer("unknown", took_s, "time")


def _reason(errors: IO[bytes]) -> str:
    """Return why the program ended before its last answer."""
    errors.seek(0)
    said = errors.read(LINE_BYTES_MAX).decode(errors="replace")
    if "out of memory" in said or "cannot allocate" in said:
        return "memory"
    first = next((line for line in said.splitlines() if line.strip()), "it ended")
    return printable(first[:ERROR_CHARS_MAX])


# What is told.


def _verdict(compared: Sequence[Compared]) -> Verdict:
    differing = [one for one in compared if one.differs]
    silent = [one for one in compared if "unknown" in (one.ours, one.theirs)]
    ours_s = sum(one.ours_s for one in compared)
    theirs_s = sum(one.theirs_s or 0.0 for one in compared)
    took = f"ours {ours_s:.3f} s, {PORCUPINE} {theirs_s:.3f} s"
    alike = len(compared) - len(differing) - len(silent)
    if differing:
        summary = f"{PORCUPINE} {VERSION} differs on {len(differing)} of {_objects_text(compared)}"
    else:
        summary = f"{PORCUPINE} {VERSION} agrees on {alike} of {_objects_text(compared)}"
    if silent:
        whys = sorted({one.why or "ours is unknown" for one in silent})
        summary += f", {len(silent)} not compared ({', '.join(whys)})"
    listed = sorted(compared, key=lambda one: (not one.differs, one not in silent))
    return Verdict(
        checker=f"against-{PORCUPINE}",
        outcome=Outcome.UNKNOWN if differing else Outcome.VALID,
        summary=f"{summary}; {took}",
        findings=tuple(_finding(one) for one in differing[:OBJECTS_KEPT_MAX]),
        findings_total=len(differing),
        counts={"objects": len(compared), "differ": len(differing), "not_compared": len(silent)},
        data={"objects": [asdict(one) for one in listed[:OBJECTS_KEPT_MAX]]},
    )


def _objects_text(compared: Sequence[Compared]) -> str:
    return f"{len(compared)} object{'' if len(compared) == 1 else 's'}"


def _finding(one: Compared) -> Finding:
    where = "" if one.key is None else f"{one.key}: "
    message = (
        f"{where}the verdicts differ, so one of them is wrong: ours is {one.ours}"
        f" ({one.ours_s:.3f} s), that of {PORCUPINE} {one.theirs} ({one.theirs_s or 0.0:.3f} s);"
        f" {one.operations} operations."
    )
    return Finding("verdicts-differ", message, one.key)
