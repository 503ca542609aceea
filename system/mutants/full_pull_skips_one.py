"""A pull that brings as many messages as it may says that the queue goes on one too far behind.

Whoever reads on from there never sees the message in between.

Source: our own, after "poll-skip" of jepsen.tests.kafka: nextBeginOffset counted, not looked up.
"""

from __future__ import annotations

from typing import Any

from system.broker.broker import Broker
from system.broker.mode import DLEDGER, Mode
from system.broker.pull import Pulled
from system.broker.reads import Read, Reads
from system.mutants import Mutant
from system.remoting.requests import PullMessage


class _OneTooFar(Reads):
    """Counts the message behind a full pull as delivered."""

    def _answer(self, read: Read, pulled: Pulled) -> None:
        asked = read.request
        if isinstance(asked, PullMessage) and 1 < asked.max_msg_nums <= len(pulled.places):
            pulled = pulled._replace(next_offset=pulled.next_offset + 1)
        super()._answer(read, pulled)


class FullPullSkipsOne(Broker):
    """A broker that answers pulls so."""

    def __init__(self, *args: Any, mode: Mode = DLEDGER, **more: Any) -> None:
        super().__init__(*args, mode=mode, **more)
        consumers = self._groups.heartbeats.groups
        parts = self.core, self._reput, self._outbox, self._config, consumers
        self._reads = _OneTooFar(*parts, mode.anywhere_codes)


PLUGIN = Mutant("full-pull-skips-one", broker=FullPullSkipsOne)
