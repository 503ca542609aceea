"""How much memory the harness and its client workers use while clients work: it must not grow.

Looked at every `SAMPLE_EVERY_S`, from when clients begin until they are to finish: what a check
needs comes later. All samples stand in memory.jsonl, first, last and most in run.json.

Source: proc(5), statm (resident set size).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from shaketable.harness.plugins import Json
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.process_files import resident_bytes

SAMPLE_EVERY_S: Final = 5.0
HARNESS: Final = "harness"


class MemoryUse:
    """Keeps account of one run.

    Args:
        lines: memory.jsonl, open.
        pids: of the processes beside this one, by name.
        now_ns: the time since the run's start.
    """

    def __init__(
        self, lines: Lines, pids: Callable[[], Mapping[str, int]], now_ns: Callable[[], int]
    ) -> None:
        self._lines = lines
        self._pids = pids
        self._now_ns = now_ns
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._most: dict[str, int] = {}

    @asynccontextmanager
    async def recorded(self, settle_s: float) -> AsyncIterator[None]:
        """Take samples for the body of `with`; the first that counts `settle_s` after its start."""

        async def take() -> None:
            await trio.sleep(settle_s)
            while True:
                self.sample()
                await trio.sleep(SAMPLE_EVERY_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
                self.sample()

    def sample(self) -> None:
        """Look at all processes now."""
        found = {}
        for name, pid in {HARNESS: os.getpid(), **self._pids()}.items():
            used = resident_bytes(pid)
            if used is not None:
                found[name] = used
        for name, used in found.items():
            self._first.setdefault(name, used)
            self._last[name] = used
            self._most[name] = max(used, self._most.get(name, 0))
        self._lines.append({"time_ns": self._now_ns(), "bytes": found})

    def summary(self) -> dict[str, Json]:
        """Return first, last and most of each process, in bytes."""
        return {
            name: {"first": first, "last": self._last[name], "most": self._most[name]}
            for name, first in self._first.items()
        }
