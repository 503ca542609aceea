"""The configuration that the target pysyncobj gives PySyncObj, and what the library asks of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from shaketable.harness.targets.pysyncobj.server import configuration


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that takes any configuration."""
    module = ModuleType("pysyncobj")
    module.SyncObjConf = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pysyncobj", module)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("tick_ms", "timeouts_s"), [(10, (0.4, 1.4)), (50, (0.4, 1.4)), (200, (1.6, 5.6))]
)
def test_election_timeouts_leave_room_for_slow_ticks(
    tick_ms: int, timeouts_s: tuple[float, float]
) -> None:
    given = argparse.Namespace(
        journal="on", compaction_entries="off", tick_ms=tick_ms, data=Path("data"), bind="h:1"
    )
    found = configuration(given)
    assert (found.raftMinTimeout, found.raftMaxTimeout) == pytest.approx(timeouts_s)
    # PySyncObj's own conditions (config.py, validate)
    assert found.raftMinTimeout > found.appendEntriesPeriod * 3
    assert found.connectionTimeout >= found.raftMaxTimeout
