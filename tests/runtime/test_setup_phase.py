"""What a run waits for before its clients start, for how long, and what it says meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shaketable.harness.campaigns.campaign import EXISTING
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.runtime import phases


class Group:
    """A group that is ready after a while, and the rig of a run on it.

    `read_after_s` is what the compilation of what reads its logs takes: on a new machine that was
    longer than the run, and no wipe had an effect.
    """

    is_virtual = False
    exits: tuple[()] = ()

    def __init__(
        self, *, ready_after_s: float = 0.0, read_after_s: float = 0.0, world: str = "process"
    ) -> None:
        self.notes: list[str] = []
        self.campaign = SimpleNamespace(world=world)
        self.world = self.workers = self.group_status = self.observer = self
        self.note = self.notes.append
        self._ready_after_s = ready_after_s
        self._read_after_s = read_after_s
        self._waited_s = 0.0

    def start_all(self) -> None:
        pass

    async def start(self, _timeout_s: float) -> None:
        pass

    def is_ready(self, since: float) -> bool:
        return trio.current_time() - since > self._ready_after_s

    def why_not_ready(self) -> str:
        return "n0 does not answer"

    async def until_logs_are_read(self, timeout_s: float) -> bool:
        self._waited_s += timeout_s
        return self._waited_s > self._read_after_s


def set_up(group: Group) -> bool:
    rig: Any = group
    return trio.run(phases.set_up, rig, clock=MockClock(autojump_threshold=0.0))


@pytest.mark.parametrize(
    ("read_after_s", "words"),
    [(0.0, ()), (3.0, ("compiling",)), (1e9, ("compiling", "not compiled after 120 s"))],
)
def test_a_run_starts_when_what_reads_logs_is_compiled(
    read_after_s: float, words: tuple[str, ...]
) -> None:
    group = Group(read_after_s=read_after_s)
    assert set_up(group)
    assert len(group.notes) == len(words)
    assert all(word in note for word, note in zip(words, group.notes, strict=True))


def test_a_group_that_starts_slowly_is_waited_for_and_that_is_said() -> None:
    group = Group(ready_after_s=100.0)
    assert set_up(group)
    assert group.notes == ["the group is not ready after 30 s, but may be soon: n0 does not answer"]


@pytest.mark.parametrize(("world", "limit_s"), [("process", 120), (EXISTING, 30)])
def test_a_group_that_does_not_start_ends_the_run(world: str, limit_s: int) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        set_up(Group(ready_after_s=1e9, world=world))
    assert caught.group_contains(
        HarnessError, match=f"not ready after {limit_s} s: n0 does not answer"
    )
