"""A client asks for a topic's route once, and goes on with it whoever leads since.

Source: https://github.com/apache/rocketmq/issues/2728 (clients go on with the route of a broker
that is down) and https://github.com/apache/rocketmq/pull/1686.
"""

from __future__ import annotations

from shaketable.system.client import ClientParts, Producer, PullConsumer
from shaketable.system.client.channels import NAME_SERVER_TIMEOUT_S, NameService
from shaketable.system.client.routes import Route
from shaketable.system.mutants import Mutant


class _Once(NameService):
    """Remembers each route."""

    async def route(self, topic: str, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> Route:
        """Return the first route that was said."""
        known = self._routes.get(topic)
        return known[1] if known is not None else await super().route(topic, timeout_s)


class _Producer(Producer):
    names_type = _Once


class _PullConsumer(PullConsumer):
    names_type = _Once


PLUGIN = Mutant(
    "route-kept-for-good", client=ClientParts(producer=_Producer, pull_consumer=_PullConsumer)
)
