"""Answers a pull from the consume queues and the log.

Source: RocketMQ's PullMessageProcessor and DefaultMessageStore.getMessage (5.3.3); codes as in
DLEDGER.md A.2.
"""

from __future__ import annotations

from typing import NamedTuple

from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.tag_filter import TagFilter
from shaketable.system.raft.log_view import LogView
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import PullMessage, PullMessageResponse

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
