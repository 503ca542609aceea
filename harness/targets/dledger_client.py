"""What a campaign's clients do with one DLedger group: the public client of the system, by keys.

A key is "<topic>/<queue id>". A value is stored as its decimal digits. What is read is recorded
as it is, right or wrong: the history must show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from shaketable.harness.groups import Polled
from shaketable.harness.plugins import Address
from shaketable.harness.targets.dledger_outcomes import DamagedReadError, definite_or_not
from shaketable.harness.targets.group_operations import GROUP, GroupOperations, value_of
from shaketable.system.client import ClientParts, commit_offset, committed_offset

BROKER_NAME = "broker-0"
NOBODYS_VALUE = -1
"""What a read of something else than the message asked for is recorded as: no client appends
it, so that the checkers see a read of what nobody wrote."""
POLL_MAX = 32
"""A broker brings no more messages at a time (pull_messages_max)."""
_VALUE = re.compile(rb"-?[0-9]{1,18}")


class DLedgerClient:
    """The operations on a log, of registers, sets and counters on it, and on group offsets.

    Implements `harness.clients.ConditionalClient`, `PollingClient` and `OffsetsClient`.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        timeout_s: float,
        rng: Random | None = None,
        parts: ClientParts | None = None,
    ) -> None:
        hosts = {node: (at.host, at.port) for node, at in addresses.items()}
        # Which member is tried first, and how long a retry waits, is no part of the draw.
        group_client = (parts or ClientParts()).group_client
        self._client = group_client(hosts, timeout_s=timeout_s, rng=rng or Random())

    @property
    def node(self) -> str | None:
        """Who answered last."""
        return self._client.answered_by

    async def append(self, key: str, value: int) -> int:
        """Send a message whose body is the value's digits."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return (await self._client.send(topic, queue_id, b"%d" % value)).queue_offset

    async def append_at(self, key: str, value: int, offset: int) -> int:
        """Send it on condition that it gets this offset; return the one that it got."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            sent = await self._client.send_at(topic, queue_id, b"%d" % value, offset)
            return sent.queue_offset

    async def read(self, key: str, offset: int) -> int | None:
        """Pull the message at `offset`."""
        topic, queue_id = _queue(key)
        try:
            async with definite_or_not():
                result = await self._client.pull(topic, queue_id, offset, count_max=1)
        except DamagedReadError:
            return NOBODYS_VALUE
        if not result.messages:
            return None
        message = result.messages[0]
        if message.queue_offset != offset or not _VALUE.fullmatch(message.body):
            return NOBODYS_VALUE
        return int(message.body)

    async def poll(self, key: str, offset: int) -> Polled:
        """Pull messages from `offset` on."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            result = await self._client.pull(topic, queue_id, offset, count_max=POLL_MAX)
        messages = [(each.queue_offset, value_of(each.body)) for each in result.messages]
        is_outside = not messages and result.next_offset != offset
        return Polled(messages, result.next_offset, is_outside)

    async def end(self, key: str) -> int:
        """Ask for the queue's max offset."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return await self._client.max_offset(topic, queue_id)

    async def fetch(self, key: str) -> int | None:
        """Ask the leader for the group's offset."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return await committed_offset(self._client, GROUP, topic, queue_id)

    async def commit(self, key: str, offset: int) -> None:
        """Commit the group's offset at the leader."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            await commit_offset(self._client, GROUP, topic, queue_id, offset)

    async def aclose(self) -> None:
        """Close connections."""
        self._client.close()


class DLedgerGroupClient(GroupOperations, DLedgerClient):
    """All operations: those of the log by the members, those of groups by name servers."""

    def __init__(
        self,
        nodes: Mapping[str, Address],
        addresses: Mapping[str, Address],
        timeout_s: float,
        rng: Random | None = None,
        parts: ClientParts | None = None,
        client_id: str | None = None,
    ) -> None:
        DLedgerClient.__init__(self, nodes, timeout_s, rng, parts)
        GroupOperations.__init__(self, addresses, (BROKER_NAME,), timeout_s, parts, rng, client_id)

    @property
    def node(self) -> str | None:
        """Who answered last, where that is known."""
        return self.group_node or self._client.answered_by

    async def aclose(self) -> None:
        """Leave the group, and close connections."""
        self._client.close()
        await self.close_groups()


def _queue(key: str) -> tuple[str, int]:
    topic, _, queue_id = key.rpartition("/")
    return topic, int(queue_id)
