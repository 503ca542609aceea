"""Random work, crashes at any disk operation, restarts: what was promised is there.

A life is some work on the log and then an end: a loss of power (unsynced writes are lost, kept,
torn or reordered), or the death of the process alone (the page cache survives), either at any
operation of the disk, or a failed fsync. Every planted bug must be found by this same test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from random import Random
from unittest.mock import Mock, patch

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from store_crash_points import FailingSync, check
from store_life import Promise, Script

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, SaveState
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.store import entry, recovery, state_files
from shaketable.system.store.commit_log import CommitLog, LogDamaged
from shaketable.system.store.disk import DiskFailed, replace_file
from shaketable.system.store.entry import DamagedEntry
from shaketable.system.store.segment_files import SegmentFiles
from shaketable.system.store.state_files import DurableWatermark

WORK = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from((0, 60, 300))),
    st.tuples(st.just("truncate"), st.integers(0, 8)),
    st.tuples(st.just("compact"), st.integers(0, 6)),
    st.tuples(st.just("install"), st.sampled_from(("begin", "own", "ahead")), st.integers(0, 6)),
    st.sampled_from([("sync",), ("mark",), ("vote",), ("term",), ("checkpoint",), ("member",)]),
)
LIFE = st.fixed_dictionaries(
    {
        "work": st.lists(WORK, max_size=8),
        "operations": st.none() | st.integers(1, 60),
        "failing_sync": st.none() | st.integers(0, 15),
        "power_loss": st.booleans(),
        "seed": st.integers(0, 7),
    }
)
LIVES = st.lists(LIFE, min_size=1, max_size=4)
QUIET = {"work": [], "operations": None, "failing_sync": None, "power_loss": True, "seed": 0}
CUTS = st.tuples(st.integers(0, 15), st.integers(0, 15)).map(
    lambda drawn: [
        QUIET | {"work": [("append", 4, 0), ("sync",), ("mark",)]},
        QUIET | {"work": [("truncate", 2)], "failing_sync": drawn[0], "power_loss": False},
        QUIET | {"seed": drawn[1]},
    ]
)
"""Some of LIVES: an fsync fails around a truncation. The rarest of the planted bugs needs it."""


def do(script: Script, work: tuple) -> None:
    """Do one piece of work."""
    log, now = script.log, script.now
    term = max(now.state.term, log.end.term, 0)
    match work:
        case ("append", count, body_bytes):
            script.append(count, term, body_bytes=body_bytes, syncs=False)
        case ("member",):
            members = Membership(("n0", f"n{script.bodies + 1}"))
            script.append(1, term, syncs=False, membership=members)
        case ("truncate", back):
            script.truncate(max(log.start.index, log.end.index - back))
        case ("compact", back):
            script.compact(max(log.start.index, log.end.index - back))
        case ("install", where, count):
            script.install(place(log, where, count, term))
        case ("sync",):
            script.sync()
        case ("mark",):
            script.mark()
        case ("checkpoint",):
            script.checkpoint()
        case ("vote",) | ("term",):
            term = now.state.term + (work == ("term",))
            script.write(SaveState(term, f"n{term % 3}" if work == ("vote",) else None))


def place(log: CommitLog, where: str, count: int, term: int) -> LogEnd:
    """Where a snapshot to install stands."""
    if where == "begin":
        return log.start
    if where == "own":
        return log.log_end_at(max(log.start.index, log.end.index - count))
    end = log.end
    return LogEnd(end.index + count + 1, term, end.position + 100 + 333 * count, count)


def run(lives: list[dict]) -> None:
    """Live all lives; raises AssertionError where a promise is broken or a start fails."""
    script = Script(SimDisk(), with_plain=False, may=[Promise(LogEnd())])
    for life in [*lives, QUIET]:
        disk = script.disk
        platter = disk.platter
        if life["operations"] is not None:
            platter.stop_at = platter.operations + life["operations"]
        platter.on_operation = None
        if life["failing_sync"] is not None:
            platter.on_operation = FailingSync(life["failing_sync"], platter=platter)
        is_open = False
        try:
            script.open()
            is_open = True
            script.may = [check(script.log, script.may, disk)]
            for work in life["work"]:
                do(script, work)
        except LogDamaged as error:
            raise AssertionError(f"a start failed: {error}") from error
        except DamagedEntry as error:
            raise AssertionError(f"a damaged entry counts: {error}") from error
        except PowerLoss:
            pass
        except DiskFailed:
            if is_open:
                for call in (script.log.sync, lambda: script.log.log_end_at(-1)):
                    with pytest.raises(DiskFailed):
                        call()
        platter.sync_failures = 0
        script.disk = disk.restart(loses_unsynced=life["power_loss"], rng=Random(life["seed"]))


@settings(max_examples=300, deadline=None)
@given(lives=LIVES)
def test_whatever_crashes_the_promises_hold(lives):
    run(lives)


def unlowered_mark():
    """Truncate without lowering the durable watermark first."""
    real = DurableWatermark.move

    def move(self, end, cut_until=0):
        if end.index >= self.record.end.index:
            real(self, end, cut_until)

    return patch.object(DurableWatermark, "move", move)


def tail_left_standing():
    """Truncate in memory only, as DLedger does (E31)."""
    return patch.object(CommitLog, "_cut", lambda *_: None)


PROPERTIES = ("currterm", "checkpoint")
"""The files whose writing is broken here."""


def currterm_without_fsync():
    """Write the vote by rename alone, as DLedger does (E16)."""

    def replace(disk, path, data):
        if PurePosixPath(path).name not in PROPERTIES:
            replace_file(disk, path, data)
            return
        disk.create(path + ".tmp", len(data)).pwrite([data], 0)
        disk.rename(path + ".tmp", path)
        disk.sync_dir(str(PurePosixPath(path).parent))

    return patch.object(state_files, "replace_file", replace)


def currterm_without_sync_dir():
    """Fsync the vote but not its name."""

    def replace(disk, path, data):
        if PurePosixPath(path).name not in PROPERTIES:
            replace_file(disk, path, data)
            return
        file = disk.create(path + ".tmp", len(data))
        file.pwrite([data], 0)
        file.sync()
        disk.rename(path + ".tmp", path)

    return patch.object(state_files, "replace_file", replace)


def sync_that_does_nothing():
    """Acknowledge from the page cache, as DLedger does (E18)."""
    return patch.object(CommitLog, "sync", lambda self: self._check_alive())


def file_without_a_durable_name():
    """Create a data file and forget the fsync of the folder."""
    real = SegmentFiles.create

    def create(self, position):
        disk, self._disk = self._disk, Mock(wraps=self._disk)
        self._disk.sync_dir = lambda folder: None
        real(self, position)
        self._disk = disk

    return patch.object(SegmentFiles, "create", create)


def tail_trusted_from_the_page_cache():
    """Count what is read at the start as durable, as if its fsync had not failed."""
    return patch.object(SegmentFiles, "rewrite", lambda self, position, end: None)


def zeros_trusted_from_the_page_cache():
    """Forget at the start that a cut may not have reached the disk, as its fsync failed."""
    real = DurableWatermark.open.__func__

    def open_mark(cls, disk, path):
        mark = real(cls, disk, path)
        mark.record = replace(mark.record, cut_until=0)
        return mark

    return patch.object(DurableWatermark, "open", classmethod(open_mark))


def torn_tail_kept():
    """Take the end by headers alone: no CRC is checked at the start."""
    real = recovery.verify_entry

    def verify(data, at, end, position):
        try:
            return real(data, at, end, position)
        except DamagedEntry as error:
            if "Crc" not in str(error):
                raise
            _, size, index, term, _, _, chain, _, _ = entry.HEADER.unpack_from(data, at)
            return LogEnd(index, term, position + size, chain)

    return patch.object(recovery, "verify_entry", verify)


def failure_not_remembered():
    """Go on after a failed fsync."""
    return patch.object(CommitLog, "_check_alive", lambda self: None)


@pytest.mark.parametrize(
    "bug",
    [
        unlowered_mark,
        tail_left_standing,
        currterm_without_fsync,
        currterm_without_sync_dir,
        sync_that_does_nothing,
        file_without_a_durable_name,
        tail_trusted_from_the_page_cache,
        zeros_trusted_from_the_page_cache,
        torn_tail_kept,
        failure_not_remembered,
    ],
    ids=lambda bug: bug.__name__,
)
def test_random_lives_find_a_planted_bug(bug):
    def breaks(lives):
        try:
            with bug():
                run(lives)
        except (AssertionError, pytest.fail.Exception):
            return True
        return False

    find(
        CUTS if bug is zeros_trusted_from_the_page_cache else LIVES,
        breaks,
        settings=settings(
            max_examples=5000,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
        ),
    )
