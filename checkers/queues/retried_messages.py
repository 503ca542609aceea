"""A message whose handler failed is retried after its delay, so often at most; then it is dead.

A consumer without order sends back the messages whose handler failed. `handle-failed` (in a queue)
and `retry-failed` (of retried messages) have the messages that were delivered; the handler failed
at the answer's offset, and the messages from there on were sent back: `expected` is the delay level
(0: the broker's, below 0: dead at once), `input` how often they are retried at most (below 0: the
broker's 16 times). `retry` is a handle of retried messages, whose attempts count from 1. `look`
shows what is in a retry queue, or among the dead letters.

At least once: a message that was sent back and not committed, or sent back without an answer, may
be delivered at its own offset as well. The attempts of a message grow by one with each failure, and
only then.

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

from shaketable.checkers.anomalies.log_rules import conclude, details, why_not_promised
from shaketable.checkers.anomalies.observations import NEVER
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.delayed_messages import (
    EARLY,
    EARLY_MAX_NS,
    LATE,
    LOST,
)
from shaketable.checkers.queues.push_delivery import BOUND_NS
from shaketable.checkers.queues.quiet_times import quiet_since, under_clock_faults
from shaketable.harness.contracts.clients import DEAD, RETRY
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "retried-messages"
WRONG_ATTEMPT: Final = "wrong-attempt"
DELAYS_S: Final[tuple[int, ...]] = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""RocketMQ's messageDelayLevel: the delays of levels 1, 2, ..."""
FIRST_RETRY_LEVEL: Final = 3
TIMES_MAX: Final = 16
"""The broker's default number of retries."""
FAILING: Final = ("handle-failed", "retry-failed")
COLUMNS: Final = (
    *("op", "process", "f", "key", "input", "expected", "output", "offset"),
    *("call_ns", "return_ns", "outcome", "extra"),
)


class RetriedMessages:
    """Every message whose handler failed is redelivered, or becomes a dead letter in the end.

    Judges a topic by all of its queues. Wrong attempt: it was delivered for the n-th time, or is
    dead, and no failure explains it. Early: it was delivered before its delay was over. Lost: the
    group committed an offset after it in its retry queue, and no consumer handled it. Late: 15 s
    after its delay it was neither delivered nor dead, while no fault was in force and consumers of
    the group ran.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge each topic."""
        findings = Findings()
        counts: dict[str, int] = defaultdict(int)
        for topic, history in sorted(_topic_histories(tables["operations"], context).items()):
            for name, count in _judge(topic, history, findings, context).items():
                counts[name] += count
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Return the verdict."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = []
        is_promised = why_not_promised(LATE, context) is None
        if is_promised and (missing := counts.get("not_reached")):
            doubts.append(
                f"no consumer polled long enough for {missing} messages that were sent back"
            )
        if unknown := counts.get("unexplained"):
            doubts.append(f"{unknown} came as often as only an indeterminate handler explains")
        clean = (
            f"all {counts.get('failed', 0)} messages at which a handler had failed came again, or"
            f" lie dead ({counts.get('dead', 0)}), after their delay"
        )
        what = ("handled", "failed")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = RetriedMessages()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A handler's failure at a message that had been retried `attempt` times before."""

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
        """Return whether it is not retried any more."""
        times_max = TIMES_MAX if self.times_max < 0 else self.times_max
        return self.level < 0 or self.attempt >= times_max

    @property
    def delay_ns(self) -> int:
        """Return after how long it is retried."""
        if self.is_last:
            return 0
        level: int = self.level or FIRST_RETRY_LEVEL + self.attempt
        return DELAYS_S[min(level, len(DELAYS_S)) - 1] * 1_000_000_000

    def label(self) -> str:
        """Return it as text: "process 3 (op 7) failed at 12 of push/1"."""
        often = f", which had come again {self.attempt} times" if self.attempt else ""
        return f"process {self.process} (op {self.op}) failed at {self.value} of {self.key}{often}"


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A message that a consumer got, or a look showed: by `by_ns` at the latest.

    `is_handled`: a consumer got it, and its handler did not fail.
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
        """Return whether it is among the dead letters."""
        return self.key.endswith(f"/{DEAD}")

    @property
    def is_again(self) -> bool:
        """Return whether it was in a retry queue."""
        return f"/{RETRY}/" in self.key

    def label(self) -> str:
        """Return it as text: "process 3 (op 9) was handed 12 again in push/1, at attempt 2"."""
        who = f"process {self.process} (op {self.op})"
        if self.is_dead:
            return f"{who} found {self.value} among the dead letters, at attempt {self.attempt}"
        verb = "saw" if self.is_look else "was handed"
        return f"{who} {verb} {self.value} again in {self.key}, at attempt {self.attempt}"


@dataclass(slots=True)
class _TopicHistory:
    """The events of one topic's messages. `fetches`: (call, key, offset that was returned)."""

    failures: list[_Failure] = field(default_factory=list)
    deliveries: dict[int, list[_Delivery]] = field(default_factory=lambda: defaultdict(list))
    fetches: list[tuple[int, str, int]] = field(default_factory=list)
    dead_looks: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """Calls of handlers of unknown outcome: they may have failed, at any of their messages."""
    handled: int = 0
    went_on_to: int = 0


def _topic_histories(operations: pa.Table, context: CheckContext) -> dict[str, _TopicHistory]:
    functions = pa.array([*FAILING, "handle", "retry", "look", "fetch"])
    table = operations.select(list(COLUMNS)).filter(pc.is_in(operations["f"], functions))
    # Consumers with locks retry failures in place: that is another checker's.
    is_ordered = pc.equal(pc.fill_null(table["expected"], 0), 1)
    is_other = pc.is_in(table["f"], pa.array(["handle", "fetch"]))
    table = table.filter(pc.invert(pc.and_(is_ordered, is_other))).sort_by("op")
    histories: dict[str, _TopicHistory] = defaultdict(_TopicHistory)
    for row in table.to_pylist():
        if row["key"] is not None and context.judges(NAME, row["key"]):
            _add_operation(row, histories[row["key"].partition("/")[0]])
    return histories


def _add_operation(row: Mapping[str, Any], history: _TopicHistory) -> None:
    """Add one operation to a topic's history."""
    f, key, call = row["f"], row["key"], row["call_ns"]
    if row["outcome"] != "ok":
        if row["outcome"] != "fail" and f in FAILING:
            history.unknown.append(call)
        return
    end, is_look = row["return_ns"], f == "look"
    if f == "fetch":
        history.fetches.append((call, key, row["output"] or 0))
        return
    if is_look and key.endswith(f"/{DEAD}"):
        history.dead_looks.append(call)
    if is_look and not key.endswith(f"/{DEAD}"):
        history.fetches.append((call, key, 0))  # no offset, but evidence of a look
    for offset, value, attempt in _messages(row):
        has_failed = f in FAILING and row["offset"] is not None and offset >= row["offset"]
        history.deliveries[value].append(
            _Delivery(
                row["op"], row["process"], key, offset, value, attempt, call,
                by_ns=end if is_look else call,  # a message is delivered before it is handled
                is_look=is_look,
                is_handled=not is_look and not has_failed,
            )
        )  # fmt: skip
        if is_look:
            continue
        history.handled += 1
        history.went_on_to = max(history.went_on_to, end)
        if has_failed:
            level, times_max = row["expected"] or 0, row["input"]
            history.failures.append(
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


def _judge(
    topic: str, history: _TopicHistory, findings: Findings, context: CheckContext
) -> dict[str, int]:
    by_value: dict[int, list[_Failure]] = defaultdict(list)
    for failure in history.failures:
        by_value[failure.value].append(failure)
    counts = {"topics": 1, "handled": history.handled, "failed": len(history.failures)}
    counts |= _unfounded_or_early(topic, history, by_value, findings, context)
    counts |= _missing(topic, history, findings, context)
    dead = {each.value for some in history.deliveries.values() for each in some if each.is_dead}
    return counts | {"dead": len(dead)}


def _unfounded_or_early(
    topic: str,
    history: _TopicHistory,
    by_value: Mapping[int, list[_Failure]],
    findings: Findings,
    context: CheckContext,
) -> dict[str, int]:
    """Add findings for deliveries that no failure explains, or none that was long enough ago."""
    wrong: list[_Delivery] = []
    early: list[tuple[_Delivery, _Failure]] = []
    unexplained = spared = 0
    for value, deliveries in history.deliveries.items():
        for delivery in deliveries:
            if not (delivery.is_again or delivery.is_dead):
                continue
            causes = [
                failure
                for failure in by_value.get(value, ())
                if failure.attempt == delivery.attempt - 1
                and failure.is_last == delivery.is_dead
                and failure.call < delivery.by_ns
            ]
            if not causes:
                if any(call < delivery.by_ns for call in history.unknown):
                    unexplained += 1
                else:
                    wrong.append(delivery)
                continue
            first = min(causes, key=lambda cause: cause.call + cause.delay_ns)
            if delivery.by_ns < first.call + first.delay_ns - EARLY_MAX_NS:
                if _is_under_clock_fault(context, first.call, delivery.by_ns):
                    spared += 1
                else:
                    early.append((delivery, first))

    def describe_wrong(n: int) -> Finding:
        delivery = wrong[n]
        before = [each for each in by_value.get(delivery.value, ()) if each.call < delivery.by_ns]
        last = f"; before that {before[-1].label()}" if before else ""
        if before and before[-1].is_last and not delivery.is_dead:
            last += ", for the last time"
        message = (
            f"{delivery.key}: {delivery.label()}, although no handler had failed at it that puts it"
            f" there{last}."
        )
        ids = (*(each.op for each in before[-1:]), delivery.op)
        more = details(context, delivery.by_ns, value=delivery.value)
        return Finding(WRONG_ATTEMPT, message, delivery.key, delivery.offset, ids, more)

    def describe_early(n: int) -> Finding:
        delivery, cause = early[n]
        after_s = (delivery.by_ns - cause.call) / 1e9
        message = (
            f"{delivery.key}: {cause.label()}; it was to come again after"
            f" {cause.delay_ns / 1e9:g} s, and {delivery.label()} after {after_s:.3f} s."
        )
        more = details(context, delivery.by_ns, value=delivery.value)
        return Finding(EARLY, message, delivery.key, delivery.offset, (cause.op, delivery.op), more)

    findings.add(WRONG_ATTEMPT, range(len(wrong)), describe_wrong)
    findings.add(EARLY, range(len(early)), describe_early)
    return {"unexplained": unexplained, "early_under_clock_faults": spared}


def _is_under_clock_fault(context: CheckContext, start_ns: int, end_ns: int) -> bool:
    start, end = (np.array([at], dtype=np.int64) for at in (start_ns, end_ns))
    return bool(under_clock_faults(context, start, end)[0])


def _missing(
    topic: str, history: _TopicHistory, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add findings for failures after which the message was neither retried nor is dead."""
    missing = [failure for failure in history.failures if not _was_redelivered(failure, history)]
    lost = [(each, seen) for each in missing if (seen := _passed_over(each, history)) is not None]
    rest = [each for each in missing if all(each is not other for other, _ in lost)]
    late = [each for each in rest if _is_late(each, history, context)]

    def describe_lost(n: int) -> Finding:
        failure, (delivery, offset) = lost[n]
        message = (
            f"{failure.key}: {failure.label()}."
            f" {delivery.label()[:1].upper()}{delivery.label()[1:]}, at"
            f" offset {delivery.offset}, and no consumer handled it, although the group"
            f" was reported to have committed {offset} there."
        )
        more = details(context, failure.end, value=failure.value)
        return Finding(LOST, message, failure.key, None, (failure.op, delivery.op), more)

    def describe_late(n: int) -> Finding:
        failure = late[n]
        where = "among the dead letters" if failure.is_last else "again to any consumer"
        others = f", nor did {len(late) - 1} others" if len(late) > 1 else ""
        message = (
            f"{failure.key}: {failure.label()}, and it never came {where}{others}, although it was"
            " waited for while no fault was in force."
        )
        more = details(context, failure.end, value=failure.value)
        return Finding(LATE, message, failure.key, None, (failure.op,), more)

    findings.add(LOST, range(len(lost)), describe_lost)
    findings.add(LATE, range(min(1, len(late))), describe_late)
    return {"not_reached": len(rest) - len(late)}


def _was_redelivered(failure: _Failure, history: _TopicHistory) -> bool:
    """Return whether it was retried, redelivered in place, is dead, or was handled elsewhere.

    Around a rebalance two consumers may get it: then the one that handled it counts.
    """
    for delivery in history.deliveries[failure.value]:
        if delivery.op == failure.op or (delivery.is_look and not delivery.is_dead):
            continue
        if delivery.attempt > failure.attempt:
            return True
        if delivery.attempt == failure.attempt and (
            delivery.is_handled or delivery.call > failure.call
        ):
            return True
    return not failure.is_last and _may_be_dead(failure, history)


def _may_be_dead(failure: _Failure, history: _TopicHistory) -> bool:
    """Return whether another consumer made a dead letter of it, which was not looked for since."""
    return any(
        other.is_last
        and (other.value, other.attempt) == (failure.value, failure.attempt)
        and not any(call > max(failure.end, other.end) for call in history.dead_looks)
        for other in history.failures
    )


def _passed_over(failure: _Failure, history: _TopicHistory) -> tuple[_Delivery, int] | None:
    """Return its place in its retry queue, and the higher offset that the group committed."""
    for delivery in history.deliveries[failure.value]:
        if not (delivery.is_look and delivery.is_again and delivery.attempt > failure.attempt):
            continue
        for call, key, offset in history.fetches:
            if key == delivery.key and call > delivery.by_ns and offset > delivery.offset:
                return delivery, offset
    return None


def _is_late(failure: _Failure, history: _TopicHistory, context: CheckContext) -> bool:
    """Return whether the looks for it went on for long enough in a healthy group."""
    looks = history.dead_looks if failure.is_last else [call for call, _, _ in history.fetches]
    if not looks or not history.fetches:
        return False
    last_ns, first_ns = max(looks), min(call for call, _, _ in history.fetches)
    quiet_ns = int(quiet_since(context, np.array([last_ns], dtype=np.int64))[0])
    since_ns = max(failure.end + failure.delay_ns, quiet_ns, first_ns, history.went_on_to)
    return quiet_ns != NEVER and last_ns - since_ns > BOUND_NS
