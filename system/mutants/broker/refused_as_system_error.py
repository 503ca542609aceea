"""What a broker refuses for good it answers with SYSTEM_ERROR, as it does where it does not know.

Nothing that it says is wrong, but whoever is told so does not know whether it was done, and asks
again what will be refused for ever.

Source: https://github.com/apache/rocketmq/issues/2931 (what TopicValidator refuses is answered with
SYSTEM_ERROR where MESSAGE_ILLEGAL would say why).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.sends import Sends
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import SendMessageV2, SendRequest


class _OneCode(Sends):
    """Gives no reason."""

    def _is_refused(
        self,
        connection: Connection,
        request: SendRequest,
        fields: SendMessageV2,
        topic: bytes,
        wall_ms: int,
    ) -> bool:
        if 0 <= fields.queue_id < self._topics.write_queues.get(topic, 0):
            return False
        refusal = self._topics.admit(fields, wall_ms)
        if refusal is None:
            return False
        self._outbox.refuse(connection, request, ResponseCode.SYSTEM_ERROR, refusal[1])
        return True


class RefusedAsSystemError(Broker):
    """A broker that answers so."""

    sends_type = _OneCode


PLUGIN = Mutant(
    "refused-as-system-error",
    broker=RefusedAsSystemError,
    hunt=Hunt("queue-operators", ("transfer",)),
)
