"""Planted bugs in delayed messages."""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delay_levels import LEVELS_MAX, SCHEDULE_TOPIC
from shaketable.system.broker.deliveries import DelayDelivery
from shaketable.system.mutants import GROUP, MASTERS, Hunt, Mutant
from shaketable.system.store.message import decode_message


class _SkipsRefusedDeliveries(DelayDelivery):
    """Considers refused deliveries as done."""

    def _roll_back(self, before: dict[int, int]) -> None:
        return


class DelaySkippedWhenRefused(Broker):
    """A broker with this delivery."""

    delays_type = _SkipsRefusedDeliveries


DELAY_SKIPPED_WHEN_REFUSED = Mutant(
    "delay-skipped-when-refused",
    broker=DelaySkippedWhenRefused,
    targets=(*MASTERS, *GROUP),
    hunt=Hunt("queue-delays", ("disk-full", "kill")),
    about="""
    A delayed message whose delivery cannot be appended is passed over.

    With a full disk, or too much that is not acknowledged yet, delayed messages are lost.

    Source: https://github.com/apache/rocketmq/issues/9249 (ScheduleMessageService goes on at
    nextOffset where the delivery failed).
    """,
)


class _DelaysFromBornTime(DelayDelivery):
    """Counts the delay from the message's born time."""

    def _must_wait(self, level: int, place: tuple[int, int], due_ms: int, wall_ms: int) -> bool:
        message = decode_message(self._core.log.read(*place))
        return wall_ms < message.born_ms + self._config.delay_ms(level) <= due_ms


class DelayedByBornTime(Broker):
    """A broker with this delivery."""

    delays_type = _DelaysFromBornTime


DELAYED_BY_BORN_TIME = Mutant(
    "delayed-by-born-time",
    broker=DelayedByBornTime,
    hunt=Hunt("queue-delays", ("clock",)),
    about="""
    The delay of a message counts from when its sender says it was born, not from when it was
    stored.

    A sender whose clock is behind, or that says nothing, gets its messages delivered at once.

    Source: https://github.com/apache/pulsar/pull/25310 (a client's clock decides when a delayed
    message comes); RocketMQ counts from the store's clock (ScheduleMessageService).
    """,
)


class _UsesPreviousLevel(DelayDelivery):
    """Delivers each level after the delay of the level before."""

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        before_ms = self._config.delay_ms(level - 1) if level else 0
        ahead_ms = max(0, self._config.delay_ms(level) - before_ms)
        return super()._deliver_level(level, count_max, bytes_max, wall_ms + ahead_ms)


class DelaysCutShort(Broker):
    """A broker with this delivery."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._delays = _UsesPreviousLevel(self.core, self._reput, self._appender, self._config)


DELAYS_CUT_SHORT = Mutant(
    "delays-cut-short",
    broker=DelaysCutShort,
    hunt=Hunt("queue-delays", ("transfer",)),
    about="""
    A delayed message is delivered as if the time of the level before were over.

    Source: our own, after RocketMQ's delayLevelTable, whose levels count from 1: an index from 0 in
    one place of two gives every message the delay before its own, and the first level none.
    """,
)


class _StartsAtMaxOffset(DelayDelivery):
    """Starts each term at the max offset of every level's queue."""

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        if level not in self._next:
            self._next[level] = self._reput.queues.max_offset((SCHEDULE_TOPIC, level))
        return super()._deliver_level(level, count_max, bytes_max, wall_ms)


class DelaysLeftAtElection(Broker):
    """A broker with this delivery."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._delays = _StartsAtMaxOffset(self.core, self._reput, self._appender, self._config)


DELAYS_LEFT_AT_ELECTION = Mutant(
    "delays-left-at-election",
    broker=DelaysLeftAtElection,
    hunt=Hunt("queue-delays", ("transfer", "kill")),
    about="""
    A new leader delivers what is delayed from its election on, and nothing that waited by then.

    Source: our own, after RocketMQ's slaves, which run no ScheduleMessageService: one that becomes
    master and takes the end of a level's queue for its progress leaves all that waits there.
    """,
)


COPY_INTERVAL_MS = 10_000.0
"""How often a member copies the leader's progress."""


class _UsesCopiedProgress(DelayDelivery):
    """Uses the progress as of its last copy."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copied: dict[int, int] = {}
        self._copy_due_ms = 0.0

    def deliver(self, now_ms: float, wall_ms: int) -> None:
        """Copy the progress if due, then deliver."""
        if now_ms >= self._copy_due_ms:
            self._copy_due_ms = now_ms + COPY_INTERVAL_MS
            self._copied = {
                level: super(_UsesCopiedProgress, self)._done(level) for level in range(LEVELS_MAX)
            }
        super().deliver(now_ms, wall_ms)

    def _done(self, level: int) -> int:
        return self._copied.get(level, 0)


class DelaysRepeatedByNewLeader(Broker):
    """A broker with this delivery."""

    delays_type = _UsesCopiedProgress


DELAYS_REPEATED_BY_NEW_LEADER = Mutant(
    "delays-repeated-by-new-leader",
    broker=DelaysRepeatedByNewLeader,
    targets=GROUP,
    hunt=Hunt("queue-delays", ("kill", "transfer")),
    about="""
    A new leader delivers delayed messages from where it last heard that the old one was, 10 s ago.

    What the old one delivered since then comes twice: the progress is a file of the leader's, which
    the others copy now and then.

    Source: https://github.com/apache/rocketmq/issues/1934, fixed for DLedger by
    https://github.com/apache/rocketmq/pull/2518.
    """,
)


PLUGINS = (
    DELAY_SKIPPED_WHEN_REFUSED,
    DELAYED_BY_BORN_TIME,
    DELAYS_CUT_SHORT,
    DELAYS_LEFT_AT_ELECTION,
    DELAYS_REPEATED_BY_NEW_LEADER,
)
