"""A consumer group's offsets, committed and fetched at the leader of one broker group.

For who knows the members of a group; `PullConsumer` finds brokers by name servers.

Source: RocketMQ's RemoteBrokerOffsetStore.
"""

from __future__ import annotations

from shaketable.system.client.group import BrokerGroupClient
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import (
    QueryConsumerOffset,
    QueueOffsetResponse,
    UpdateConsumerOffset,
)


async def commit_offset(
    client: BrokerGroupClient, group: str, topic: str, queue_id: int, offset: int
) -> None:
    """Let a consumer group go on at an offset of a queue.

    Raises RefusedError (certainly not committed), OutcomeUnknownError.
    """
    fields = UpdateConsumerOffset(group, topic, queue_id, offset)
    await client.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, fields.to_ext())


async def committed_offset(
    client: BrokerGroupClient, group: str, topic: str, queue_id: int
) -> int | None:
    """Return the offset that a consumer group committed of a queue, linearizably.

    None if it committed none. Raises RefusedError, OutcomeUnknownError, DamagedResponseError.
    """
    fields = QueryConsumerOffset(group, topic, queue_id, set_zero_if_not_found=False)
    ext = await client.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, fields.to_ext())
    # Where nothing was committed the answer has no fields.
    return QueueOffsetResponse.from_ext(ext).offset if "offset" in ext else None
