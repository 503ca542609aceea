"""Text scripts for elections and replication, in tests/raft/scripts/*.txt.

A script is blocks: a command, `----`, what it prints. `pytest --rewrite` writes what is
printed now; the diff is the review. Commands: config KEY=VALUE... | group N | elapse MS |
tick NAME | timeout NAME | deliver [A->B] | step A->B | drop [A->B] | settle |
append NAME COUNT | read NAME TOKEN | cut A->B... | heal | slow NAME | sync NAME |
crash NAME | start NAME | wipe NAME | join NAME | change NAME add|promote|remove MEMBER |
promotable NAME | transfer NAME TARGET | compact NAME INDEX | full NAME | room NAME | status.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raft_group import CHANGES, ENTRY, Group, Storage, describe

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.membership import MembershipError
from shaketable.system.raft.protocol import (
    DiskFullError,
    InvariantError,
    NotLeaderError,
    PendingFullError,
    RaftConfig,
    TransferError,
)

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
SETTLE_MESSAGES_MAX = 2000
REFUSALS = (DiskFullError, MembershipError, NotLeaderError, PendingFullError, TransferError)

AT_ONCE = {"full_push_bytes": 1}
"""Scripts are about single entries: each goes out by itself, if the script says nothing else."""


class Interpreter:
    def __init__(self, core: type[RaftCore] = RaftCore) -> None:
        self.core_type = core
        self.config = RaftConfig(**AT_ONCE)
        self.group = Group(3, core=core)

    def run(self, line: str) -> str:
        name, *words = line.split()
        out = getattr(self, f"do_{name}")(*words)
        return "\n".join(out or ["ok"])

    def do_config(self, *settings: str) -> None:
        """For the groups after it."""
        values: dict[str, Any] = dict(AT_ONCE)
        for setting in settings:
            key, value = setting.split("=")
            if key == "preferred_leaders":
                values[key] = tuple(value.split(","))
            else:
                values[key] = float(value) if key.endswith("_ms") else int(value)
        self.config = RaftConfig(**values)

    def do_group(self, size: str) -> list[str]:
        self.group = Group(int(size), core=self.core_type, config=self.config)
        return self.do_status()

    def do_elapse(self, ms: str) -> None:
        self.group.now_ms += float(ms)

    def do_tick(self, *names: str) -> list[str]:
        for name in names:
            self.group.tick(name)
        return self._waiting()

    def do_timeout(self, name: str) -> list[str]:
        self.group.now_ms = max(self.group.now_ms, self.group.cores[name].deadline_ms)
        self.group.tick(name)
        return self._waiting()

    def _matching(self, links: tuple[str, ...]) -> int | None:
        wanted = {tuple(link.split("->")) for link in links}
        for position, (source, target, _) in enumerate(self.group.network):
            if not wanted or (source, target) in wanted:
                return position
        return None

    def do_deliver(self, *links: str) -> list[str]:
        out = []
        for _ in range(len(self.group.network)):
            position = self._matching(links)
            if position is None:
                break
            source, target, message = self.group.network[position]
            lost = "" if self.group.deliver(position) else "  (lost)"
            out.append(f"{source}->{target} {describe(message)}{lost}")
        return out or ["nothing to deliver"]

    def do_step(self, link: str) -> list[str]:
        position = self._matching((link,))
        if position is None:
            return ["nothing to deliver"]
        source, target, message = self.group.network[position]
        self.group.deliver(position)
        return [f"{source}->{target} {describe(message)}"]

    def do_drop(self, *links: str) -> list[str]:
        count = 0
        while (position := self._matching(links)) is not None:
            self.group.network.pop(position)
            count += 1
        return [f"dropped {count}"]

    def do_settle(self) -> list[str]:
        count = 0
        while self.group.network:
            self.group.deliver()
            count += 1
            assert count < SETTLE_MESSAGES_MAX, "the members never stop talking"
        return self.do_status()

    def do_append(self, name: str, count: str) -> list[str]:
        return self._try(lambda: self.group.append(name, int(count)))

    def do_join(self, name: str) -> list[str]:
        self.group.join(name)
        return self.do_status()

    def do_change(self, name: str, kind: str, member: str) -> list[str]:
        return self._try(lambda: self.group.change(name, CHANGES[kind](member)))

    def do_promotable(self, name: str) -> list[str]:
        return [self.group.cores[name].learner_to_promote or "nobody"]

    def do_transfer(self, name: str, target: str) -> list[str]:
        return self._try(lambda: self.group.transfer(name, target))

    def do_leave(self, name: str) -> list[str]:
        return self._try(lambda: self.group.leave(name))

    def do_compact(self, name: str, index: str) -> list[str]:
        self.group.compact(name, int(index))
        return self.do_status()

    def do_full(self, name: str) -> list[str]:
        self.group.disk_full(name, is_full=True)
        return self._waiting()

    def do_room(self, name: str) -> list[str]:
        self.group.disk_full(name, is_full=False)
        return self._waiting()

    def _try(self, act: Callable[[], None]) -> list[str]:
        try:
            act()
        except REFUSALS as error:
            return [str(error)]
        return self._waiting()

    def do_read(self, name: str, token: str) -> list[str]:
        return self._try(lambda: self.group.read(name, token))

    def do_cut(self, *links: str) -> None:
        for link in links:
            source, target = link.split("->")
            self.group.cut.add((source, target))

    def do_heal(self) -> None:
        self.group.cut.clear()

    def do_slow(self, name: str) -> None:
        self.group.slow_disks.add(name)

    def do_sync(self, name: str) -> list[str]:
        self.group.slow_disks.discard(name)
        self.group.sync(name)
        return self._waiting()

    def do_crash(self, name: str) -> None:
        self.group.crash(name)

    def do_wipe(self, name: str) -> list[str]:
        """Lose all entries and keep term and vote."""
        self.group.crash(name)
        disk = Storage()
        disk.term, disk.voted_for = self.group.disks[name].term, self.group.disks[name].voted_for
        self.group.disks[name] = disk
        self.group.start(name)
        return self.do_status()

    def do_start(self, name: str) -> list[str]:
        self.group.start(name)
        return self.do_status()

    def _waiting(self) -> list[str]:
        lines = [f"{a}->{b} {describe(m)}" for a, b, m in self.group.network]
        return (lines or ["nothing to say"]) + self._reads()

    def _reads(self) -> list[str]:
        reads, self.group.reads = self.group.reads, []
        return [f"read {token} at {name}: {what}" for name, token, what in reads]

    def do_status(self) -> list[str]:
        out = []
        for name in self.group.names:
            core = self.group.cores.get(name)
            if core is None:
                out.append(f"{name} crashed")
                continue
            begin = core.log.start
            terms = [core.log.term_at(i) for i in range(begin.index + 1, core.log.end_index + 1)]
            log = f"{begin.term}/{begin.index}@{begin.position}+{terms}"
            out.append(
                f"{name} {core.role.value} term={core.term} vote={core.voted_for or '-'} "
                f"leader={core.leader or '-'} log={log if begin.position else terms} "
                f"durable={core.ledger.durable_index} "
                f"commit={core.ledger.commit_index} acked={self.group.acknowledged[name]}"
                + self._membership(core)
            )
        return out + self._reads()

    def _membership(self, core: RaftCore) -> str:
        """Said where it is not the one that the group began with."""
        membership = core.membership
        if membership == self.group.bootstrap:
            return ""
        learners = f" learners={','.join(membership.learners)}" if membership.learners else ""
        return f" voters={','.join(membership.voters) or '-'}{learners}"


def blocks(text: str) -> list[tuple[str, str, str]]:
    """(comment, command, expected) of each block."""
    out = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.splitlines()
        comment = "".join(line + "\n" for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        if rest:
            assert rest[1] == "----", f"no ---- after {rest[0]!r}"
            out.append((comment, rest[0], "\n".join(rest[2:])))
    return out


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    interpreter = Interpreter()
    written = []
    for comment, command, expected in blocks(path.read_text()):
        try:
            got = interpreter.run(command)
        except InvariantError as error:
            got = f"invariant: {error}"
        written.append(f"{comment}{command}\n----\n{got}\n")
        if not request.config.getoption("--rewrite"):
            assert got == expected, f"{path.name}: {command}"
    if request.config.getoption("--rewrite"):
        path.write_text("\n".join(written))


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 8
    assert ENTRY.size == 48


class CountsOldTerms(RaftCore):
    """Planted bug: entries of old terms are committed by counting (DLEDGER.md E1)."""

    def _may_commit(self, index: int) -> bool:
        return True


def test_figure_8_catches_commitment_by_counting() -> None:
    """The planted bug commits entry 1 of term 1, which the end of the script removes."""
    interpreter = Interpreter(CountsOldTerms)
    text = (Path(__file__).parent / "scripts" / "figure8.txt").read_text()
    printed = [(interpreter.run(command), expected) for _, command, expected in blocks(text)[:-4]]
    wrong = [got for got, expected in printed if got != expected]
    assert any("n0 leader term=3" in got and "acked=1" in got for got in wrong)
    ends = [interpreter.run(command) for _, command, _ in blocks(text)[-4:]]
    assert "n4 leader term=4 vote=n4 leader=n4 log=[1, 2, 4]" in ends[-1]
