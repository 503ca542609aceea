"""A consumer's membership in its group: heartbeats to all brokers, and its assigned queues.

It starts nothing by itself: its owner schedules the calls.
Source: RocketMQ's MQClientInstance (sendHeartbeatToAllBroker, unregisterClient) and RebalanceImpl;
DLEDGER.md D.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shaketable.system.client.connection import (
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.client.routes import MessageQueue, allocate
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.consumer_bodies import decode_client_ids, encode_heartbeat
from shaketable.system.remoting.requests import GroupRequest, UnregisterClient


class GroupMembership:
    """One consumer of a group, as the brokers know it.

    Args:
        source: sends the requests; its group is the consumer group.
        client_id: identifies this consumer.
        subscriptions: by topic "*" or tags as "a || b".
        timeout_s: how long one call may take.
    """

    def __init__(
        self,
        source: PullConsumer,
        client_id: str,
        subscriptions: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        self.client_id = client_id
        self.subscriptions = dict(subscriptions)
        self._source = source
        self._timeout_s = timeout_s

    async def heartbeat(self) -> int:
        """Send a heartbeat to all brokers; return how many accepted it.

        An unreachable broker gets the next one.
        """
        body = encode_heartbeat(self.client_id, self._source.group, self.subscriptions)
        accepted = 0
        for address in await self._brokers():
            answer = await self._try(address, Command(RequestCode.HEART_BEAT, body=body))
            accepted += answer is not None and answer.code == ResponseCode.SUCCESS
        return accepted

    async def leave(self) -> tuple[str, ...]:
        """Unregister at all brokers; return the addresses of those that accepted it.

        The others notice when the connection closes or the heartbeats stop.
        """
        fields = UnregisterClient(self.client_id, consumer_group=self._source.group)
        accepted: list[str] = []
        for address in await self._brokers():
            command = Command(RequestCode.UNREGISTER_CLIENT, ext=fields.to_ext())
            answer = await self._try(address, command)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                accepted.append(address)
        return tuple(accepted)

    async def members(self, address: str) -> tuple[str, ...]:
        """Return the ids of the group's clients that a broker knows of.

        Raises RefusedError, OutcomeUnknownError and its subclass DamagedResponseError.
        """
        fields = GroupRequest(self._source.group)
        request = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=fields.to_ext())
        answer = await self._source.ask_broker(address, request, self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RefusedError(answer.code, answer.remark or "")
        try:
            return tuple(decode_client_ids(answer.body))
        except CommandError as error:
            raise DamagedResponseError(f"{address} sent a bad list: {error}") from None

    async def assignment(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return this consumer's queues of a topic, None if that is unknown now."""
        try:
            queues = await self._source.queues(topic)
            addresses = await self._source.brokers(topic)
        except RefusedError:
            return None
        request = Command(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=GroupRequest(self._source.group).to_ext()
        )
        for address in addresses:
            answer = await self._try(address, request)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                try:
                    ids = decode_client_ids(answer.body)
                except CommandError:
                    continue
                return self._allocate(queues, ids)
        return None

    def _allocate(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        """Return this consumer's share of a topic's queues, in a group of these clients."""
        return allocate(queues, ids, self.client_id)

    async def _brokers(self) -> tuple[str, ...]:
        found: set[str] = set()
        for topic in self.subscriptions:
            try:
                found.update(await self._source.brokers(topic))
            except RefusedError:
                continue  # no broker has the topic yet, or no name server answers: try later
        return tuple(sorted(found))

    async def _try(self, address: str, command: Command) -> Command | None:
        try:
            return await self._source.ask_broker(address, command, self._timeout_s)
        except (RefusedError, OutcomeUnknownError):
            return None
