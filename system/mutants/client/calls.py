"""Planted bugs in a client's calls: responses, retries and timeouts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    OutcomeUnknownError,
    Producer,
    PullConsumer,
    RefusedError,
    Sent,
)
from shaketable.system.client.channels import NAME_SERVER_TIMEOUT_S, Channels, NameService
from shaketable.system.client.connection import Connection, DamagedResponseError, PendingCall
from shaketable.system.client.routes import Route
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.command import Command


class _MatchesByArrival(Connection):
    """Gives each response to the oldest call in flight."""

    def _call_for(self, response: Command) -> PendingCall | None:
        return next((call for call in self._calls.values() if call.response is None), None)


class _MatchesByArrivalChannels(Channels):
    connection_type = _MatchesByArrival


class _MatchesByArrivalGroupClient(BrokerGroupClient):
    connection_type = _MatchesByArrival


class _MatchesByArrivalProducer(Producer):
    channels_type = _MatchesByArrivalChannels


class _MatchesByArrivalPullConsumer(PullConsumer):
    channels_type = _MatchesByArrivalChannels


ANSWERS_BY_ARRIVAL = Mutant(
    "answers-by-arrival",
    client=ClientParts(
        _MatchesByArrivalGroupClient, _MatchesByArrivalProducer, _MatchesByArrivalPullConsumer
    ),
    about="""
    Answers are given to the calls of a connection in the calls' order, whatever their numbers.

    Where a call timed out, or is answered later than the next one, others get its answer.

    Source: https://github.com/dpkp/kafka-python/pull/403 (responses were not correlated with their
    requests).
    """,
)


class _AnyStoredIsOkProducer(Producer):
    """Reports every stored message as SEND_OK."""

    async def _stored(self, *args: Any) -> Sent:
        return replace(await super()._stored(*args), status="SEND_OK")


ANY_STORED_IS_OK = Mutant(
    "any-stored-is-ok",
    client=ClientParts(producer=_AnyStoredIsOkProducer),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "kill", "partition")),
    about="""
    The producer takes a message that no slave has in time for one that is safe.

    When the master's disk is lost, what was reported as sent is gone.

    Source: https://github.com/apache/rocketmq/issues/4806 (SLAVE_NOT_AVAILABLE and
    FLUSH_SLAVE_TIMEOUT are considered to be written on the slave).
    """,
)


class _NeverRefreshesRoutes(NameService):
    """Never refreshes a route."""

    async def route(self, topic: str, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> Route:
        """Return the first route ever received."""
        known = self._routes.get(topic)
        return known[1] if known is not None else await super().route(topic, timeout_s)


class _RouteKeptForGoodProducer(Producer):
    names_type = _NeverRefreshesRoutes


class _RouteKeptForGoodPullConsumer(PullConsumer):
    names_type = _NeverRefreshesRoutes


ROUTE_KEPT_FOR_GOOD = Mutant(
    "route-kept-for-good",
    client=ClientParts(
        producer=_RouteKeptForGoodProducer, pull_consumer=_RouteKeptForGoodPullConsumer
    ),
    about="""
    A client asks for a topic's route once, and goes on with it whoever leads since.

    Source: https://github.com/apache/rocketmq/issues/2728 (clients go on with the route of a broker
    that is down) and https://github.com/apache/rocketmq/pull/1686.
    """,
)


Result = TypeVar("Result")
SENDS_MAX = 3


class _SendsAgainWhenUnknownGroupClient(BrokerGroupClient):
    """Retries any request of unknown outcome."""

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._at_leader(attempt)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._at_leader(attempt)


class _SendsAgainWhenUnknownProducer(Producer):
    """Retries sends of unknown outcome."""

    async def _until_stored(self, *args: Any) -> Sent:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._until_stored(*args)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._until_stored(*args)


SENDS_AGAIN_WHEN_UNKNOWN = Mutant(
    "sends-again-when-unknown",
    client=ClientParts(_SendsAgainWhenUnknownGroupClient, _SendsAgainWhenUnknownProducer),
    hunt=Hunt("log", ("pause", "partition")),
    about="""
    A send of which nobody knows what became of it is sent once more behind the caller's back.

    Where the first one was stored, the message is there twice, or behind later ones.

    Source: https://github.com/tulios/kafkajs/issues/257 (100,000 messages sent, 110,000 to 120,000
    stored, after timeouts); RocketMQ's retryTimesWhenSendFailed likewise.
    """,
)


class _TimeoutMeansRefused(Connection):
    """Reports unknown outcomes as refusals."""

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Call, and raise RefusedError where the outcome is unknown."""
        try:
            return await super().call(command, timeout_s)
        except OutcomeUnknownError as error:
            raise RefusedError(-1, str(error)) from None


class _TimeoutIsRefusalChannels(Channels):
    connection_type = _TimeoutMeansRefused


class _TimeoutIsRefusalGroupClient(BrokerGroupClient):
    connection_type = _TimeoutMeansRefused


class _TimeoutIsRefusalProducer(Producer):
    channels_type = _TimeoutIsRefusalChannels


class _TimeoutIsRefusalPullConsumer(PullConsumer):
    channels_type = _TimeoutIsRefusalChannels


TIMEOUT_IS_REFUSAL = Mutant(
    "timeout-is-refusal",
    client=ClientParts(
        _TimeoutIsRefusalGroupClient, _TimeoutIsRefusalProducer, _TimeoutIsRefusalPullConsumer
    ),
    hunt=Hunt("log", ("pause", "partition")),
    about="""
    A request that is not answered in time is reported as refused: certainly without an effect.

    Whoever believes it sends once more, or goes on as if nothing had happened; the message is
    stored.

    Source: https://github.com/apache/rocketmq/issues/1921 (the producer throws MQClientException,
    and the messages are at the brokers).
    """,
)


PLUGINS = (
    ANSWERS_BY_ARRIVAL,
    ANY_STORED_IS_OK,
    ROUTE_KEPT_FOR_GOOD,
    SENDS_AGAIN_WHEN_UNKNOWN,
    TIMEOUT_IS_REFUSAL,
)
