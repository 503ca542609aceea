"""What a gate came to -> SARIF 2.1.0, which code scanning shows: a rule an anomaly, a result a run.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal
from urllib.parse import quote

from shaketable.harness.contracts.verdict import ExitCode, Outcome
from shaketable.harness.printable import printable
from shaketable.reports import finding_texts
from shaketable.reports.gating.policy import CEILINGS, FLOORS
from shaketable.reports.gating.rulings import GateResult, Kind, Ruling, RunFacts, RunRulings

SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
VERSION: Final = "2.1.0"
TOOL: Final = "shaketable"
RESULTS_MAX: Final = 5_000
"""Code scanning shows so many of a file; the worst come first."""
MESSAGE_CHARS_MAX: Final = 4_000
OPERATIONS_MAX: Final = 50
"""Operations of an anomaly that are named."""
NOWHERE: Final = "shaketable-gate"
"""Stands for a file where a result is about all runs together."""

_STEERING: Final = {ord(sign): f"\\{sign}" for sign in "\\[]"} | {
    ord(sign): sign * 2 for sign in "{}"
}

Level = Literal["error", "warning", "note"]
RANK: Final = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class _Result:
    """A result: what is said by which rule, of which run; `evidence` tells one from its like."""

    rule: str
    level: Level
    message: str
    facts: RunFacts | None
    evidence: tuple[str, ...] = ()
    kind: Kind | None = None


def render(result: GateResult, version: str) -> str:
    """Render the file.

    Args:
        result: what the gate came to.
        version: of shaketable.
    """
    found = sorted(_results(result), key=lambda one: RANK[one.level])[:RESULTS_MAX]
    rules = list(dict.fromkeys(one.rule for one in found))
    places = {rule: place for place, rule in enumerate(rules)}
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": TOOL,
                        "version": version,
                        "rules": [_rule(rule, found) for rule in rules],
                    }
                },
                "invocations": [{"executionSuccessful": True, "exitCode": int(result.code)}],
                "results": [_result(one, places[one.rule]) for one in found],
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=True) + "\n"


def _results(result: GateResult) -> Iterator[_Result]:
    for run in result.runs:
        yield from _anomalies(run)
        for ruling in run.breaches:
            if not _is_told(ruling, run.facts):
                yield _breach(ruling, run.facts)
    for ruling in result.overall:
        if not ruling.holds:
            yield _breach(ruling, None)


def _anomalies(run: RunRulings) -> Iterator[_Result]:
    """What the checkers found: an error where a promise is broken, else a note."""
    broken = {ruling.rule for ruling in run.breaches if ruling.code == ExitCode.INVALID}
    for one in run.facts.conclusions:
        for level, kinds in (("error", one.kinds), ("note", one.observed)):
            if level == "error" and one.checker not in broken:
                continue  # a planted bug that was to be found, or findings of an unknown verdict
            for kind in kinds:
                text = finding_texts.phrase(kind.name, kind.count)
                said = f"{text} ({one.checker}): {kind.message}" if kind.message else text
                evidence = (kind.key or "", str(kind.offset), *map(str, kind.operations))
                rule = printable(f"anomaly/{kind.name}")
                yield _Result(rule, _level(level), said, run.facts, evidence, kind)


def _level(name: str) -> Level:
    return "error" if name == "error" else "note"


def _is_told(ruling: Ruling, facts: RunFacts) -> bool:
    """Whether the anomalies of a checker tell its verdict already."""
    return any(
        one.checker == ruling.rule and one.outcome is Outcome.INVALID and one.kinds
        for one in facts.conclusions
    )


def _breach(ruling: Ruling, facts: RunFacts | None) -> _Result:
    level: Level = "warning" if ruling.code == ExitCode.UNKNOWN else "error"
    return _Result(printable(f"gate/{ruling.rule}"), level, ruling.message, facts)


def _rule(rule: str, found: list[_Result]) -> dict[str, Any]:
    first = next(one for one in found if one.rule == rule)
    return {
        "id": rule,
        "shortDescription": {"text": _about(rule)},
        "defaultConfiguration": {"level": first.level},
        "properties": {"tags": [rule.partition("/")[0]]},
    }


def _about(rule: str) -> str:
    family, _, name = rule.partition("/")
    if family == "anomaly":
        return finding_texts.WORDS[name][0] if name in finding_texts.WORDS else name
    if name in CEILINGS or name in FLOORS:
        return (CEILINGS.get(name) or FLOORS[name]).words
    return f"the gate's rule {name}"


def _result(one: _Result, place: int) -> dict[str, Any]:
    facts = one.facts
    name = facts.name if facts else ""
    text = f"{name}: {one.message}" if name else one.message
    properties: dict[str, Any] = {}
    if facts is not None:
        told = (("run", name), ("repeat", facts.repeat), ("report", facts.report))
        properties = {key: printable(value) for key, value in told if value}
    if one.kind is not None and one.kind.operations:
        properties["operations"] = list(one.kind.operations[:OPERATIONS_MAX])
    if one.kind is not None and one.kind.page:
        properties["violation"] = printable(one.kind.page)
    campaign = name.partition("/")[0]
    anomaly = _fingerprint(one.rule, campaign)
    return {
        "ruleId": one.rule,
        "ruleIndex": place,
        "level": one.level,
        "message": {"text": _plain(_short(printable(text)))},
        "locations": [_location(facts.campaign if facts else "")],
        "partialFingerprints": {
            # The same anomaly in the same campaign stays one alert, whatever its seed and run.
            "primaryLocationLineHash": anomaly,
            "shaketableAnomaly/v1": anomaly,
            "shaketableEvidence/v1": _fingerprint(one.rule, campaign, *one.evidence),
        },
        "properties": properties,
    }


def _plain(text: str) -> str:
    """Return a text in which nothing is taken for a link or a placeholder (3.11.5, 3.11.6)."""
    return text.translate(_STEERING)


def _location(campaign: str) -> dict[str, Any]:
    uri = _uri(campaign) if campaign else NOWHERE
    region = {"startLine": 1}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def _uri(path: str) -> str:
    """A path as a URI: relative where it is, so that code scanning finds it in the repository."""
    try:
        as_bytes = PurePath(path).as_posix().encode(errors="surrogateescape")
    except UnicodeEncodeError:  # no name that a file system has
        as_bytes = printable(path).encode(errors="replace")
    escaped = quote(as_bytes)
    return f"file://{escaped}" if path.startswith("/") else escaped


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[: MESSAGE_CHARS_MAX - 1]}…"
