"""The producer takes a message that no slave has in time for one that is safe.

When the master's disk is lost, what was reported as sent is gone.

Source: https://github.com/apache/rocketmq/issues/4806 (SLAVE_NOT_AVAILABLE and
FLUSH_SLAVE_TIMEOUT are considered to be written on the slave).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shaketable.system.client import ClientParts, Producer, Sent
from shaketable.system.mutants import Hunt, Mutant


class _Producer(Producer):
    """Knows one status."""

    async def _stored(self, *args: Any) -> Sent:
        return replace(await super()._stored(*args), status="SEND_OK")


PLUGIN = Mutant(
    "any-stored-is-ok",
    client=ClientParts(producer=_Producer),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "kill", "partition")),
)
