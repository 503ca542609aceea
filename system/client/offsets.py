"""Commits and fetches a consumer group's offsets at the leader of one broker group.

For clients that know the group's members; `PullConsumer` finds brokers through name servers.

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
    """Commit a consumer group's offset in a queue.

    Raises RefusedError (certainly not committed), OutcomeUnknownError.
    """
    fields = UpdateConsumerOffset(group, topic, queue_id, offset)
    await client.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, fields.to_ext())


async def committed_offset(
    client: BrokerGroupClient, group: str, topic: str, queue_id: int
) -> int | None:
    """Return a consumer group's committed offset in a queue, linearizably; None if it has none.

    Raises RefusedError, OutcomeUnknownError, DamagedResponseError.
    """
    fields = QueryConsumerOffset(group, topic, queue_id, set_zero_if_not_found=False)
    ext = await client.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, fields.to_ext())
    # The response has no fields if nothing was committed.
    return QueueOffsetResponse.from_ext(ext).offset if "offset" in ext else None
