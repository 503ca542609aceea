"""Planted bugs in pulls, subscriptions and queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.mode import DLEDGER, Mode
from shaketable.system.broker.reading.pulls import (
    GetMessageResult,
    HeldPulls,
    TagFilter,
    tag_filter,
)
from shaketable.system.broker.reading.queries import KeyQuery, QueueRangeQuery
from shaketable.system.broker.reading.reads import Read, Reads
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import PullMessage, QueueOffsetResponse


class DispatchBeforeCommit(Broker):
    """Dispatches uncommitted entries, too."""

    def _dispatch_limit(self, commit_index: int) -> int:
        return self.core.log.end_index


DISPATCH_BEFORE_COMMIT = Mutant(
    "dispatch-before-commit",
    broker=DispatchBeforeCommit,
    targets=GROUP,
    hunt=Hunt("log", ("kill", "partition")),
    about="""
    Entries get into the consume queues when they are in the log, not when they are committed.

    Consumers read messages that a new leader then overwrites, and queue offsets go wrong.

    Source: DefaultMessageStore.ReputMessageService, which in DLedger mode has to stop at
    committedPos (DLEDGER.md section D.1).
    """,
)


class _OneMessageAPull(Reads):
    """Takes a pull for one of a single message."""

    def _read(self, connection: Connection, command: Command, now_ms: float) -> Read:
        read = super()._read(connection, command, now_ms)
        if isinstance(read.request, PullMessage):
            read.request.max_msg_nums = 1
        return read


class OneMessageAPull(Broker):
    """A broker with these pulls."""

    reads_type = _OneMessageAPull


ONE_MESSAGE_A_PULL = Mutant(
    "one-message-a-pull",
    broker=OneMessageAPull,
    hunt=Hunt("log", ("kill", "partition")),
    about="""
    A pull brings one message, however many wait and were asked for.

    Consumers get everything, in order, and are slower than producers: they never catch up.

    Source: https://github.com/apache/rocketmq/issues/5498 (a consumer that asks for 20 messages
    always gets one).
    """,
)


ANSWERS = 4
"""Requests that one cached max offset answers."""


class _CachesMaxOffsets(Reads):
    """Caches queues' max offsets for a few answers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}

    def _serve(self, read: Read, *, is_confirmed: bool) -> None:
        request = read.request
        if not isinstance(request, QueueRangeQuery) or request.code != RequestCode.GET_MAX_OFFSET:
            super()._serve(read, is_confirmed=is_confirmed)
            return
        fields = request.fields
        key = fields.topic, fields.queue_id
        end, left = self._ends.get(key, (0, 0))
        if not left:
            end, left = (
                self._reput.queues.max_offset((fields.topic.encode(), fields.queue_id)),
                ANSWERS,
            )
        self._ends[key] = end, left - 1
        self._outbox.answer(read.connection, read.command, ext=QueueOffsetResponse(end).to_ext())


class EndsFromCache(Broker):
    """A broker with this cache."""

    reads_type = _CachesMaxOffsets


ENDS_FROM_CACHE = Mutant(
    "ends-from-cache",
    broker=EndsFromCache,
    hunt=Hunt("log", ("transfer", "partition")),
    about="""
    A leader answers for a queue's end with what it answered before, for a few requests.

    What was acknowledged meanwhile is not counted.

    Source: our own; RocketMQ's getMaxOffsetInQueue likewise reads a consume queue that lags behind
    what was acknowledged (DLEDGER.md section 0, row 1).
    """,
)


class _FiltersByFirstTag(Reads):
    """Uses only the first tag of a subscription."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        if super()._tags(fields) is None:
            return None
        first, _, _ = (fields.subscription or "").partition("||")
        return tag_filter(first.strip(), fields.expression_type)


class FirstTagOnly(Broker):
    """A broker with this filter."""

    reads_type = _FiltersByFirstTag


FIRST_TAG_ONLY = Mutant(
    "first-tag-only",
    broker=FirstTagOnly,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    Of a subscription to several tags the broker lets messages of the first one through alone.

    Source: https://github.com/apache/rocketmq/issues/5388 (a group subscribes to two tags of a
    topic, and most messages of one of them are filtered out).
    """,
)


class _SkipsAfterFullPull(Reads):
    """Skips the message after a full pull."""

    def _answer(self, read: Read, result: GetMessageResult) -> None:
        request = read.request
        if isinstance(request, PullMessage) and 1 < request.max_msg_nums <= len(result.places):
            result = result._replace(next_offset=result.next_offset + 1)
        super()._answer(read, result)


class FullPullSkipsOne(Broker):
    """A broker with these pulls."""

    reads_type = _SkipsAfterFullPull


FULL_PULL_SKIPS_ONE = Mutant(
    "full-pull-skips-one",
    broker=FullPullSkipsOne,
    about="""
    A pull that returns as many messages as it may gives a next offset that is one too high.

    A consumer that reads on from there never sees the message in between.

    Source: our own, after "poll-skip" of jepsen.tests.kafka: nextBeginOffset counted, not looked
    up.
    """,
)


class _SkipsWhatDoesNotFit(Reads):
    """Counts the message at which a pull by tags stopped as one that it looked at."""

    def _answer(self, read: Read, result: GetMessageResult) -> None:
        request, places = read.request, result.places
        if (
            isinstance(request, PullMessage)
            and read.tags is not None
            and 0 < len(places) < min(request.max_msg_nums, self._config.pull_messages_max)
            and result.next_offset < result.max_offset
        ):
            result = result._replace(next_offset=result.next_offset + 1)
        super()._answer(read, result)


class FilteredPullSkipsOne(Broker):
    """A broker with these pulls."""

    reads_type = _SkipsWhatDoesNotFit


FILTERED_PULL_SKIPS_ONE = Mutant(
    "filtered-pull-skips-one",
    broker=FilteredPullSkipsOne,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    A pull by tags that stops before a message, for want of room, gives an offset after that one.

    A consumer that reads on from there never sees it.

    Source: our own; RocketMQ's DefaultMessageStore.getMessage asks whether the batch is full
    before it counts a unit as looked at.
    """,
)


class _NeverWakesPulls(HeldPulls[Read]):
    """Ignores arriving messages."""

    def take_arrived(self, queues: ConsumeQueues) -> list[Read]:
        """Return no pull, whatever arrived."""
        for queue in queues.take_arrived():
            if queue in self._by_queue:
                queues.watch(queue)
        return []


class _HeldPullNotWokenReads(Reads):
    held_type = _NeverWakesPulls


class HeldPullNotWoken(Broker):
    """A broker with these held pulls."""

    reads_type = _HeldPullNotWokenReads


HELD_PULL_NOT_WOKEN = Mutant(
    "held-pull-not-woken",
    broker=HeldPullNotWoken,
    hunt=Hunt("queue-held", ("transfer",)),
    about="""
    A message that arrives wakes no pull that is held for it.

    Consumers are answered when their time is over, and not before: what is there waits for that
    long.

    Source: https://github.com/apache/rocketmq/pull/7359 (PullRequestHoldService: what arrives
    between the look and the suspension wakes no pull).
    """,
)


EARLY_MS = 300
"""How much too early the broker below gives a held pull up."""


class _ImpatientPulls(HeldPulls[Read]):
    """Gives pulls up before their time is over."""

    def take_due(self, queues: ConsumeQueues, now_ms: float) -> list[Read]:
        """Return the pulls that will have timed out soon, too."""
        return super().take_due(queues, now_ms + EARLY_MS)


class _HeldPullGivenUpEarlyReads(Reads):
    held_type = _ImpatientPulls


class HeldPullGivenUpEarly(Broker):
    """A broker with these held pulls."""

    reads_type = _HeldPullGivenUpEarlyReads


HELD_PULL_GIVEN_UP_EARLY = Mutant(
    "held-pull-given-up-early",
    broker=HeldPullGivenUpEarly,
    hunt=Hunt("queue-held", ("transfer",)),
    about="""
    A pull that is held at a queue's end is answered before its time is over, though nothing came.

    Consumers ask again at once, so that a short hold becomes none, and brokers are never idle.

    Source: our own, after RocketMQ's PullRequestHoldService, which looks at the time of what it
    holds every five seconds.
    """,
)


class _UnsignedTagCodes(Reads):
    """Compares tags codes as unsigned numbers."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        tags = super()._tags(fields)
        return tags and TagFilter(frozenset(code % (1 << 32) for code in tags.codes))


class NegativeTagCodesUnmatched(Broker):
    """A broker with this filter."""

    def __init__(self, *args: Any, mode: Mode = DLEDGER, **more: Any) -> None:
        super().__init__(*args, mode=mode, **more)
        consumers, topics = self._groups.heartbeats.groups, self._groups.topics
        parts = self.core, self._reput, self._outbox, self._config, consumers, topics
        self._reads = _UnsignedTagCodes(*parts, mode.any_member_codes)


NEGATIVE_TAG_CODES_UNMATCHED = Mutant(
    "negative-tag-codes-unmatched",
    broker=NegativeTagCodesUnmatched,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    A tag whose hash code is below 0 matches no message.

    Source: our own, after Java's String.hashCode, whose sign RocketMQ keeps in the consume queue:
    who reads it as an unsigned number finds no message of half of all tags.
    """,
)


class _PrefersLastHeartbeat(Reads):
    """Prefers the group's last heartbeat to the pull's own subscription."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        group = self._groups.get(fields.consumer_group)
        known = group.subscriptions.get(fields.topic) if group else None
        if known is None:
            return super()._tags(fields)
        return tag_filter(known.expression, known.expression_type)


class TagsOfTheLastHeartbeat(Broker):
    """A broker with this filter."""

    reads_type = _PrefersLastHeartbeat


TAGS_OF_THE_LAST_HEARTBEAT = Mutant(
    "tags-of-the-last-heartbeat",
    broker=TagsOfTheLastHeartbeat,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    The broker filters pulls by what any member of the group subscribed to last.

    Members that subscribe to different tags lose messages to each other's filters.

    Source: https://github.com/apache/rocketmq/issues/2954 and
    https://github.com/apache/rocketmq/issues/2836 (one subscription of a group and topic is kept).
    """,
)


class _IgnoresUniqueKey(Reads):
    """Treats a query for a unique key as one for any key."""

    def _read(self, connection: Connection, command: Command, now_ms: float) -> Read:
        read = super()._read(connection, command, now_ms)
        if isinstance(read.request, KeyQuery):
            return replace(read, request=replace(read.request, is_unique=False))
        return read


class UniqueKeysAreKeys(Broker):
    """A broker with these queries."""

    reads_type = _IgnoresUniqueKey


UNIQUE_KEYS_ARE_KEYS = Mutant(
    "unique-keys-are-keys",
    broker=UniqueKeysAreKeys,
    hunt=Hunt("queue-keys", ("transfer",)),
    about="""
    A query for a unique key is answered as one for any key.

    Messages that bear the text among their KEYS come as well: who looks for one is given others.

    Source: RocketMQ's IndexService.buildKey, one index for UNIQ_KEY and KEYS, whose hits
    QueryMessageProcessor did not compare with what was asked for
    (https://github.com/apache/rocketmq/issues/3613).
    """,
)


PLUGINS = (
    DISPATCH_BEFORE_COMMIT,
    ENDS_FROM_CACHE,
    FIRST_TAG_ONLY,
    FULL_PULL_SKIPS_ONE,
    FILTERED_PULL_SKIPS_ONE,
    HELD_PULL_GIVEN_UP_EARLY,
    HELD_PULL_NOT_WOKEN,
    NEGATIVE_TAG_CODES_UNMATCHED,
    ONE_MESSAGE_A_PULL,
    TAGS_OF_THE_LAST_HEARTBEAT,
    UNIQUE_KEYS_ARE_KEYS,
)
