"""What a handler failed at comes again, after its delay, and so often at most; then it lies dead.

A consumer without order sends back what its handler failed at. `handle-failed` (in a queue) and
`retry-failed` (of what came again) bear the messages that were handed over; the handler failed at
the answer's offset, and those from there on were sent back: `expected` is the delay level (0: the
broker's, below 0: they are dead at once), `input` how often they come again at most (below 0: the
broker's 16 times). `retry` is handle, of messages that came again, whose attempts count from 1.
`look` shows what lies in a retry queue, or among the dead letters.

At least once: what was sent back and not committed, or sent back without an answer, may come in its
place as well. The attempts of what comes grow by one with each failure, and only so.

Source: RocketMQ's SendMessageProcessor.asyncConsumerSendMsgBack, ConsumeMessageConcurrentlyService,
MessageStoreConfig.messageDelayLevel (4.9.8).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import NEVER
from shaketable.checkers.anomalies.promises import why_not_promised
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.delayed_messages import (
    EARLY,
    EARLY_MAX_NS,
    LATE,
    LOST,
    under_clock_faults,
)
from shaketable.checkers.queues.push_delivery import BOUND_NS
from shaketable.checkers.queues.quiet_times import quiet_since
from shaketable.harness.contracts.groups import DEAD, RETRY
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "retried-messages"
WRONG_ATTEMPT: Final = "wrong-attempt"
DELAYS_S: Final[tuple[int, ...]] = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""RocketMQ's messageDelayLevel: of levels 1, 2, ..."""
FIRST_RETRY_LEVEL: Final = 3
TIMES_MAX: Final = 16
"""What brokers do where the consumer leaves it to them."""
FAILING: Final = ("handle-failed", "retry-failed")
COLUMNS: Final = (
    *("op", "process", "f", "key", "input", "expected", "output", "offset"),
    *("call_ns", "return_ns", "outcome", "extra"),
)


class RetriedMessages:
    """Every message whose handler failed comes again, or lies dead once it came often enough.

    Judges a topic by all of its queues. Wrong attempt: it came for the n-th time, or lies dead,
    and no failure put it there. Early: it came before its delay was over. Lost: the group went on
    behind it in its retry queue, and nobody handled it. Late: it did not come, nor lies dead, 15 s
    behind its delay, while no fault was in force and consumers of the group went on.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge each topic."""
        findings = Findings()
        counts: dict[str, int] = defaultdict(int)
        for topic, story in sorted(_stories(tables["operations"], context).items()):
            for name, count in _judge(topic, story, findings, context).items():
                counts[name] += count
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Say what was found."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = []
        is_promised = why_not_promised(LATE, context) is None
        if is_promised and (missing := counts.get("not_reached")):
            doubts.append(f"nobody looked long enough for {missing} messages that were sent back")
        if unknown := counts.get("unexplained"):
            doubts.append(f"{unknown} came as often as only a handler of unknown outcome explains")
        clean = (
            f"all {counts.get('failed', 0)} messages at which a handler had failed came again, or"
            f" lie dead ({counts.get('dead', 0)}), after their delay"
        )
        what = ("handled", "failed")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = RetriedMessages()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A handler's failure at a message that had come `attempt` times before."""

    op: int
    process: int
    key: str
    value: int
    attempt: int
    level: int
    times_max: int
    call: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether it comes no more."""
        times_max = TIMES_MAX if self.times_max < 0 else self.times_max
        return self.level < 0 or self.attempt >= times_max

    @property
    def delay_ns(self) -> int:
        """How long it waits then."""
        if self.is_last:
            return 0
        level: int = self.level or FIRST_RETRY_LEVEL + self.attempt
        return DELAYS_S[min(level, len(DELAYS_S)) - 1] * 1_000_000_000

    def told(self) -> str:
        """Name it: "process 3 (op 7) failed at 12 of push/1"."""
        often = f", which had come again {self.attempt} times" if self.attempt else ""
        return f"process {self.process} (op {self.op}) failed at {self.value} of {self.key}{often}"


@dataclass(frozen=True, slots=True)
class _Coming:
    """A message that a consumer was handed, or somebody saw: by `by_ns` at the latest.

    `is_handled`: and its handler did not fail at it.
    """

    op: int
    process: int
    key: str
    offset: int
    value: int
    attempt: int
    call: int
    by_ns: int
    is_look: bool
    is_handled: bool

    @property
    def is_dead(self) -> bool:
        """Whether it lies among the dead letters."""
        return self.key.endswith(f"/{DEAD}")

    @property
    def is_again(self) -> bool:
        """Whether it came by a retry queue."""
        return f"/{RETRY}/" in self.key

    def told(self) -> str:
        """Say who had it: "process 3 (op 9) was handed 12 as what had come again 2 times"."""
        who = f"process {self.process} (op {self.op})"
        if self.is_dead:
            return f"{who} found {self.value} among the dead letters, at attempt {self.attempt}"
        verb = "saw" if self.is_look else "was handed"
        return f"{who} {verb} {self.value} again in {self.key}, at attempt {self.attempt}"


@dataclass(slots=True)
class _Story:
    """What happened to one topic's messages. `fetches`: (call, key, offset that was told)."""

    failures: list[_Failure] = field(default_factory=list)
    comings: dict[int, list[_Coming]] = field(default_factory=lambda: defaultdict(list))
    fetches: list[tuple[int, str, int]] = field(default_factory=list)
    dead_looks: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """When handlers were called of which nobody knows whether, and at what, they failed."""
    handled: int = 0
    went_on_to: int = 0


def _stories(operations: pa.Table, context: CheckContext) -> dict[str, _Story]:
    functions = pa.array([*FAILING, "handle", "retry", "look", "fetch"])
    table = operations.select(list(COLUMNS)).filter(pc.is_in(operations["f"], functions))
    # Consumers that take locks have their failures in their place: another checker's.
    is_ordered = pc.equal(pc.fill_null(table["expected"], 0), 1)
    is_other = pc.is_in(table["f"], pa.array(["handle", "fetch"]))
    table = table.filter(pc.invert(pc.and_(is_ordered, is_other))).sort_by("op")
    stories: dict[str, _Story] = defaultdict(_Story)
    for row in table.to_pylist():
        if row["key"] is not None and context.judges(NAME, row["key"]):
            _take(row, stories[row["key"].partition("/")[0]])
    return stories


def _take(row: Mapping[str, Any], story: _Story) -> None:
    """Take in one operation."""
    f, key, call = row["f"], row["key"], row["call_ns"]
    if row["outcome"] != "ok":
        if row["outcome"] != "fail" and f in FAILING:
            story.unknown.append(call)
        return
    end, is_look = row["return_ns"], f == "look"
    if f == "fetch":
        story.fetches.append((call, key, row["output"] or 0))
        return
    if is_look and key.endswith(f"/{DEAD}"):
        story.dead_looks.append(call)
    if is_look and not key.endswith(f"/{DEAD}"):
        story.fetches.append((call, key, 0))  # it shows no offset, and that somebody looked
    for offset, value, attempt in _messages(row):
        has_failed = f in FAILING and row["offset"] is not None and offset >= row["offset"]
        story.comings[value].append(
            _Coming(
                row["op"], row["process"], key, offset, value, attempt, call,
                by_ns=end if is_look else call,  # what a consumer handles it was handed before
                is_look=is_look,
                is_handled=not is_look and not has_failed,
            )
        )  # fmt: skip
        if is_look:
            continue
        story.handled += 1
        story.went_on_to = max(story.went_on_to, end)
        if has_failed:
            level, times_max = row["expected"] or 0, row["input"]
            story.failures.append(
                _Failure(
                    row["op"], row["process"], key, value, attempt, level,
                    -1 if times_max is None else times_max, call, end,
                )
            )  # fmt: skip


def _messages(row: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, value, attempt) of each message. Raises ValueError."""
    if not row["extra"]:
        return
    try:
        extra = msgspec.json.decode(row["extra"], type=_Extra)
    except msgspec.MsgspecError as error:
        raise ValueError(f"extra of operation {row['op']}: {error}") from error
    attempts = extra.attempts or [0] * len(extra.output)
    if len(attempts) != len(extra.output):
        raise ValueError(f"operation {row['op']} has not as many attempts as messages")
    for (offset, value), attempt in zip(extra.output, attempts, strict=True):
        yield offset, value, attempt


class _Extra(msgspec.Struct):
    output: list[tuple[int, int]] = []
    attempts: list[int] | None = None


def _judge(topic: str, story: _Story, findings: Findings, context: CheckContext) -> dict[str, int]:
    by_value: dict[int, list[_Failure]] = defaultdict(list)
    for failure in story.failures:
        by_value[failure.value].append(failure)
    counts = {"topics": 1, "handled": story.handled, "failed": len(story.failures)}
    counts |= _unfounded_or_early(topic, story, by_value, findings, context)
    counts |= _missing(topic, story, findings, context)
    dead = {each.value for some in story.comings.values() for each in some if each.is_dead}
    return counts | {"dead": len(dead)}


def _unfounded_or_early(
    topic: str,
    story: _Story,
    by_value: Mapping[int, list[_Failure]],
    findings: Findings,
    context: CheckContext,
) -> dict[str, int]:
    """Add findings for what came though no failure, or none so long ago, explains it."""
    wrong: list[_Coming] = []
    early: list[tuple[_Coming, _Failure]] = []
    unexplained = spared = 0
    for value, comings in story.comings.items():
        for coming in comings:
            if not (coming.is_again or coming.is_dead):
                continue
            causes = [
                failure
                for failure in by_value.get(value, ())
                if failure.attempt == coming.attempt - 1
                and failure.is_last == coming.is_dead
                and failure.call < coming.by_ns
            ]
            if not causes:
                if any(call < coming.by_ns for call in story.unknown):
                    unexplained += 1
                else:
                    wrong.append(coming)
                continue
            first = min(causes, key=lambda cause: cause.call + cause.delay_ns)
            if coming.by_ns < first.call + first.delay_ns - EARLY_MAX_NS:
                if _is_under_clock_fault(context, first.call, coming.by_ns):
                    spared += 1
                else:
                    early.append((coming, first))

    def describe_wrong(n: int) -> Finding:
        coming = wrong[n]
        before = [each for each in by_value.get(coming.value, ()) if each.call < coming.by_ns]
        told = f"; before that {before[-1].told()}" if before else ""
        if before and before[-1].is_last and not coming.is_dead:
            told += ", for the last time"
        message = (
            f"{coming.key}: {coming.told()}, although no handler had failed at it that puts it"
            f" there{told}."
        )
        ids = (*(each.op for each in before[-1:]), coming.op)
        more = details(context, coming.by_ns, value=coming.value)
        return Finding(WRONG_ATTEMPT, message, coming.key, coming.offset, ids, more)

    def describe_early(n: int) -> Finding:
        coming, cause = early[n]
        after_s = (coming.by_ns - cause.call) / 1e9
        message = (
            f"{coming.key}: {cause.told()}; it was to come again after"
            f" {cause.delay_ns / 1e9:g} s, and {coming.told()} after {after_s:.3f} s."
        )
        more = details(context, coming.by_ns, value=coming.value)
        return Finding(EARLY, message, coming.key, coming.offset, (cause.op, coming.op), more)

    findings.add(WRONG_ATTEMPT, range(len(wrong)), describe_wrong)
    findings.add(EARLY, range(len(early)), describe_early)
    return {"unexplained": unexplained, "early_under_clock_faults": spared}


def _is_under_clock_fault(context: CheckContext, begin_ns: int, end_ns: int) -> bool:
    begin, end = (np.array([at], dtype=np.int64) for at in (begin_ns, end_ns))
    return bool(under_clock_faults(context, begin, end)[0])


def _missing(
    topic: str, story: _Story, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add findings for failures behind which the message neither came again nor lies dead."""
    missing = [failure for failure in story.failures if not _has_come(failure, story)]
    lost = [(each, seen) for each in missing if (seen := _passed_over(each, story)) is not None]
    rest = [each for each in missing if all(each is not other for other, _ in lost)]
    late = [each for each in rest if _is_late(each, story, context)]

    def describe_lost(n: int) -> Finding:
        failure, (coming, told) = lost[n]
        message = (
            f"{failure.key}: {failure.told()}. {coming.told()[:1].upper()}{coming.told()[1:]}, at"
            f" offset {coming.offset}, and nobody handled it, although the group was told to have"
            f" committed {told} there."
        )
        more = details(context, failure.end, value=failure.value)
        return Finding(LOST, message, failure.key, None, (failure.op, coming.op), more)

    def describe_late(n: int) -> Finding:
        failure = late[n]
        where = "among the dead letters" if failure.is_last else "again to anybody"
        message = (
            f"{failure.key}: {failure.told()}, and it never came {where}, nor did"
            f" {len(late) - 1} others, although it was waited for while no fault was in force."
        )
        more = details(context, failure.end, value=failure.value)
        return Finding(LATE, message, failure.key, None, (failure.op,), more)

    findings.add(LOST, range(len(lost)), describe_lost)
    findings.add(LATE, range(min(1, len(late))), describe_late)
    return {"not_reached": len(rest) - len(late)}


def _has_come(failure: _Failure, story: _Story) -> bool:
    """Whether it came again, later or in its place, lies dead, or was handled by somebody else.

    Around a rebalance two consumers may be handed it: the group goes on by the one that handled it.
    """
    for coming in story.comings[failure.value]:
        if coming.op == failure.op or (coming.is_look and not coming.is_dead):
            continue
        if coming.attempt > failure.attempt:
            return True
        if coming.attempt == failure.attempt and (coming.is_handled or coming.call > failure.call):
            return True
    return False


def _passed_over(failure: _Failure, story: _Story) -> tuple[_Coming, int] | None:
    """Return where it lay in its retry queue, and which offset behind it the group committed."""
    for coming in story.comings[failure.value]:
        if not (coming.is_look and coming.is_again and coming.attempt > failure.attempt):
            continue
        for call, key, told in story.fetches:
            if key == coming.key and call > coming.by_ns and told > coming.offset:
                return coming, told
    return None


def _is_late(failure: _Failure, story: _Story, context: CheckContext) -> bool:
    """Whether it was looked for long enough in a group that was well."""
    looks = story.dead_looks if failure.is_last else [call for call, _, _ in story.fetches]
    if not looks or not story.fetches:
        return False
    last_ns, first_ns = max(looks), min(call for call, _, _ in story.fetches)
    quiet_ns = int(quiet_since(context, np.array([last_ns], dtype=np.int64))[0])
    since_ns = max(failure.end + failure.delay_ns, quiet_ns, first_ns, story.went_on_to)
    return quiet_ns != NEVER and last_ns - since_ns > BOUND_NS
