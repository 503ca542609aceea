"""Compares what was judged while a run went on with what its checkers say at the end.

Both judge the same recordings, so they agree. If they do not, one of them is wrong: an internal
error, which is told, and a violation that was proven stands. If the check could not decide what had
been proven, the proof decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, read_plain

NAME: Final = "online"
"""The name of the verdict on a disagreement; there is none if there is no disagreement."""
BYTES_MAX: Final = 256 << 20
FINDINGS_MAX: Final = 100


class _Line(msgspec.Struct):
    """A line of online.jsonl (`harness.judging.online`): a violation, or how it ended."""

    type: str
    checker: str
    finding: Finding | None = None
    outcome: str | None = None


def judge_agreement(folder: RunFolder, verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return a verdict on a disagreement with these; None if there is none, or nothing to compare.

    It is unknown if what was found cannot be read any more: it may have been a proof.
    """
    try:
        lines = _lines(folder)
    except (NoPlainFileError, msgspec.DecodeError) as error:
        why = f"what was found while the run went on cannot be read: {error}"
        return Verdict(NAME, Outcome.UNKNOWN, f"{folder.online_jsonl.name}: {why}")
    by_name = {verdict.checker: verdict for verdict in verdicts}
    if not lines or lines[0].checker not in by_name:
        return None
    checked = by_name[lines[0].checker]
    proven = [line.finding for line in lines if line.finding is not None]
    kinds = {finding.kind for finding in (*checked.findings, *checked.observed)}
    is_refuted = checked.outcome is Outcome.INVALID or "not-linearizable" in kinds
    if proven and not is_refuted:
        return _proven(proven, checked)
    is_valid = any(line.type == "finished" and line.outcome == Outcome.VALID.name for line in lines)
    if is_valid and is_refuted:
        return Verdict(
            NAME,
            Outcome.UNKNOWN,
            f"internal error: {checked.checker} finds what was found to be right while the run went"
            " on; please report it with this run's folder",
        )
    return None


def _proven(proven: Sequence[Finding], checked: Verdict) -> Verdict:
    keys = "1 key" if len(proven) == 1 else f"{len(proven)} keys"
    found = f"{keys} found not to be linearizable while the run went on"
    if checked.outcome is Outcome.VALID:
        why = f"internal error: {found}, and {checked.checker} finds no violation; please report it"
        why += " with this run's folder"
    else:
        why = f"{found}, which {checked.checker} did not decide"
    return Verdict(NAME, Outcome.INVALID, why, tuple(proven[:FINDINGS_MAX]), len(proven))


def _lines(folder: RunFolder) -> list[_Line]:
    """Return the lines of online.jsonl, without a torn last one; none if there is no such file."""
    if not folder.online_jsonl.exists():
        return []
    data = read_plain(folder.online_jsonl, BYTES_MAX)
    return [msgspec.json.decode(line, type=_Line) for line in data.split(b"\n")[:-1]]
