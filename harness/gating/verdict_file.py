"""The parts of results.json and of the files of `check --json` that a gate reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX, Outcome
from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.gating.rulings import Conclusion, Kind
from shaketable.reports.run_page.violations import kind_totals

# Read untrusted JSON: of bounded size, with one exception type for every error.

FILE_BYTES_MAX: Final = 256 << 20

T = TypeVar("T")


class UnreadableError(Exception):
    """A file is missing or has another format; the message is one line."""


def read_json(path: Path, type_: type[T]) -> T:
    """Read a file as `type_`.

    Raises:
        UnreadableError: it cannot be read, or has another format.
    """
    try:
        data = read_plain(path, FILE_BYTES_MAX)
    except NoPlainFileError as error:
        raise UnreadableError(str(error)) from error
    return decode_json(data, type_)


def decode_json(data: bytes, type_: type[T]) -> T:
    """Decode JSON as `type_`.

    Raises:
        UnreadableError: it has another format.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise UnreadableError(" ".join(str(error).split()) or "not JSON") from error
    except RecursionError as error:
        raise UnreadableError("nested too deeply") from error


Valid = bool | Literal["unknown"]
FOUND_UNKNOWN = "finding"
"""The kind of a finding that has none."""
COUNT_MAX = 1 << 62
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
SECONDS_MAX = 1e12
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]


class FindingFile(msgspec.Struct, frozen=True):
    """A finding."""

    kind: str = FOUND_UNKNOWN
    message: str = ""
    key: str | None = None
    offset: int | None = None
    operations: tuple[int, ...] = ()


class CheckerFile(msgspec.Struct, frozen=True):
    """A checker's verdict. Counts and data are as the checker wrote them."""

    valid: Valid
    summary: str = ""
    counts: dict[str, Any] = {}
    findings_total: Count = 0
    findings: tuple[FindingFile, ...] = ()
    observed: tuple[FindingFile, ...] = ()
    data: dict[str, Any] = {}


class CountFile(msgspec.Struct, frozen=True):
    """How often a fault was injected, and how often it took effect (`bit`)."""

    done: Count
    bit: Count


class FaultsFile(msgspec.Struct, frozen=True):
    """How often the faults took effect (`bit`)."""

    bit: Count | None = None
    by_name: dict[str, CountFile] = {}


class ResultsFile(msgspec.Struct, frozen=True):
    """The part of results.json that a gate reads."""

    valid: Valid
    checkers: dict[str, CheckerFile] = {}
    mutant: str | None = None
    faults_asked: tuple[str, ...] = ()
    faults: FaultsFile = FaultsFile()
    faults_unavailable: dict[str, str] = {}
    repeat: str = ""


class HistoryFile(msgspec.Struct, frozen=True):
    """One history in a file of `check --json`."""

    path: str
    valid: Valid
    checkers: dict[str, CheckerFile] = {}
    operations: dict[str, Count] = {}
    seconds: Seconds = 0.0


class RefusedFile(msgspec.Struct, frozen=True):
    """A history that `check` could not read, and why."""

    path: str
    why: str


class CheckFile(msgspec.Struct, frozen=True):
    """A file of `check --json`."""

    histories: tuple[HistoryFile, ...]
    refused: tuple[RefusedFile, ...] = ()


class HuntedFile(msgspec.Struct, frozen=True):
    """How often a planted bug was hunted, and how often found."""

    hunts: Count
    found: Count
    invariants: tuple[str, ...] = ()


class HuntsFile(msgspec.Struct, frozen=True):
    """A file of `simulate --table --json`."""

    planted_bugs: dict[str, HuntedFile]
    target: str = ""
    world: str = ""


def outcome_of(valid: Valid, conclusions: Sequence[Conclusion]) -> Outcome:
    """Return the worst of a file's verdict and its checkers'; no checker at all is unknown."""
    worst = max((one.outcome for one in conclusions), default=Outcome.UNKNOWN)
    return max(worst, _outcome(valid))


def conclusions_of(checkers: Mapping[str, CheckerFile]) -> tuple[Conclusion, ...]:
    """Return the checkers' conclusions, with findings grouped by kind."""
    return tuple(
        Conclusion(
            checker=name,
            outcome=_outcome(one.valid),
            summary=one.summary,
            kinds=_kinds(one.findings, kind_totals(msgspec.to_builtins(one)), one.findings_total),
            observed=_kinds(one.observed, *_observed_totals(one)),
        )
        for name, one in checkers.items()
    )


def _outcome(valid: Valid) -> Outcome:
    if valid == "unknown":
        return Outcome.UNKNOWN
    return Outcome.VALID if valid else Outcome.INVALID


def _observed_totals(one: CheckerFile) -> tuple[dict[str, int], int]:
    """Return the number of observed findings by kind and in all, stored or only counted."""
    totals = dict(Counter(finding.kind for finding in one.observed))
    counted = one.data.get("observed")
    if not isinstance(counted, dict):  # an older run has only the stored ones, perhaps not all
        is_cut = len(one.observed) >= FINDINGS_KEPT_MAX
        return totals, len(one.observed) + is_cut
    for kind, count in counted.items():
        if isinstance(count, int):
            totals[kind] = max(count, totals.get(kind, 0))
    return totals, sum(totals.values())


def _kinds(
    findings: Sequence[FindingFile], totals: Mapping[str, int], total: int
) -> tuple[Kind, ...]:
    """Return each kind with its first finding; `total` counts findings of all kinds."""
    first: dict[str, FindingFile] = {}
    for finding in findings:
        first.setdefault(finding.kind, finding)
    is_least = total > sum(totals.values())
    kinds = []
    for name in dict.fromkeys((*first, *totals)):
        one = first.get(name, FindingFile(name))
        count = min(totals.get(name, 1), COUNT_MAX)
        kinds.append(Kind(name, count, one.message, one.key, one.offset, one.operations, is_least))
    return tuple(kinds)
