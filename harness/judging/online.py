"""The process that judges a run while it goes on (`harness.runtime.online`).

It reads what the clients record, in time order, judges it event by event, and says of a violation
what `check` says. All of it is in online.jsonl as well, for the check at the end.
"""

from __future__ import annotations

import logging
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge, Violation
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.verdict import Finding
from shaketable.harness.guard import die_with_parent
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.segments import Event, GrowingSegments
from shaketable.harness.judging.checking import explain, impossible_read
from shaketable.harness.runtime.online import NAME, TEXT_MAX, OnlinePlan
from shaketable.reports.check_page.checked_history import CheckedHistory
from shaketable.reports.check_page.page import render_page

UNREAD_BYTES_MAX: Final = 64 << 20
"""How far it may fall behind what is recorded (some 700,000 operations); then it gives up, and all
is left to the check at the end."""
EXPLAINED_MAX: Final = 20
"""Violations that are explained, and shown on the page; further ones are told in a few words."""

log = logging.getLogger(__name__)


def run_online(plan: OnlinePlan, pipe: Any) -> None:
    """Judge a run until it is over: the entry point of the process.

    `pipe` is this end of a multiprocess Pipe; messages are tuples. To it: ("recorded", file name ->
    time). From it: ("ready",), then for each message ("judged", operations); in between, of a
    violation, ("seen", key, operation) at once, and ("violation", key, sentence, at_ns); at the end
    ("finished", operations, outcome), or ("left", why).
    """
    die_with_parent(plan.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C
    folder = RunFolder(plan.folder)
    logging.basicConfig(
        filename=folder.log,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s {NAME} %(message)s",
    )
    try:
        _follow(_Judge(plan, folder, pipe), folder, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the supervisor is gone
    except Exception as error:
        log.exception("event=online_judge_failed")
        pipe.send(("left", f"{type(error).__name__}: {error}"[:TEXT_MAX]))
        sys.exit(1)


def _follow(judge: _Judge, folder: RunFolder, pipe: Any) -> None:
    """Judge what is recorded until all of it is, or no more can be."""
    judge.get_ready()
    pipe.send(("ready",))
    is_busy = False
    with GrowingSegments(folder.segments) as segments:
        while True:
            is_asked = pipe.poll(0 if is_busy else None)
            if is_asked:
                segments.note(pipe.recv()[1])
            events = segments.take()
            judge.take(events)
            is_busy = bool(events)
            if judge.why_left is not None:
                return
            if segments.hole is not None:
                judge.leave(segments.hole)
                return
            if segments.unread_bytes > UNREAD_BYTES_MAX:
                judge.leave(f"it was more than {UNREAD_BYTES_MAX >> 20} MiB behind the recordings")
                return
            if segments.is_over:
                judge.finish()
                return
            if is_asked:
                pipe.send(("judged", judge.operations))


class _Judge:
    """Judges events, and tells what they show: to the supervisor, and in the run's folder."""

    def __init__(self, plan: OnlinePlan, folder: RunFolder, pipe: Any) -> None:
        self._plan = plan
        self._folder = folder
        self._pipe = pipe
        self._judge = HistoryJudge(model_named(plan.model), None, splits_keys=False)
        self._checked: list[CheckedHistory] = []
        self.why_left: str | None = None

    @property
    def operations(self) -> int:
        """How many operations were called so far."""
        return self._judge.operations

    def get_ready(self) -> None:
        """Load and compile what explains a violation, before there is one."""
        explain(impossible_read(self._plan.model), self._plan.model)
        log.info("event=ready model=%s", self._plan.model)

    def take(self, events: list[tuple[int, Event]]) -> None:
        """Judge the next events; no event before the last of them is to come."""
        for number, event in events:
            if not self._is_judged(event):
                continue
            try:
                found = self._judge.take(event_line(number, event))
            except ValueError as error:
                self.leave(f"event {number:,} cannot be judged: {error}")
                return
            for violation in found:
                self._tell(violation)
        for violation in self._judge.settle():
            self._tell(violation)

    def leave(self, why: str) -> None:
        """Judge no further; what was found stands."""
        for violation in self._judge.miss(why):
            self._tell(violation)
        self.why_left = why
        self._write({"type": "left", "why": why, **self._state()})
        self._pipe.send(("left", why[:TEXT_MAX]))

    def finish(self) -> None:
        """Take the end of the run."""
        for violation in self._judge.finish():
            self._tell(violation)
        state = self._state()
        self._write({"type": "finished", **state})
        self._pipe.send(("finished", state["operations"], state["outcome"]))

    def _is_judged(self, event: Event) -> bool:
        if event.process < 0 or event.key is None:
            return False
        topics = self._plan.topics
        return topics is None or event.key.partition("/")[0] in topics

    def _state(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "checker": self._plan.checker,
            "outcome": self._judge.outcome().name,
            "operations": self._judge.operations,
            "keys": self._judge.keys,
            "doubts": self._judge.doubts(),
            "processor_s": round(used.ru_utime + used.ru_stime, 2),
            "memory_bytes": used.ru_maxrss << 10,
        }

    def _tell(self, violation: Violation) -> None:
        """Tell a violation, in the words that the check has for it."""
        key = violation.key
        self._pipe.send(("seen", key, violation.op))  # to explain it takes up to a second
        explained = len(self._checked) < EXPLAINED_MAX
        one = explain(violation, self._plan.model) if explained else None
        finding = None if one is None else one.verdicts[0].findings[0]
        told = _in_few_words(violation) if finding is None else replace(finding, key=key)
        window = violation.window
        at_ns = window[-1].time_ns if window else None
        line = {"type": "violation", "checker": self._plan.checker, "at_ns": at_ns}
        self._write({**line, "finding": asdict(told)})
        self._pipe.send(("violation", key, told.message[:TEXT_MAX], at_ns))
        log.info("event=violation at_ns=%s key=%s said=%r", at_ns, key, told.message)
        if one is not None:
            self._checked.append(replace(one, path=f"{self._folder.path.name}, key {key}"))
            try:
                write_atomically(self._folder.online_html, render_page(self._checked))
            except HarnessError as error:
                log.warning("event=no_page why=%r", str(error))

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._folder.online_jsonl.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def event_line(number: int, event: Event) -> EventLine:
    """Return a recorded event as one of a history in JSON lines, with the columns as its value."""
    value: dict[str, Any] = {
        name: column
        for name in ("input", "output", "offset", "expected")
        if (column := getattr(event, name)) is not None
    }
    if event.extra is not None:
        value |= {
            name: given
            for name, given in msgspec.json.decode(event.extra).items()
            if name in ("input", "output")
        }
    return EventLine(
        type=event.type,
        process=event.process,
        f=event.f,
        key=event.key,
        value=value,
        time_ns=event.time_ns,
        index=number,
        error=event.error,
        node=event.node,
    )


def _in_few_words(violation: Violation) -> Finding:
    """Return the finding of a violation that is not explained."""
    message = f"no order of the operations lets operation {violation.op} return what it returned"
    return Finding("not-linearizable", message, violation.key, None, (violation.op,))
