"""At the end of a run: starts on copies of one node's disk that are broken.

Such a start must be refused with one clear error; so must a batch of entries with a bit flipped in
transit. Only copies are broken: the run itself is over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.sim.broken_starts import broken_files
from shaketable.system.sim.broken_starts.folder_copy import Folder
from shaketable.system.sim.disks.disk import Platter, SimDisk
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.schedules.random_streams import RandomStream
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import StoreError
from shaketable.system.store.entry import DamagedEntry, iter_messages, verify_batch
from shaketable.system.store.message import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    DamagedMessage,
    decode_message,
)

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.schedule import Settings


FLIPS = 24
"""Bits of a batch that are flipped, one at a time, half of them in its first header."""
BREAKS = 6
"""Number of broken copies of a disk."""
CUTS = 8
"""Number of lengths that a message is truncated to."""
_BATCH_BYTES_MAX = 2_000
_FIELDS_BYTES = 88


def check_broken_starts(disk: SimDisk, root: str, name: str, native: str, settings: Settings,
                 rng: RandomStream, *, is_upgraded: bool) -> int:  # fmt: skip
    """Start on broken copies of a node's disk; return how many there were. Raises Violated.

    `is_upgraded`: the node still has the native log before its own log.
    """
    tried = 0
    ways = rng.sample(broken_files.WAYS, BREAKS)
    if is_upgraded:
        ways += WAYS
    for way in ways:
        folder = Folder(disk, root, name, native, settings, rng)
        try:
            is_broken = way(folder)
        except StoreError:
            continue  # a fault had damaged it before
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


def check_out_of_range(log: CommitLog, file_bytes: int) -> None:
    """Check that a log refuses reads outside its range. Raises Violated."""
    begin, end = log.start, log.end
    _check_out_of_range(lambda: log.read(end.position - 1, 2))
    _check_out_of_range(lambda: log.read_entries(end.index + 1, 1))
    _check_out_of_range(lambda: log.read_entries(begin.index, 1))
    _check_out_of_range(lambda: log.log_end_at(end.index + 1))
    _check_out_of_range(lambda: log.log_end_at(begin.index - 1))
    if log.native is not None:
        native_end, first_end = log.native.end, log.native.start + file_bytes
        _check_out_of_range(lambda: log.read(native_end - 1, 2))
        if first_end < native_end:
            _check_out_of_range(lambda: log.read(first_end - 1, 2))
    elif begin.position:
        _check_out_of_range(lambda: log.read(begin.position - 1, 1))
    last_start = (end.position - 1) // file_bytes * file_bytes
    if begin.position < last_start:
        _check_out_of_range(lambda: log.read(last_start - 1, 2))  # spans two files
    with suppress(OutsideLog):  # the file may be gone if the log starts at its end
        log.read(begin.position, ENTRY_HEADER_BYTES)
    if log.log_end_at(begin.index) != begin:
        raise Violated("broken-is-refused", f"the log does not begin at {begin}")


def _check_out_of_range(ask: Callable[[], object]) -> None:
    try:
        found = ask()
    except OutsideLog:
        return
    raise Violated("broken-is-refused", f"a log returns {found!r} from outside of it")


def check_bit_flips(log: CommitLog, rng: RandomStream) -> None:
    """Check that each flipped bit of a batch is detected. Raises Violated."""
    if log.end.index < log.first_index:
        return
    first = rng.randint(log.first_index, log.end.index)
    batch = log.read_entries(first, _BATCH_BYTES_MAX)
    before = log.log_end_at(first - 1)
    verify_batch(batch, before)
    for number in range(FLIPS):
        flip_end = min(ENTRY_HEADER_BYTES, len(batch.data)) if number % 2 else len(batch.data)
        damaged = bytearray(batch.data)
        damaged[rng.randrange(flip_end)] ^= 1 << rng.randrange(8)
        _check_refused(replace(batch, data=bytes(damaged)), before)
    _check_refused(replace(batch, count=batch.count + 1), before)
    _check_refused(replace(batch, term=batch.term + 1), before)
    _check_refused(replace(batch, position=before.position - 1), before)
    _check_refused(replace(batch, first_index=batch.first_index + 1), None)
    _check_refused(replace(batch, data=batch.data[:-1]), before)
    cut = batch.data[: rng.randint(1, ENTRY_HEADER_BYTES - 1)]
    _check_refused(replace(batch, data=cut), before)
    _check_messages(batch, rng)


def _check_messages(batch: Batch, rng: RandomStream) -> None:
    """Check that a damaged message, as a pull may return one, is refused. Raises Violated."""
    _, _, position, size, _, _, _ = next(iter_messages(batch.data, batch.position))
    at = position - batch.position
    message = batch.data[at : at + size]
    decode_message(message)
    broken = [message[: rng.randrange(size)] for _ in range(CUTS)]
    broken += [message + b"\0", message[:_FIELDS_BYTES], message[: _FIELDS_BYTES // 2]]
    for byte in range(_FIELDS_BYTES - 4, _FIELDS_BYTES + 1):
        # the body's length, and its first byte
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


# Ways to break a native commit log that every start, or upgrade, must detect.

Way = Callable[[Folder], bool]

_I32 = struct.Struct(">i")
_SYS_FLAG_AT = 36
_POSITION_AT = 28
_BODY_LENGTH_AT = 84
_V6_MORE_BYTES = 12
_CUT_OFF_BYTES = 20
_USED_BYTES_MIN = 1_000
"""A file with so many written bytes holds several messages."""


def not_named(folder: Folder) -> bool:
    """Start an upgraded log without the name of the native log's folder."""
    folder.native = None
    return True


def gone(folder: Folder) -> bool:
    """Lose the native log's last file."""
    native = folder.open().native
    assert native is not None
    start = native.end - folder.data_file_bytes
    folder.disk.platter.lose_file(f"{folder.native_folder}/{start:020}")
    return True


def of_other_size(folder: Folder) -> bool:
    """Give a native file another size than the others."""
    path = folder.native_paths()[0]
    folder.disk.platter.truncate_file(path, folder.data_file_bytes - 1)
    return True


def _damaging(damage: Callable[[Platter, str, int], None], *, is_new: bool) -> Way:
    """Return a way to damage the first message, and perhaps the second.

    With `is_new` before an upgrade; else after it, where the damage is detected when the messages'
    queues are built.
    """

    def way(folder: Folder) -> bool:
        path = folder.native_paths()[0]
        platter = folder.disk.platter
        if platter.written_size(path) < _USED_BYTES_MIN:
            return False
        second_at = _number(platter, path, 0)
        damage(platter, path, folder.data_file_bytes)
        if folder.rng.chance(0.5):
            platter.flip_bit(path, second_at + _body_at(platter, path, second_at))
        if is_new:
            folder.disk.create(f"{folder.native_folder}/lock", 0).close()  # not a file of the log
            folder.name = "new"
        return True

    way.__name__ = f"{'before' if is_new else 'after'} its upgrade{damage.__name__}"
    return way


def _no_magic(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, 5)


def _no_size(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, 0)


def _too_small(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _CUT_OFF_BYTES)


def _too_large(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _number(platter, path, 0) + 1)


def _to_the_end(platter: Platter, path: str, file_bytes: int) -> None:
    _put(platter, path, 0, file_bytes)


def _elsewhere(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _POSITION_AT + 7)


def _other_body(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _body_at(platter, path, 0))


def _long_body(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, _body_at(platter, path, 0) - 4, 1 << 20)


_DAMAGES: tuple[Callable[[Platter, str, int], None], ...] = (
    _no_magic,
    _no_size,
    _too_small,
    _too_large,
    _to_the_end,
    _elsewhere,
    _other_body,
    _long_body,
)


def _number(platter: Platter, path: str, at: int) -> int:
    found: int = _I32.unpack_from(platter.inodes[path].view, at)[0]
    return found


def _put(platter: Platter, path: str, at: int, number: int) -> None:
    _I32.pack_into(platter.inodes[path].view, at, number)


def _body_at(platter: Platter, path: str, at: int) -> int:
    """Return the offset of the body within the message at byte `at`."""
    sys_flag = _number(platter, path, at + _SYS_FLAG_AT)
    hosts = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return _BODY_LENGTH_AT + 4 + hosts * _V6_MORE_BYTES


WAYS: tuple[Way, ...] = (
    not_named,
    gone,
    of_other_size,
    *[_damaging(damage, is_new=is_new) for damage in _DAMAGES for is_new in (True, False)],
)
"""Each returns False where it finds nothing to break. Raises StoreError on a damaged log."""
