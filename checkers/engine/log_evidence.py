"""Looks up indeterminate appends in the nodes' logs, for the checkers that use it.

The process that runs the engine does so before anything is judged, with the same code for every
engine, so the verdicts do not depend on the engine. The result is small: an entry for each wanted
value. It costs a pass over the logs, which is made only if an append is indeterminate, and given
up if the logs are too long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import CheckJob, Progress
from shaketable.checkers.evidence import LogValues, find_in_logs, is_any_of
from shaketable.checkers.models.model import Values
from shaketable.harness.contracts.plugins import Checker
from shaketable.harness.history.schema import ENTRIES

ENTRIES_MAX: Final = 2_000_000
"""Entries of all nodes together that are read; longer logs are not used."""
OPEN_MAX: Final = 200_000
"""Indeterminate appends that are looked up."""

_KEPT: Final = ["node", "key", "value", "offset", "index", "problem"]
_LOG = logging.getLogger(__name__)


@runtime_checkable
class EvidenceChecker(Protocol):
    """A checker of operations that can use what the nodes' logs hold of open values."""

    name: str

    def wanted_values(self) -> Values:
        """Return which operations put the values to look up."""
        ...

    def with_evidence(self, held: LogValues | None, why_not: str | None) -> Checker:
        """Return a checker that knows it; None and a reason if the logs were not read."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    """The values of indeterminate appends, and their keys."""

    keys: pa.Array
    values: pa.Array


class _TooMuchError(Exception):
    """The logs are too long, or the wanted values too many."""


def with_log_evidence(job: CheckJob, progress: Progress) -> CheckJob:
    """Return the job with checkers that know what the nodes' logs hold of indeterminate appends.

    A log that cannot be read is no evidence; the checkers of logs report what is wrong with it.
    The logs of a run that is known to lack events are no evidence either.
    """
    interested = [checker for checker in job.checkers if isinstance(checker, EvidenceChecker)]
    if not interested or not job.logs or job.context.incomplete is not None:
        return job
    informed: dict[str, Checker] = {}
    for checker in interested:
        held, why_not = None, None
        try:
            wanted = _open_values(job, checker.wanted_values())
            if len(wanted.values):
                progress("looking up unknown outcomes in the nodes' logs")
                held = _look_up(job, wanted)
        except _TooMuchError as error:
            why_not = str(error)
        except Exception as error:  # a plug-in's reader, or a file that the checkers fail on again
            _LOG.debug("logs not read: checker=%s error=%s", checker.name, error)
            why_not = "they cannot be read"
        if held is not None or why_not is not None:
            informed[checker.name] = checker.with_evidence(held, why_not)
    return replace(job, checkers=tuple(informed.get(c.name, c) for c in job.checkers))


def _open_values(job: CheckJob, values: Values) -> _Open:
    """Find the indeterminate appends; of a file without any, only one column is read.

    Raises:
        _TooMuchError: there are more than OPEN_MAX.
    """
    keys: list[Any] = [pa.array([], pa.string())]
    found: list[Any] = [pa.array([], pa.int64())]
    count = 0
    for path in job.operations:
        with pq.ParquetFile(path, read_dictionary=["f", "outcome", "key"]) as file:
            for group in range(file.num_row_groups):
                outcome = file.read_row_group(group, columns=["outcome"])["outcome"]
                if is_any_of(outcome, ("ok", "fail")).all():
                    continue
                rows = file.read_row_group(group, columns=["f", "outcome", "key", "input"])
                is_open = ~is_any_of(rows["outcome"], ("ok", "fail")) & is_any_of(
                    rows["f"], values.puts
                )
                is_open &= np.asarray(pc.is_valid(rows["input"]).to_numpy(), dtype=np.bool_)
                some = rows.filter(pa.array(is_open))
                count += some.num_rows
                if count > OPEN_MAX:
                    raise _TooMuchError(f"there are more than {OPEN_MAX:,} of them")
                keys += some["key"].cast(pa.string()).chunks
                found += some["input"].chunks
    return _Open(pc.unique(pa.concat_arrays(keys)), pc.unique(pa.concat_arrays(found)))


def _look_up(job: CheckJob, wanted: _Open) -> LogValues:
    """Read all nodes' logs; keep the entries with the keys of wanted values.

    Raises:
        _TooMuchError: the logs have more than ENTRIES_MAX entries.
    """
    read, kept = 0, [ENTRIES.empty_table().select(_KEPT)]
    for node, directory in sorted(job.logs.items()):
        for batch in job.read_log(directory, node):
            read += batch.num_rows
            if read > ENTRIES_MAX:
                raise _TooMuchError(f"they have more than {ENTRIES_MAX:,} entries")
            rows = pa.Table.from_batches([batch]).select(_KEPT)
            kept.append(rows.filter(pc.is_in(rows["key"], wanted.keys)))
    entries = pa.concat_tables(kept).combine_chunks()
    values = np.asarray(wanted.values.to_numpy(zero_copy_only=False), dtype=np.int64)
    return find_in_logs(entries, job.context, values).only(values.tolist())
