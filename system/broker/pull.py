"""Answers a pull from the consume queues and the log.

Source: RocketMQ's PullMessageProcessor and DefaultMessageStore.getMessage; codes as in
DLEDGER.md A.2.
"""

from __future__ import annotations

from system.broker.consume_queue import ConsumeQueues, Queue
from system.broker.limits import BrokerConfig
from system.raft.log_view import LogView
from system.remoting.codes import ResponseCode
from system.remoting.requests import PullMessage, PullMessageResponse


def pull(
    queues: ConsumeQueues, log: LogView, limits: BrokerConfig, request: PullMessage, queue: Queue
) -> tuple[ResponseCode, dict[str, str], list[bytes]]:
    """Return the response's code, ext fields and body: the messages as they are stored.

    Outside the queue nothing is found, and nextBeginOffset says where it goes on: in front of
    what is retained (OFFSET_TOO_SMALL) at the begin, far behind the end at the end.
    """
    begin, end = queues.begin(queue), queues.end(queue)
    offset = request.queue_offset
    found: list[tuple[int, int]] = []
    if begin <= offset < end:
        count = max(1, min(request.max_msg_nums, limits.pull_messages_max))
        found = queues.find(queue, offset, count, limits.pull_bytes_max)
    if found:
        code, next_offset = ResponseCode.SUCCESS, offset + len(found)
    elif offset == end:
        code, next_offset = ResponseCode.PULL_NOT_FOUND, offset
    else:
        code, next_offset = ResponseCode.PULL_OFFSET_MOVED, end if offset > end else begin
    ext = PullMessageResponse(0, next_offset, begin, end).to_ext()
    return code, ext, [log.read(position, size) for position, size in found]
