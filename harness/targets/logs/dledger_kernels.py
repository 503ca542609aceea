"""Decode the intact entries of a DLedger data file, compiled: the fast path of dledger_files.

A kernel decodes entry after entry as long as everything about them is valid, and stops at the first
that is not: the slow path reports what is wrong with it. Every CRC is checked: of the header with
the chain, of the body, and of the payload.

Source: DLEDGER.md sections B.1 and B.3; the CRC by "slicing", M. Kounavis and F. Berry, A
Systematic Approach to Building High Performance Software-Based CRC Generators, ISCC 2005.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Compiled: a log of 10 GB has 30 million entries, and Python decodes 0.1 million a second.
from shaketable.harness.compiled import compiled

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HAS_ENTRY, HAS_KEY, HAS_VALUE = 1, 2, 4
"""Bits of a row's `flags`: it has an entry's term, size and crc; a key and offset; a value."""

ENTRY_BYTES_MIN = 139
NO_KEY = -1

_SLICES = 16
_CRC32_POLYNOMIAL = 0xEDB88320
_U8 = np.uint64
_U4 = np.uint32
_ALL = np.uint32(0xFFFFFFFF)
_LOW = np.uint32(255)
_V1, _V2 = -626843481, -626843477
_HOSTS_V6 = 16, 32
_INT64_MAX = np.uint64(2**63 - 1)


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return the slicing tables: row k holds the CRC of each byte followed by k zero bytes."""
    tables = np.zeros((_SLICES, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CRC32_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, _SLICES):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_T = _crc_tables()


@compiled
def crc32(data: Bytes, start: int, stop: int, crc: int) -> int:
    """Return the CRC-32 of data[start:stop], continued from `crc`, as zlib.crc32 does."""
    # Unsigned indices let the compiler skip the check for negative ones.
    at, end = _U8(start), _U8(stop)
    c = _U4(crc) ^ _ALL
    while at + _U8(16) <= end:
        c ^= (
            _U4(data[at])
            | (_U4(data[at + _U8(1)]) << _U4(8))
            | (_U4(data[at + _U8(2)]) << _U4(16))
            | (_U4(data[at + _U8(3)]) << _U4(24))
        )
        c = (
            _T[15, c & _LOW]
            ^ _T[14, (c >> _U4(8)) & _LOW]
            ^ _T[13, (c >> _U4(16)) & _LOW]
            ^ _T[12, c >> _U4(24)]
            ^ _T[11, data[at + _U8(4)]]
            ^ _T[10, data[at + _U8(5)]]
            ^ _T[9, data[at + _U8(6)]]
            ^ _T[8, data[at + _U8(7)]]
            ^ _T[7, data[at + _U8(8)]]
            ^ _T[6, data[at + _U8(9)]]
            ^ _T[5, data[at + _U8(10)]]
            ^ _T[4, data[at + _U8(11)]]
            ^ _T[3, data[at + _U8(12)]]
            ^ _T[2, data[at + _U8(13)]]
            ^ _T[1, data[at + _U8(14)]]
            ^ _T[0, data[at + _U8(15)]]
        )
        at += _U8(16)
    while at < end:
        c = _T[0, (c ^ _U4(data[at])) & _LOW] ^ (c >> _U4(8))
        at += _U8(1)
    return int(np.int64(c ^ _ALL))


@compiled
def _i32(data: Bytes, at: int) -> int:
    a = _U8(at)
    value = (
        (_U4(data[a]) << _U4(24))
        | (_U4(data[a + _U8(1)]) << _U4(16))
        | (_U4(data[a + _U8(2)]) << _U4(8))
        | _U4(data[a + _U8(3)])
    )
    return int(np.int64(np.int32(value)))


@compiled
def _i64(data: Bytes, at: int) -> int:
    return (_i32(data, at) << 32) | (_i32(data, at + 4) & 0xFFFFFFFF)


@compiled
def _link(stored: int) -> int:
    """Return the CRC of a stored CRC's four bytes: the start value of the next chainCrc."""
    c = _ALL
    for shift in (24, 16, 8, 0):
        byte = _U4((stored >> shift) & 255)
        c = _T[0, (c ^ byte) & _LOW] ^ (c >> _U4(8))
    return int(np.int64(c ^ _ALL))


@compiled
def _sound_header(data: Bytes, at: int, end: int, position: int, index: int, link: int) -> int:
    """Return the size of the entry at `at` if its header is valid, else 0."""
    if end - at < ENTRY_BYTES_MIN or _i32(data, at) != 1:
        return 0
    size = _i32(data, at + 4)
    if size < ENTRY_BYTES_MIN or size > end - at or _i32(data, at + 44) != size - 48:
        return 0
    if _i64(data, at + 8) != index or _i64(data, at + 24) != position:
        return 0
    channel = _i32(data, at + 32)
    if channel != 0 and channel != 1:  # noqa: PLR1714 - a tuple costs a loop here
        return 0
    chain = crc32(data, at + 40, at + 48, crc32(data, at, at + 36, link))
    return size if chain == (_i32(data, at + 36) & 0xFFFFFFFF) else 0


@compiled
def skim(data: Bytes, at: int, start: int, index: int, link: int) -> tuple[int, int, int]:
    """Skip entries with valid headers; return (at, index, link) after the last one."""
    end = len(data)
    while True:
        size = _sound_header(data, at, end, start + at, index, link)
        if size == 0:
            return at, index, link
        link = _link(_i32(data, at + 36) & 0xFFFFFFFF)
        index += 1
        at += size


@compiled
def hash_key(name: Bytes, start: int, length: int, queue_id: int) -> int:
    """Hash a topic's bytes and a queue id (FNV-1a)."""
    h = _U8(14695981039346656037) ^ _U8(queue_id & 0xFFFFFFFF)
    for n in range(length):
        h = (h ^ _U8(name[_U8(start + n)])) * _U8(1099511628211)
    return int(np.int64((h ^ (h >> _U8(32))) & _U8(0x7FFFFFFF)))


@compiled
def find_key(
    name: Bytes, start: int, length: int, queue_id: int, slots: Ints, known: Ints, arena: Bytes
) -> int:
    """Return the number of a key in the table (see `dledger_files.Keys`), or NO_KEY."""
    mask = len(slots) - 1
    slot = hash_key(name, start, length, queue_id) & mask
    while slots[slot] >= 0:
        code = int(slots[slot])
        if known[code, 1] == length and known[code, 2] == queue_id:
            at, n = int(known[code, 0]), 0
            while n < length and name[_U8(start + n)] == arena[_U8(at + n)]:
                n += 1
            if n == length:
                return code
        slot = (slot + 1) & mask
    return NO_KEY


@compiled
def value_of(data: Bytes, start: int, length: int) -> tuple[int, bool]:
    """Return the decimal number at the start of a payload, and whether there is one."""
    n = 0
    is_negative = length > 0 and data[_U8(start)] == 45  # "-"
    if is_negative:
        n = 1
    first = n
    number = _U8(0)
    while n < length and 48 <= data[_U8(start + n)] <= 57 and n - first < 20:
        number = number * _U8(10) + _U8(data[_U8(start + n)] - 48)
        n += 1
    if n == first or n - first > 19 or (n < length and data[_U8(start + n)] != 32):
        return 0, False
    if is_negative:
        if number > _INT64_MAX + _U8(1):
            return 0, False
        return -int(np.int64(number)), True
    if number > _INT64_MAX:
        return 0, False
    return int(np.int64(number)), True


@compiled
def _payload(data: Bytes, body: int, total: int) -> tuple[int, int, int, int]:
    """Return (payload, its length, topic, its length) of the message at `body`; -1 if invalid."""
    none = (-1, 0, 0, 0)
    magic = _i32(data, body + 4)
    if _i32(data, body) != total or (magic != _V1 and magic != _V2):  # noqa: PLR1714
        return none
    sysflag = _i32(data, body + 36)
    length_at = 84
    for bit in _HOSTS_V6:
        if sysflag & bit:
            length_at += 12
    if length_at + 4 > total:
        return none
    length = _i32(data, body + length_at)
    topic_length_bytes = 1 if magic == _V1 else 2
    topic_at = length_at + 4 + length + topic_length_bytes
    if length < 0 or topic_at > total:
        return none
    topic_length = int(data[_U8(body + topic_at - 1)])
    if topic_length_bytes == 2:
        topic_length |= int(data[_U8(body + topic_at - 2)]) << 8
    topic_end = topic_at + topic_length
    if topic_end + 2 > total:
        return none
    properties = (int(data[_U8(body + topic_end)]) << 8) | int(data[_U8(body + topic_end + 1)])
    if topic_end + 2 + properties != total:
        return none
    return body + length_at + 4, length, body + topic_at, topic_length


@compiled
def decode(
    data: Bytes,
    at: int,
    start: int,
    index: int,
    link: int,
    table: tuple[Ints, Ints, Bytes],
    batch: tuple[Ints, Bytes],
    row: int,
) -> tuple[int, int, int, int]:
    """Decode valid entries from `at` on; return (at, index, link, row) after the last one.

    Args:
        data: the file's bytes.
        at: where in it the next entry starts.
        start: the file's position in the log.
        index: the next entry's index.
        link: the start value of its chainCrc.
        table: the known keys: slots (see `find_key`); for each key its place in the arena, length,
            queue and whether it is a user's; the arena: the bytes of their topics.
        batch: eight columns, index, term, position, size, crc, key, offset, value; and HAS_... of
            each row.
        row: the first free row; decoding stops when there is none.
    """
    end = len(data)
    slots, known, arena = table
    out, flags = batch
    while row < len(flags):
        size = _sound_header(data, at, end, start + at, index, link)
        if size == 0:
            break
        body = at + 48
        total = size - 48
        crc = crc32(data, body, at + size, 0)
        if crc != (_i32(data, at + 40) & 0xFFFFFFFF):
            break
        payload, length, topic, topic_length = _payload(data, body, total)
        if payload < 0 or _i64(data, body + 28) != start + body:
            break
        offset = _i64(data, body + 20)
        payload_crc = crc32(data, payload, payload + length, 0) & 0x7FFFFFFF
        if payload_crc != _i32(data, body + 8) or offset < 0:
            break
        key = find_key(data, topic, topic_length, _i32(data, body + 12), slots, known, arena)
        if key < 0:
            break
        flag = HAS_ENTRY
        if known[key, 3] == 1:
            value, has_value = value_of(data, payload, length)
            flag |= HAS_KEY
            if has_value:
                flag |= HAS_VALUE
            out[5, row] = key
            out[6, row] = offset
            out[7, row] = value
        out[0, row] = index
        out[1, row] = _i64(data, at + 16)
        out[2, row] = start + at
        out[3, row] = size
        out[4, row] = crc
        flags[row] = flag
        row += 1
        link = _link(_i32(data, at + 36) & 0xFFFFFFFF)
        index += 1
        at += size
    return at, index, link, row
