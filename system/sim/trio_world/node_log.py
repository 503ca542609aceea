"""What simulated nodes and name servers log: part of the run's trace, and told to who asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.trio_world.heap_clock import HeapClock
from shaketable.system.sim.trio_world.process import CURRENT

_LOGS = ("shaketable.node", "shaketable.name_server")

Said = Callable[[float, str, str, str], None]
"""Told of each line: when (virtual milliseconds), by which host, at what level, the text."""


class _Handler(logging.Handler):
    def __init__(self, trace: Trace, clock: HeapClock, on_said: Said | None) -> None:
        super().__init__()
        self._trace = trace
        self._clock = clock
        self._on_said = on_said

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        name = process.host if process is not None else "-"
        text = record.getMessage()
        if self._trace.write is not None:
            self._trace.line(self._clock.now_ms, name, f"log {text}")
        if self._on_said is not None:
            self._on_said(self._clock.now_ms, name, record.levelname, text)


@contextmanager
def node_log_to(trace: Trace, clock: HeapClock, on_said: Said | None = None) -> Iterator[None]:
    """Send their logs to the trace's lines and to `on_said`, or nowhere.

    They are as they were afterwards.
    """
    logs = [logging.getLogger(name) for name in _LOGS]
    before = [(log.level, log.propagate) for log in logs]
    handler = _Handler(trace, clock, on_said)
    for log in logs:
        log.propagate = False
        if trace.write is None and on_said is None:
            log.setLevel(logging.CRITICAL + 1)
        else:
            log.setLevel(logging.INFO)
            log.addHandler(handler)
    try:
        yield
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.propagate = propagate
            log.setLevel(level)
