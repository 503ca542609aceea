"""No node starts with a configuration that an operator mistyped, and one that does is found."""

from __future__ import annotations

import pytest

from shaketable.system.broker import delay_levels
from shaketable.system.invariants.violated import Violated
from shaketable.system.node import config
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.sim.broken_starts.broken_confs import BROKEN, check_refused
from shaketable.system.store.plain_commit_log import PlainCommitLog


def test_all_of_them_are_refused() -> None:
    assert check_refused("n0") > len(BROKEN)


def test_a_lease_that_outlasts_elections_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftConfig, "__post_init__", lambda _: None)
    with pytest.raises(Violated, match="shaketableLeaseMs='250'"):
        check_refused("n0")


def test_levels_that_are_no_times_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "parse_levels", lambda _: delay_levels.DEFAULT_LEVELS_MS)
    with pytest.raises(Violated, match="messageDelayLevel='1s 5x'"):
        check_refused("n0")


def test_files_of_another_size_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainCommitLog, "_check_files", lambda *_: None)
    with pytest.raises(Violated, match="of 8192 bytes each"):
        check_refused("n0")
