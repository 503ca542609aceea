"""Render a gate's result for CI: as Markdown, as annotations, and as SARIF.

- Markdown is for the summary page of a CI job. Names and values come from untrusted histories:
  every character with a meaning in Markdown or HTML is written as a character reference.
- Annotations are of GitHub's runner, with its escapes.
- SARIF 2.1.0 is for code scanning: a rule per anomaly, a result per run.

JUnit, which a run has too, is in `reports.junit`.

Source: the runner's workflow commands, and the escapes of its toolkit; OASIS, Static Analysis
Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal
from urllib.parse import quote

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.verdict import ExitCode, Outcome
from shaketable.harness.untrusted_text import printable
from shaketable.reports import finding_texts
from shaketable.reports.gating.policy import CEILINGS, FLOORS
from shaketable.reports.gating.rulings import GateResult, Kind, Ruling, RunFacts, RunRulings

# Markdown.

SUMMARY_BYTES_MAX: Final = 1 << 20
"""GitHub rejects a larger step summary entirely."""
TAIL_BYTES: Final = 256
"""Reserved for the note that something was cut."""
MARKDOWN_MESSAGE_CHARS_MAX: Final = 1_000
LEFT_OUT_MAX: Final = 50
RESULT_TEXTS: Final = {
    int(ExitCode.VALID): "passed",
    int(ExitCode.INVALID): "failed: something is wrong",
    int(ExitCode.UNKNOWN): "failed: not shown to be right",
}
VERDICTS: Final = {
    int(ExitCode.VALID): "holds",
    int(ExitCode.INVALID): "broken",
    int(ExitCode.UNKNOWN): "unknown",
}
_MARKDOWN_ESCAPES: Final = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>#!|~&@:$"}
_WWW: Final = re.compile(r"(www)\.", re.IGNORECASE)
"""GitHub turns this into a link although it has no special character."""


def render_markdown(result: GateResult, bytes_max: int = SUMMARY_BYTES_MAX) -> str:
    """Render the page in at most `bytes_max` bytes; failing runs come first."""
    text = ""
    size = 0
    for block in _blocks(result):
        grown = size + len(block.encode(errors="replace"))
        if grown > bytes_max - TAIL_BYTES:
            tail = "\n\nMore does not fit here; the JUnit and SARIF files have all.\n"
            return text + tail if size + len(tail) <= bytes_max else text
        text += block
        size = grown
    return text


def escape(text: str) -> str:
    """Escape text so that Markdown shows it as it is, in one line."""
    return _WWW.sub(r"\1&#46;", printable(text).translate(_MARKDOWN_ESCAPES))


def _blocks(result: GateResult) -> Iterator[str]:
    text = RESULT_TEXTS.get(result.code, "failed: the harness failed")
    yield f"## shaketable gate {text} (exit code {result.code})\n\n"
    runs = sorted(result.runs, key=lambda run: run.code == ExitCode.VALID)
    if runs:
        yield "| run | rules | broken |\n| --- | ---: | --- |\n"
    for run in runs:
        yield _row(run)
    details = [run for run in runs if run.breaches or _let_pass(run)]
    for run in details:
        yield from _details(run)
    if breaches := [ruling for ruling in result.overall if not ruling.holds]:
        yield "\n### All runs together\n\n"
        yield from (_line(ruling) for ruling in breaches)
    if result.skipped:
        yield "\n### Left out\n\n"
    for facts in result.skipped[:LEFT_OUT_MAX]:
        yield f"- {escape(facts.name)}: {escape(facts.skipped)}\n"
    if (more := len(result.skipped) - LEFT_OUT_MAX) > 0:
        yield f"- and {more} more\n"
    for note in result.notes:
        yield f"\nNote: {escape(note)}\n"


def _row(run: RunRulings) -> str:
    broken = ", ".join(escape(ruling.rule) for ruling in run.breaches)
    bug = f" with {escape(run.facts.mutant)}" if run.facts.mutant else ""
    return f"| {escape(run.facts.name)}{bug} | {len(run.rulings)} | {broken or 'none'} |\n"


def _details(run: RunRulings) -> Iterator[str]:
    yield f"\n### {escape(run.facts.name)}\n\n"
    for ruling in run.breaches:
        yield _line(ruling)
    for ruling in _let_pass(run):
        assert ruling.allowed is not None, "that is what was asked"
        until = f"allowed until {ruling.allowed.until}: {escape(ruling.allowed.reason)}"
        yield f"- {escape(ruling.rule)} (let pass): {_message(ruling)}; {until}\n"
    if run.breaches and run.facts.repeat:
        yield f"- to see it again: <code>{escape(run.facts.repeat)}</code>\n"
    if run.breaches and run.facts.report:
        yield f"- its page: <code>{escape(run.facts.report)}</code>\n"
    for kind, page in run.pages:
        yield f"- the page of {escape(kind)}: <code>{escape(page)}</code>\n"


def _let_pass(run: RunRulings) -> list[Ruling]:
    return [ruling for ruling in run.rulings if ruling.allowed is not None]


def _line(ruling: Ruling) -> str:
    verdict = VERDICTS.get(ruling.code, "no verdict")
    return f"- **{escape(ruling.rule)}** ({verdict}): {_message(ruling)}\n"


def _message(ruling: Ruling) -> str:
    text = ruling.message
    return escape(
        text
        if len(text) <= MARKDOWN_MESSAGE_CHARS_MAX
        else f"{text[: MARKDOWN_MESSAGE_CHARS_MAX - 1]}…"
    )


# Annotations.

SHOWN_MAX: Final = 10
"""GitHub shows at most this many errors, and this many warnings, of a step."""
ANNOTATION_CHARS_MAX: Final = 1_000


def render_annotations(result: GateResult) -> list[str]:
    """Return the lines: an error for each breach, a warning for each one that was allowed."""
    errors = [
        _annotation("error", f"{run or 'all runs'}: {ruling.rule}", ruling.message)
        for run, ruling in result.breaches
    ]
    warnings = [
        _annotation(
            "warning",
            f"{run.facts.name}: {ruling.rule} was let pass",
            f"{ruling.message}; allowed until {ruling.allowed.until}: {ruling.allowed.reason}",
        )
        for run in result.runs
        for ruling in run.rulings
        if ruling.allowed is not None
    ]
    return [*_bounded("error", errors), *_bounded("warning", warnings)]


def _bounded(level: str, lines: list[str]) -> list[str]:
    if len(lines) <= SHOWN_MAX:
        return lines
    more = len(lines) - SHOWN_MAX + 1
    return [
        *lines[: SHOWN_MAX - 1],
        _annotation(level, "gate", f"and {more} more; see the summary"),
    ]


def _annotation(level: str, title: str, message: str) -> str:
    title = _data(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message[:ANNOTATION_CHARS_MAX])}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# SARIF.

SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
VERSION: Final = "2.1.0"
TOOL: Final = "shaketable"
RESULTS_MAX: Final = 5_000
"""Code scanning shows at most this many results of a file; the worst come first."""
SARIF_MESSAGE_CHARS_MAX: Final = 4_000
OPERATIONS_MAX: Final = 50
"""Operations of an anomaly that are listed."""
NOWHERE: Final = "shaketable-gate"
"""Placeholder for a file in results about all runs together."""

_SARIF_ESCAPES: Final = {ord(sign): f"\\{sign}" for sign in "\\[]"} | {
    ord(sign): sign * 2 for sign in "{}"
}

Level = Literal["error", "warning", "note"]
RANK: Final = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class _Result:
    """A result: a rule's message about a run; `evidence` distinguishes it from similar ones."""

    rule: str
    level: Level
    message: str
    facts: RunFacts | None
    evidence: tuple[str, ...] = ()
    kind: Kind | None = None


def render_sarif(result: GateResult, version: str) -> str:
    """Render the file.

    Args:
        result: of the gate.
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
            if not _is_reported(ruling, run.facts):
                yield _breach(ruling, run.facts)
    for ruling in result.overall:
        if not ruling.holds:
            yield _breach(ruling, None)


def _anomalies(run: RunRulings) -> Iterator[_Result]:
    """Yield the findings of checkers: an error where a promise is broken, else a note."""
    broken = {ruling.rule for ruling in run.breaches if ruling.code == ExitCode.INVALID}
    for one in run.facts.conclusions:
        for level, kinds in (("error", one.kinds), ("note", one.observed)):
            if level == "error" and one.checker not in broken:
                continue  # a planted bug that should be found, or findings with an unknown verdict
            for kind in kinds:
                text = finding_texts.phrase(kind.name, kind.count)
                message = f"{text} ({one.checker}): {kind.message}" if kind.message else text
                evidence = (kind.key or "", str(kind.offset), *map(str, kind.operations))
                rule = printable(f"anomaly/{kind.name}")
                yield _Result(rule, _level(level), message, run.facts, evidence, kind)


def _level(name: str) -> Level:
    return "error" if name == "error" else "note"


def _is_reported(ruling: Ruling, facts: RunFacts) -> bool:
    """Return whether the anomalies of a checker already report its verdict."""
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
        return record_of(name).one
    if name in CEILINGS or name in FLOORS:
        return (CEILINGS.get(name) or FLOORS[name]).label
    return f"the gate's rule {name}"


def _result(one: _Result, place: int) -> dict[str, Any]:
    facts = one.facts
    name = facts.name if facts else ""
    text = f"{name}: {one.message}" if name else one.message
    properties: dict[str, Any] = {}
    if facts is not None:
        links = (("run", name), ("repeat", facts.repeat), ("report", facts.report))
        properties = {key: printable(value) for key, value in links if value}
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
    """Escape text in which SARIF would see links or placeholders (3.11.5, 3.11.6)."""
    return text.translate(_SARIF_ESCAPES)


def _location(campaign: str) -> dict[str, Any]:
    uri = _uri(campaign) if campaign else NOWHERE
    region = {"startLine": 1}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def _uri(path: str) -> str:
    """Return a path as a URI; relative paths let code scanning find the file in the repository."""
    try:
        as_bytes = PurePath(path).as_posix().encode(errors="surrogateescape")
    except UnicodeEncodeError:  # not a name that a file system has
        as_bytes = printable(path).encode(errors="replace")
    escaped = quote(as_bytes)
    return f"file://{escaped}" if path.startswith("/") else escaped


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _short(text: str) -> str:
    return (
        text if len(text) <= SARIF_MESSAGE_CHARS_MAX else f"{text[: SARIF_MESSAGE_CHARS_MAX - 1]}…"
    )
