"""At the end of a run: copies of one node's disk, each broken as a mistake or a fault leaves it.

A start on such a copy must be refused with one clear error; so must a batch of entries with one
bit flipped on its way. What is broken is a copy: the run itself is over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.sim import broken_files, broken_native
from shaketable.system.sim.disk import SimDisk
from shaketable.system.sim.draws import Stream
from shaketable.system.sim.folder_copy import Folder
from shaketable.system.sim.violation import Violated
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import StoreError
from shaketable.system.store.entry import DamagedEntry, iter_messages, verify_batch
from shaketable.system.store.message import DamagedMessage, decode_message

if TYPE_CHECKING:
    from shaketable.system.sim.schedule import Settings

FLIPS = 24
"""How many bits of a batch are flipped, one at a time, half of them in its first header."""
BREAKS = 6
"""How many copies of a disk are broken."""
CUTS = 8
"""How many ends a message is cut to."""
_BATCH_BYTES_MAX = 2_000
_FIELDS_BYTES = 88


def check_broken(disk: SimDisk, root: str, name: str, native: str, settings: Settings,
                 draw: Stream, *, is_upgraded: bool) -> int:  # fmt: skip
    """Start on broken copies of a node's disk; return how many there were. Raises Violated.

    `is_upgraded`: the node still has the native log that its own log goes on behind.
    """
    tried = 0
    ways = draw.sample(broken_files.WAYS, BREAKS)
    if is_upgraded:
        ways += broken_native.WAYS
    for way in ways:
        folder = Folder(disk, root, name, native, settings, draw)
        try:
            is_broken = way(folder)
        except StoreError:
            continue  # it was broken before: a fault damaged it
        if not is_broken:
            continue
        tried += 1
        try:
            folder.start()
        except StoreError as error:
            if "\n" in str(error) or len(str(error)) < len(root):
                raise Violated("broken-is-refused", f"{error!r} is no clear line", name) from error
        else:
            raise Violated("broken-is-refused", f"a node starts in spite of {way.__name__}", name)
    return tried


def check_outside(log: CommitLog, file_bytes: int) -> None:
    """Ask a log for what it does not hold: it says so. Raises Violated."""
    begin, end = log.begin, log.end
    _check_outside(lambda: log.read(end.position - 1, 2))
    _check_outside(lambda: log.read_entries(end.index + 1, 1))
    _check_outside(lambda: log.read_entries(begin.index, 1))
    _check_outside(lambda: log.log_end_at(end.index + 1))
    _check_outside(lambda: log.log_end_at(begin.index - 1))
    if log.native is not None:
        native_end, first_end = log.native.end, log.native.begin + file_bytes
        _check_outside(lambda: log.read(native_end - 1, 2))
        if first_end < native_end:
            _check_outside(lambda: log.read(first_end - 1, 2))
    elif begin.position:
        _check_outside(lambda: log.read(begin.position - 1, 1))
    last_start = (end.position - 1) // file_bytes * file_bytes
    if begin.position < last_start:
        _check_outside(lambda: log.read(last_start - 1, 2))  # of two files
    with suppress(OutsideLog):  # the file may be gone where the log's begin is another's end
        log.read(begin.position, ENTRY_HEADER_BYTES)
    if log.log_end_at(begin.index) != begin:
        raise Violated("broken-is-refused", f"the log does not begin at {begin}")


def _check_outside(ask: Callable[[], object]) -> None:
    try:
        found = ask()
    except OutsideLog:
        return
    raise Violated("broken-is-refused", f"a log returns {found!r} from outside of it")


def check_flips(log: CommitLog, draw: Stream) -> None:
    """Flip bits of a batch of a log, one at a time: each is noticed. Raises Violated."""
    if log.end.index < log.begin_index:
        return
    first = draw.randint(log.begin_index, log.end.index)
    batch = log.read_entries(first, _BATCH_BYTES_MAX)
    before = log.log_end_at(first - 1)
    verify_batch(batch, before)
    for number in range(FLIPS):
        behind = min(ENTRY_HEADER_BYTES, len(batch.data)) if number % 2 else len(batch.data)
        damaged = bytearray(batch.data)
        damaged[draw.randrange(behind)] ^= 1 << draw.randrange(8)
        _check_refused(replace(batch, data=bytes(damaged)), before)
    _check_refused(replace(batch, count=batch.count + 1), before)
    _check_refused(replace(batch, term=batch.term + 1), before)
    _check_refused(replace(batch, position=before.position - 1), before)
    _check_refused(replace(batch, first_index=batch.first_index + 1), None)
    _check_refused(replace(batch, data=batch.data[:-1]), before)
    cut = batch.data[: draw.randint(1, ENTRY_HEADER_BYTES - 1)]
    _check_refused(replace(batch, data=cut), before)
    _check_messages(batch, draw)


def _check_messages(batch: Batch, draw: Stream) -> None:
    """Break the first message of a batch as one may be that is pulled. Raises Violated."""
    _, _, position, size, _, _, _ = next(iter_messages(batch.data, batch.position))
    at = position - batch.position
    message = batch.data[at : at + size]
    decode_message(message)
    broken = [message[: draw.randrange(size)] for _ in range(CUTS)]
    broken += [message + b"\0", message[:_FIELDS_BYTES], message[: _FIELDS_BYTES // 2]]
    for byte in range(_FIELDS_BYTES - 4, _FIELDS_BYTES + 1):  # its body's length, and the body
        if byte < size:
            broken.append(message[:byte] + bytes([message[byte] ^ 0x80]) + message[byte + 1 :])
    for data in broken:
        try:
            decode_message(data)
        except DamagedMessage:
            continue
        raise Violated("broken-is-refused", f"a damaged message at {position} is taken")


def _check_refused(batch: Batch, before: LogEnd | None) -> None:
    try:
        verify_batch(batch, before)
    except DamagedEntry:
        return
    raise Violated("broken-is-refused", f"a damaged batch from {batch.first_index} on is taken")
