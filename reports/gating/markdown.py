"""Render a gate's result as Markdown, for the summary page of a CI job.

Names and values come from untrusted histories: every character with a meaning in Markdown or HTML
is written as a character reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.untrusted_text import printable
from shaketable.reports.gating.rulings import GateResult, Ruling, RunRulings

SUMMARY_BYTES_MAX: Final = 1 << 20
"""GitHub rejects a larger step summary entirely."""
TAIL_BYTES: Final = 256
"""Reserved for the note that something was cut."""
MESSAGE_CHARS_MAX: Final = 1_000
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
_ESCAPES: Final = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>#!|~&@:$"}
_WWW: Final = re.compile(r"(www)\.", re.IGNORECASE)
"""GitHub turns this into a link although it has no special character."""


def render(result: GateResult, bytes_max: int = SUMMARY_BYTES_MAX) -> str:
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
    return _WWW.sub(r"\1&#46;", printable(text).translate(_ESCAPES))


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
    return escape(text if len(text) <= MESSAGE_CHARS_MAX else f"{text[: MESSAGE_CHARS_MAX - 1]}…")
