"""Verdicts of checkers, and how they are merged.

Source: jepsen.checker `merge-valid` (false > unknown > true); exit codes of jepsen.cli, with 1
ranked above 2 so that "unknown" never hides "invalid".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Outcome(enum.IntEnum):
    """The value of a verdict, ordered so that `max` merges: one violation outweighs any doubt."""

    VALID = 0
    UNKNOWN = 1
    INVALID = 2

    @property
    def json_value(self) -> bool | str:
        """The value written to results.json: true, false or "unknown"."""
        return "unknown" if self is Outcome.UNKNOWN else self is Outcome.VALID


class ExitCode(enum.IntEnum):
    """Exit codes of the command line (DESIGN.md section 3).

    Attributes:
        VALID: valid; every promise that was tested held.
        INVALID: invalid; a promise or an invariant was broken.
        UNKNOWN: unknown; there is not enough evidence to decide.
        USAGE: bad usage; one line says what to change.
        HARNESS: the harness failed, or was interrupted before a verdict.
    """

    VALID = 0
    INVALID = 1
    UNKNOWN = 2
    USAGE = 254
    HARNESS = 255


EXIT_BY_OUTCOME = {
    Outcome.VALID: ExitCode.VALID,
    Outcome.INVALID: ExitCode.INVALID,
    Outcome.UNKNOWN: ExitCode.UNKNOWN,
}
_EXIT_RANK = {255: 4, 254: 3, 1: 2, 2: 1, 0: 0}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one place in a history, with its evidence.

    Attributes:
        kind: the anomaly, by the name used in the literature ("lost-append", "stale-read").
        message: one sentence for a reader who did not write the test.
        key: the queue.
        offset: the offset in the queue; None if it has none.
        operations: ids of the operations that show it (the index of their invoke).
        details: JSON-able evidence: who acknowledged, under which fault, what is stored instead.
    """

    kind: str
    message: str
    key: str | None = None
    offset: int | None = None
    operations: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A checker's conclusion.

    Attributes:
        checker: the checker's name.
        outcome: VALID, INVALID or UNKNOWN.
        summary: one line for the terminal and the report.
        findings: the first `FINDINGS_KEPT_MAX` findings at most.
        findings_total: how many findings there were in all.
        counts: numbers worth printing (operations checked, lost, ...).
        data: JSON-able material for the report.
        observed: violations of what the target never promised; shown, but `outcome` stays VALID.
    """

    checker: str
    outcome: Outcome
    summary: str
    findings: tuple[Finding, ...] = ()
    findings_total: int = 0
    counts: dict[str, int | float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    observed: tuple[Finding, ...] = ()


FINDINGS_KEPT_MAX = 200


def join(verdicts: Iterable[Verdict]) -> Outcome:
    """Merge verdicts as invalid > unknown > valid; no verdict at all is unknown."""
    return max((verdict.outcome for verdict in verdicts), default=Outcome.UNKNOWN)


def worst_exit(codes: Iterable[int]) -> int:
    """Merge the exit codes of several runs: 255 > 254 > 1 > 2 > 0."""
    return max(codes, key=lambda code: _EXIT_RANK.get(code, 4), default=int(ExitCode.VALID))
