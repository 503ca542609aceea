"""The result of `check` for one history, and the failing part of a finding, ready to be shown.

Pure data. Built by `harness.judging.checking`, read by the page and by the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict, join
from shaketable.harness.history.schema import request_of
from shaketable.reports.finding_texts import are_steps, steps_text
from shaketable.reports.plain_json import ID_MAX, is_whole, listed, mapping

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
TEXT_MAX: Final = 120
"""Maximum length of the description of one operation."""


@dataclass(frozen=True, slots=True)
class CheckedHistory:
    """One history and what the checkers concluded.

    `rows` are the rows of OPERATIONS that findings name, by id. `cut` and `hole` describe where
    events are missing (see `harness.history.foreign.History`). `is_timed` is False if the times
    only number the events. `keys` and `clients` are counts. `faults` are the nemesis's: name,
    start_ns, and stop_ns if something ended it.
    """

    path: str
    format: str
    model: str | None
    engine: str
    seconds: float
    outcomes: Mapping[str, int]
    keys: int
    clients: int
    verdicts: tuple[Verdict, ...]
    cut: str | None = None
    hole: str | None = None
    notes: tuple[str, ...] = ()
    is_timed: bool = True
    faults: tuple[tuple[str, int, int | None], ...] = ()
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """All verdicts joined."""
        return join(self.verdicts)

    @property
    def incomplete(self) -> str | None:
        """Why the history is known to lack events; None if it is not."""
        return self.hole or self.cut

    @property
    def operations(self) -> int:
        """The number of operations in the history."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class PartOperation:
    """One operation of a failing part; `return_ns` is None if its outcome is unknown.

    `resolved` is the evidence, a sentence, by which an indeterminate operation counts as known.
    """

    op: int
    process: int
    call: str
    call_ns: int
    return_ns: int | None
    outcome: str
    resolved: str | None = None


@dataclass(frozen=True, slots=True)
class FailingPart:
    """The part of a history that a finding is about, and why it fails.

    `prefix` is (id, state after it) in the order of the longest linearizable prefix. `stuck` is the
    operation that cannot take effect before it returns. `could_not` is (id, reason) for every
    operation that was open there. A finding without a search has neither prefix nor stuck.
    `accused` are the operations proven to be inconsistent with each other, `stuck` among them.
    """

    operations: tuple[PartOperation, ...]
    prefix: tuple[tuple[int, str], ...] = ()
    stuck: int | None = None
    could_not: tuple[tuple[int, str], ...] = ()
    before: int = 0
    states: tuple[str, ...] = ()
    model: str = ""
    method: str = ""
    undecided: str = ""
    accused: tuple[int, ...] = ()

    @property
    def is_accusation(self) -> bool:
        """Whether a rule found it without trying any order: its first reason explains it all."""
        return (
            self.stuck is not None
            and not self.prefix
            and not self.states
            and [op for op, _ in self.could_not] == [self.stuck]
            and not self.undecided
        )

    def by_id(self, op: int) -> PartOperation | None:
        """Return one of its operations; None if it has no such id."""
        return next((each for each in self.operations if each.op == op), None)

    @property
    def evidence(self) -> tuple[str, ...]:
        """Why indeterminate operations count as known, the most relevant first."""
        order = [self.stuck, *(op for op, _ in reversed(self.prefix))]
        order += [each.op for each in reversed(self.operations)]
        sentences = [each.resolved for op in order if op is not None and (each := self.by_id(op))]
        return tuple(dict.fromkeys(sentence for sentence in sentences if sentence))

    def focus(self, count: int) -> tuple[PartOperation, ...]:
        """Return the `count` most relevant operations, in the order of their calls.

        Relevant are, in this order: the stuck one, those accused with it, some that could not come
        next, the end of the prefix, and the rest from the last one back.
        """
        wanted = [] if self.stuck is None else [self.stuck]
        wanted += self.accused
        wanted += [op for op, _ in self.could_not[: max(1, count // 3)]]
        wanted += [op for op, _ in reversed(self.prefix)]
        wanted += [each.op for each in reversed(self.operations)]
        chosen = set(list(dict.fromkeys(wanted))[:count])
        return tuple(each for each in self.operations if each.op in chosen)


def failing_part(finding: Finding, rows: Mapping[int, Mapping[str, Any]]) -> FailingPart | None:
    """Read the failing part of a finding from its details, or from the operations that it names.

    Return None if it names no operation of the history.
    """
    details = finding.details
    if "operations" not in details or "prefix" not in details:
        named = [_of_row(rows[op]) for op in finding.operations if op in rows]
        named.sort(key=lambda each: (each.call_ns, each.op))
        return FailingPart(tuple(named), stuck=None) if named else None
    operations = tuple(
        PartOperation(
            int(each["op"]), int(each["process"]), _cut(str(each["call"])), int(each["call_ns"]),
            None if each["return_ns"] is None else int(each["return_ns"]), str(each["outcome"]),
            each.get("closed"),
        )
        for each in details["operations"]
    )  # fmt: skip
    stuck = details.get("stuck")
    return FailingPart(
        operations=operations,
        prefix=tuple((int(each["op"]), str(each["state"])) for each in details["prefix"]),
        stuck=None if stuck is None else int(stuck),
        could_not=tuple(
            (int(each["op"]), str(each["why"])) for each in details.get("could_not") or ()
        ),
        before=int(details.get("before") or 0),
        states=tuple(map(str, details.get("states") or ())),
        model=str(details.get("model") or ""),
        method=str(details.get("method") or ""),
        undecided=str(details.get("why") or "") if finding.kind == "undecided" else "",
        accused=accused_in(details),
    )


def accused_in(details: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the operations proven to be at fault (checkers.linearizability.accusation), if any."""
    ops = listed(mapping(details.get("accused")).get("operations"))
    return tuple(op for op in ops if is_whole(op) and 0 <= op <= ID_MAX)


def shown_findings(verdict: Verdict) -> tuple[Finding, ...]:
    """Return what a verdict has to show: its findings, undecided parts and observations."""
    undecided = tuple(
        Finding("undecided", str(each.get("message", "")), each.get("key"), None, (), dict(each))
        for each in verdict.data.get("undecided") or ()
    )
    return verdict.findings + undecided + verdict.observed


def _of_row(row: Mapping[str, Any]) -> PartOperation:
    outcome = str(row["outcome"])
    returned = row["return_ns"] if outcome != "info" else None
    return PartOperation(
        int(row["op"]), int(row["process"]), _cut(describe(row)), int(row["call_ns"]),
        None if returned is None else int(returned), outcome,
    )  # fmt: skip


def describe(row: Mapping[str, Any]) -> str:
    """Describe an operation of any f: "append 17 at 3", "read at 3: 17"."""
    extra = json.loads(row["extra"]) if row.get("extra") else {}
    given, output = (extra.get(name, row.get(name)) for name in ("input", "output"))
    text = str(row["f"])
    if request := request_of(row.get("extra")):
        given = request
    elif row.get("expected") is not None:
        text += f" {row['expected']} ->"
    if given is not None:
        text += f" {_value(given)}"
    if row.get("offset") is not None:
        text += f" at {row['offset']}"
    if output is not None:
        text += f": {_value(output)}"
    elif given is None and row["outcome"] == "ok" and row["f"] not in ("acquire", "release"):
        text += ": nothing"
    if row["outcome"] == "fail":
        text += " (failed)"
    return text


def _value(value: Any) -> str:
    if are_steps(value):
        return steps_text(value)
    return f'"{value}"' if isinstance(value, str) else json.dumps(value)


def visible(text: str) -> str:
    """Replace control characters and those that change the direction of text."""
    return _CONTROL.sub("\ufffd", text)


def _cut(text: str) -> str:
    text = visible(" ".join(text.split()))
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
