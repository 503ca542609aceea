"""Pulls: filtered by tags, answered from the consume queues and the log, or held."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.ledger import LogView
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import PullMessage, PullMessageResponse
from shaketable.system.store.message import java_hash

# The filter by tags: by the tags codes in the consume queue.
#
# A tags code is a hash, so a message that passes may still have another tag: the client compares
# the tags themselves, as RocketMQ's client does.
# Source: RocketMQ's FilterAPI.buildSubscriptionData and
# ExpressionMessageFilter.isMatchedByConsumeQueue.

TAG_EXPRESSION = "TAG"
TAGS_MAX = 1024
"""Limit for one subscription."""
FILTERS_CACHED_MAX = 1024
"""Parsed subscriptions kept: every pull carries one."""


class SubscriptionError(Exception):
    """The expression is not a subscription by tags. The message is one line for the client."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The hash codes of the wanted tags. A message without tags does not pass."""

    codes: frozenset[int]

    def passes(self, tags_code: int) -> bool:
        """Whether a message with this code may be wanted."""
        return tags_code in self.codes


@lru_cache(FILTERS_CACHED_MAX)
def tag_filter(expression: str | None, expression_type: str | None = None) -> TagFilter | None:
    """Parse "*" or "TagA || TagB"; None if every message is wanted. Raises SubscriptionError."""
    if expression_type not in (None, "", TAG_EXPRESSION):
        raise SubscriptionError(
            f"subscriptions by {expression_type[:32]} are not served: subscribe by TAG"
        )
    if not expression or expression == "*":
        return None
    parts = expression.split("||", TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise SubscriptionError(f"a subscription of more than {TAGS_MAX} tags")
    if not any(parts):
        raise SubscriptionError('a subscription names no tag: write "TagA || TagB" or "*"')
    tags = {tag for part in parts if (tag := part.strip())}
    return TagFilter(frozenset(java_hash(tag.encode(errors="replace")) for tag in tags))


# Answers a pull from the consume queues and the log.
#
# Source: RocketMQ's PullMessageProcessor and DefaultMessageStore.getMessage (5.3.3); codes as in
# DLEDGER.md A.2.

SUSPEND_FLAG = 2
SUBSCRIPTION_FLAG = 4
"""Bits of a pull's sys flag (PullSysFlag)."""
MASTER_BROKER_ID = 0
SLAVE_BROKER_ID = 1
"""RocketMQ's whichBrokerWhenConsumeSlowly; a client takes another slave if there is no 1."""


class GetMessageResult(NamedTuple):
    """The result of a pull (RocketMQ's GetMessageResult).

    `places` are the (position, size) of the messages found.
    """

    code: ResponseCode
    next_offset: int
    min_offset: int
    max_offset: int
    places: list[tuple[int, int]]

    def fields(self, suggested_broker_id: int = MASTER_BROKER_ID) -> dict[str, str]:
        """Return the response's ext fields."""
        return PullMessageResponse(
            suggested_broker_id, self.next_offset, self.min_offset, self.max_offset
        ).to_ext()

    def body(self, log: LogView) -> list[bytes]:
        """Return the messages as they are stored. Raises StoreError."""
        return [log.read(position, size) for position, size in self.places]


def pull(
    queues: ConsumeQueues,
    limits: BrokerConfig,
    request: PullMessage,
    queue: Queue,
    tags: TagFilter | None = None,
) -> GetMessageResult:
    """Find the messages that a pull requests. Raises StoreError.

    Outside the queue's range nothing is found, and `next_offset` tells where to continue: the min
    offset for an offset below it (OFFSET_TOO_SMALL), the max offset for one above it. If no
    scanned message passes the filter, the code is PULL_RETRY_IMMEDIATELY and `next_offset` is
    after the scanned ones.
    """
    min_offset, max_offset = queues.min_offset(queue), queues.max_offset(queue)
    offset = request.queue_offset
    if not min_offset <= offset < max_offset:
        code = (
            ResponseCode.PULL_NOT_FOUND if offset == max_offset else ResponseCode.PULL_OFFSET_MOVED
        )
        return GetMessageResult(
            code, min_offset if offset < min_offset else max_offset, min_offset, max_offset, []
        )
    count_max = max(1, min(request.max_msg_nums, limits.pull_messages_max))
    bytes_max = limits.pull_bytes_max
    if request.max_msg_bytes is not None and request.max_msg_bytes > 0:
        bytes_max = min(bytes_max, request.max_msg_bytes)
    if tags is None:
        places = queues.find(queue, offset, count_max, bytes_max)
        scanned = len(places)
    else:
        units_max = max(count_max, limits.filtered_units_max)
        units = queues.units(queue, offset, units_max)
        places, scanned = _wanted(units, tags, count_max, bytes_max)
    if not scanned:  # the files hold less than the queue's range; RocketMQ answers the same
        return GetMessageResult(ResponseCode.PULL_NOT_FOUND, offset, min_offset, max_offset, [])
    code = ResponseCode.SUCCESS if places else ResponseCode.PULL_RETRY_IMMEDIATELY
    return GetMessageResult(code, offset + scanned, min_offset, max_offset, places)


def follower_result(result: GetMessageResult, request: PullMessage) -> GetMessageResult:
    """Return a follower's result, which never moves a consumer to another offset.

    Its max offset may lag behind the leader's, and its min offset may differ, so the client
    retries the same offset (RocketMQ's slave with offsetCheckInSlave=false).
    """
    if result.code != ResponseCode.PULL_OFFSET_MOVED:
        return result
    return result._replace(
        code=ResponseCode.PULL_RETRY_IMMEDIATELY, next_offset=request.queue_offset
    )


def suggested_broker_id(
    result: GetMessageResult, log_end_position: int, limits: BrokerConfig
) -> int:
    """Return the broker to pull from next: a slave, if it serves reads and the consumer lags."""
    if limits.slave_read_enable and result.places:
        position, size = result.places[-1]
        if log_end_position - position - size > limits.consume_slowly_bytes:
            return SLAVE_BROKER_ID
    return MASTER_BROKER_ID


def _wanted(
    units: list[tuple[int, int, int]], tags: TagFilter, count_max: int, bytes_max: int
) -> tuple[list[tuple[int, int]], int]:
    """Return the places of wanted messages, and how many units were scanned."""
    places: list[tuple[int, int]] = []
    total = 0
    for at, (position, size, tags_code) in enumerate(units):
        if not tags.passes(tags_code):
            continue
        total += size
        if len(places) == count_max or (places and total > bytes_max):
            return places, at
        places.append((position, size))
    return places, len(units)


# Long polling: holds pulls that found nothing until a wanted message arrives or they time out.
#
# Source: RocketMQ's PullRequestHoldService and ManyPullRequest; DLEDGER.md A.2. Unlike there, a
# held pull is checked in the same step in which its queue gets a message, and the number of held
# pulls and their time are limited.

STALE_DEADLINES_MAX = 1024
"""Deadlines of finished pulls that are kept, beside one for each held pull."""


class Holdable(Protocol):
    """A pull that can be held."""

    @property
    def number(self) -> int:
        """Identifies the pull; later pulls have higher numbers."""

    @property
    def connection(self) -> Connection:
        """Where its answer goes."""


Pull = TypeVar("Pull", bound=Holdable)


@dataclass(slots=True)
class _Held(Generic[Pull]):
    pull: Pull
    queue: Queue
    next_offset: int
    """No message before this offset is wanted."""
    tags: TagFilter | None


class HeldPulls(Generic[Pull]):
    """The held pulls. The caller answers each pull that it takes out.

    `units_max` limits how many messages a pull's filter scans here. If more have arrived, the
    pull is returned unfiltered and continues at its own offset.
    """

    def __init__(self, count_max: int, units_max: int) -> None:
        self._count_max = count_max
        self._units_max = units_max
        self._held: dict[int, _Held[Pull]] = {}
        self._by_queue: dict[Queue, dict[int, None]] = {}
        self._by_connection: dict[Connection, dict[int, None]] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the limit of held pulls is reached."""
        return len(self._held) >= self._count_max

    def hold(
        self,
        pull: Pull,
        queues: ConsumeQueues,
        queue: Queue,
        next_offset: int,
        tags: TagFilter | None,
        due_ms: float,
    ) -> None:
        """Hold a pull that wants messages of a queue from `next_offset` on."""
        assert not self.is_full, "the limit is checked before a pull is held"
        number = pull.number
        self._held[number] = _Held(pull, queue, next_offset, tags)
        self._by_queue.setdefault(queue, {})[number] = None
        self._by_connection.setdefault(pull.connection, {})[number] = None
        heappush(self._deadlines, (due_ms, number))
        queues.watch(queue)

    def take_arrived(self, queues: ConsumeQueues) -> list[Pull]:
        """Return the pulls whose queue got a message they may want. Raises StoreError."""
        found: list[Pull] = []
        for queue in queues.take_arrived():
            waiting = self._by_queue.get(queue, {})
            wanted = [number for number in waiting if self._is_wanted(self._held[number], queues)]
            found += [self._take(number, queues) for number in wanted]
            if queue in self._by_queue:
                queues.watch(queue)
        return found

    def take_due(self, queues: ConsumeQueues, now_ms: float) -> list[Pull]:
        """Return the pulls that have timed out."""
        found: list[Pull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heappop(self._deadlines)
            if number in self._held:
                found.append(self._take(number, queues))
        return found

    def take_all(self, queues: ConsumeQueues) -> list[Pull]:
        """Return every pull, for messages may not arrive here any more."""
        return [self._take(number, queues) for number in list(self._held)]

    def drop(self, connection: Connection, queues: ConsumeQueues) -> None:
        """Drop the pulls of a connection that closed."""
        for number in list(self._by_connection.get(connection, ())):
            self._take(number, queues)

    def _take(self, number: int, queues: ConsumeQueues) -> Pull:
        held = self._held.pop(number)
        of_queue = self._by_queue[held.queue]
        del of_queue[number]
        if not of_queue:
            del self._by_queue[held.queue]
            queues.unwatch(held.queue)
        of_connection = self._by_connection[held.pull.connection]
        del of_connection[number]
        if not of_connection:
            del self._by_connection[held.pull.connection]
        if len(self._deadlines) > 2 * len(self._held) + STALE_DEADLINES_MAX:
            self._deadlines = [due for due in self._deadlines if due[1] in self._held]
            heapify(self._deadlines)
        return held.pull

    def _is_wanted(self, held: _Held[Pull], queues: ConsumeQueues) -> bool:
        min_offset, max_offset = queues.min_offset(held.queue), queues.max_offset(held.queue)
        if max_offset <= held.next_offset:
            return False  # this follower lags behind the requested offset
        count = max_offset - held.next_offset
        if held.tags is None or held.next_offset < min_offset or count > self._units_max:
            return True
        units = queues.units(held.queue, held.next_offset, count)
        if any(held.tags.passes(tags_code) for _, _, tags_code in units):
            return True
        held.next_offset = max_offset
        return False
