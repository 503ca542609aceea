"""Save the log entries around findings: evidence/entries.json of a judged run.

The pages of violations show them. They are saved when the run is judged, since the nodes' data
files may be deleted later and reports do not know how to read them. Nothing here changes a verdict,
and no error here ends a check.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.evidence.entries_around import AckedAppends, Place, collect
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.harness.history.export import load_operations
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.schema import APPENDING

log = logging.getLogger(__name__)

PER_KIND_MAX: Final = 8
"""Findings of each kind and fault whose entries are saved."""
MAPS_MAX: Final = 8
"""Queues that are mapped."""
FILE_BYTES_MAX: Final = 8 << 20
"""A larger file is not written: a page without entries is better than one too large to open."""
COLUMNS: Final = ("f", "key", "input", "offset", "outcome")


def save(folder: RunFolder, job: CheckJob, verdicts: Iterable[Verdict]) -> None:
    """Write the log entries around these verdicts' findings; no file if there are none.

    Deletes the file of an earlier check. Never raises, whatever the logs hold.
    """
    try:
        folder.entries_json.unlink(missing_ok=True)
        found = [
            finding
            for verdict in verdicts
            for finding in (*verdict.findings, *verdict.observed)
            if any(True for _ in _places(finding))
        ]
        chosen = _chosen(found)
        if not chosen or not job.logs:
            return
        text = json.dumps(_collected(folder, job, chosen), separators=(",", ":"))
        if len(text) > FILE_BYTES_MAX:
            log.warning("event=evidence_too_large bytes=%d", len(text))
            return
        folder.entries_json.parent.mkdir(exist_ok=True)
        write_atomically(folder.entries_json, text + "\n")
    except Exception:  # a target's log reader may raise anything; the verdict does not depend on it
        log.exception("event=evidence_not_kept")


def _collected(folder: RunFolder, job: CheckJob, chosen: list[Finding]) -> dict[str, Any]:
    keys = list(
        dict.fromkeys(
            finding.key
            for finding in chosen
            if finding.key is not None and record_of(finding.kind).has_map
        )
    )[:MAPS_MAX]
    logs = {node: partial(_read, job, node) for node in job.logs}
    places = [place for finding in chosen for place in _places(finding)]
    return collect(logs, places, _acked(folder, keys), job.context.committed)


def _read(job: CheckJob, node: str) -> Iterator[pa.RecordBatch]:
    return job.read_log(job.logs[node], node)


def _chosen(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first findings of each kind and fault: those that get pages.

    The first of every group come before all second ones, since the number of places is limited.
    """
    seen: Counter[tuple[str, str]] = Counter()
    chosen: list[tuple[int, Finding]] = []
    for finding in findings:
        faults = finding.details.get("faults") or [finding.details.get("fault")]
        group = (finding.kind, str(faults[0] if isinstance(faults, list) else faults))
        if seen[group] < PER_KIND_MAX:
            chosen.append((seen[group], finding))
            seen[group] += 1
    return [finding for _, finding in sorted(chosen, key=lambda ranked: ranked[0])]


def _places(finding: Finding) -> Iterator[Place]:
    """Yield the places of a finding: the offset in its queue, the indices in the log."""
    if finding.key is not None and finding.offset is not None:
        yield Place(key=finding.key, offset=finding.offset)
    for name in record_of(finding.kind).indices:
        index = finding.details.get(name)
        if isinstance(index, int) and not isinstance(index, bool):
            yield Place(index=index)


def _acked(folder: RunFolder, keys: list[str]) -> dict[str, AckedAppends]:
    if not keys:
        return {}
    try:
        rows = load_operations(folder, COLUMNS)
    except HarnessError:
        return {}
    is_acked = pc.and_(
        pc.equal(rows["outcome"], "ok"), pc.is_in(rows["f"], value_set=pa.array(APPENDING))
    )
    has_place = pc.and_(pc.is_valid(rows["offset"]), pc.is_valid(rows["input"]))
    rows = rows.filter(pc.and_(is_acked, has_place))
    return {key: AckedAppends.of(rows.filter(pc.equal(rows["key"], key))) for key in keys}
