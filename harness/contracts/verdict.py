"""What a checker concludes, and how conclusions join.

Source: jepsen.checker `merge-valid` (false > unknown > true); exit codes of
jepsen.cli, with 1 ranked above 2 so that "unknown" never hides "invalid".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

INDEX_DETAILS: Final = {"divergent": ("index",), "index-twice": ("index",), "term-fell": ("index",),
                        "damaged": ("index",), "gap": ("first", "last")}  # fmt: skip
"""Details in which findings of these kinds say which indices of the log they are about."""


class Outcome(enum.IntEnum):
    """A verdict's value, ordered so that `max` joins: one violation beats any doubt."""

    VALID = 0
    UNKNOWN = 1
    INVALID = 2

    @property
    def json_value(self) -> bool | str:
        """The value that results.json carries: true, false or "unknown"."""
        return "unknown" if self is Outcome.UNKNOWN else self is Outcome.VALID


class ExitCode(enum.IntEnum):
    """Exit codes of the command line (DESIGN.md section 3)."""

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
    """One thing that a checker has to say about one place in a history.

    `kind` names the anomaly in the field's words ("lost-append", "stale-read").
    `key` is the queue, `offset` the place in it (None where it has none).
    `operations` are ids of operations (the index of their invoke) that witness it.
    `message` is one sentence for a person who did not write the test.
    `details` is JSON-able evidence: who acknowledged, under which fault, what
    stands there instead.
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

    `counts` are numbers worth printing (operations checked, lost, ...); `data` is
    JSON-able material for the report. `observed` marks breaches of what the target
    never promised: shown, but they leave `outcome` VALID. At most
    `FINDINGS_KEPT_MAX` findings are kept; `findings_total` counts all of them.
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
    """Join verdicts as invalid > unknown > valid; nothing checked at all is unknown."""
    return max((verdict.outcome for verdict in verdicts), default=Outcome.UNKNOWN)


def worst_exit(codes: Iterable[int]) -> int:
    """Join the exit codes of several runs: 255 > 254 > 1 > 2 > 0."""
    return max(codes, key=lambda code: _EXIT_RANK.get(code, 4), default=int(ExitCode.VALID))
