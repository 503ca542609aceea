"""Writes the segments of a large run fast: linearizable cas-registers, five clients a key.

Every key has clients of its own, a process each. An operation takes effect at a moment
between its call and its return, so the history is linearizable from the value 0 on.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from shaketable.harness.history import event_kernels
from shaketable.harness.history.segments import MAGIC

CLIENTS_PER_KEY = 5
WORKERS = 4
VALUES = 5
TICK_NS = 1_000_000
"""Time between two calls about one key."""
LONGEST_TICKS = 4.5
"""Operations last up to that; a client is free again after CLIENTS_PER_KEY ticks."""
EVENTS_PER_BLOCK = 1_000_000
FRAME_BYTES_MAX = 128

_crc32 = event_kernels._crc32


@numba.njit(nogil=True, cache=True)
def _put_number(out: Any, at: int, value: int) -> int:
    if value < 128:
        out[at] = value
        return at + 1
    width, code = 8, 0xCF
    if value < 1 << 8:
        width, code = 1, 0xCC
    elif value < 1 << 16:
        width, code = 2, 0xCD
    elif value < 1 << 32:
        width, code = 4, 0xCE
    out[at] = code
    for place in range(width):
        out[at + 1 + place] = (value >> (8 * (width - 1 - place))) & 0xFF
    return at + 1 + width


@numba.njit(nogil=True, cache=True)
def _put_text(out: Any, at: int, text: Any) -> int:
    out[at] = 0xA0 | len(text)
    for place in range(len(text)):
        out[at + 1 + place] = text[place]
    return at + 1 + len(text)


@numba.njit(nogil=True, cache=True)
def _take_effect(operation: Any, f: int, key: int, registers: Any) -> None:
    """Do a read (0), write (1) or cas (2); its input, expected and output stand side by side."""
    value = registers[key]
    if f == 1:
        registers[key] = operation[0]
    elif f == 0:
        operation[2] = value
    else:
        operation[2] = 1 if value == operation[1] else 0
        if value == operation[1]:
            registers[key] = operation[0]


@numba.njit(nogil=True, cache=True)
def _put_key(out: Any, at: int, key: int) -> int:
    """Write a key's name: k and five digits."""
    out[at] = 0xA6
    out[at + 1] = 0x6B
    for digit in range(4, -1, -1):
        out[at + 2 + digit] = 0x30 + key % 10
        key //= 10
    return at + 7


@numba.njit(nogil=True, cache=True)
def _put_answer(out: Any, at: int, operation: Any, f: int, node: Any) -> int:
    """Write the fields behind the key of an end."""
    out[at] = 0xC0
    at += 1
    if f == 1:
        out[at] = 0xC0
        at += 1
    else:
        at = _put_number(out, at, operation[2])
    out[at] = out[at + 1] = 0xC0
    at = _put_text(out, at + 2, node)
    out[at] = out[at + 1] = 0xC0
    return at + 2


@numba.njit(nogil=True, cache=True)
def _put_question(out: Any, at: int, operation: Any, f: int) -> int:
    """Write the fields behind the key of an invoke."""
    if f == 0:
        out[at] = 0xC0
        at += 1
    else:
        at = _put_number(out, at, operation[0])
    out[at : at + 5] = 0xC0
    at += 5
    if f == 2:
        return _put_number(out, at, operation[1])
    out[at] = 0xC0
    return at + 1


@numba.njit(nogil=True, cache=True)
def _seal(out: Any, begin: int, end: int) -> None:
    """Write the head of the frame whose payload ends at `end`."""
    size = end - begin - 9
    out[begin] = 1
    for digit in range(4):
        out[begin + 1 + digit] = (size >> (8 * (3 - digit))) & 0xFF
    crc = _crc32(out, begin, begin + 5, 0xFFFFFFFF)
    crc = _crc32(out, begin + 9, end, crc) ^ 0xFFFFFFFF
    for digit in range(4):
        out[begin + 5 + digit] = (crc >> (8 * (3 - digit))) & 0xFF


@numba.njit(nogil=True, cache=True)
def _encode(events: Any, operations: Any, registers: Any, words: Any, out: Any, last: int) -> Any:
    """Carry out events in order of time, write the frames; return where they end, and when.

    Args:
        events: time, kind (0 call, 1 effect, 2 return) and operation of each.
        operations: input, expected, output, process, key and f (0 read, 1 write, 2 cas) of each.
        registers: the value of each key.
        words: WORDS.
        out: receives the frames.
        last: the time of the last event written before.
    """
    at = 0
    for place in range(len(events)):
        time, kind = events[place, 0], events[place, 1]
        operation = operations[events[place, 2]]
        key, f = operation[4], operation[5]
        if kind == 1:
            _take_effect(operation, f, key, registers)
            continue
        last = max(last + 1, time)
        begin = at
        out[at + 9] = 0x9C
        at = _put_number(out, at + 10, last)
        at = _put_number(out, at, operation[3])
        at = _put_text(out, at, words[3] if kind == 0 else words[4])
        at = _put_key(out, _put_text(out, at, words[f]), key)
        if kind == 0:
            at = _put_question(out, at, operation, f)
        else:
            at = _put_answer(out, at, operation, f, words[5])
        _seal(out, begin, at)
    return at, last


WORDS = tuple(
    np.frombuffer(word, np.uint8).copy()
    for word in (b"read", b"write", b"cas", b"invoke", b"ok", b"n0")
)


def write_segments(folder: Path, operations: int, keys: int, seed: int = 1) -> list[Path]:
    """Write WORKERS closed segments of about that many operations; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for worker in range(WORKERS):
        mine = np.arange(worker, keys, WORKERS)
        paths.append(folder / f"worker-{worker}.seg")
        _write(paths[-1], mine, operations // keys, np.random.default_rng((seed, worker)), keys)
    return paths


def _write(path: Path, keys: Any, per_key: int, rng: Any, keys_total: int) -> None:
    registers = np.zeros(keys_total, np.int64)
    width = max(1, min(per_key, EVENTS_PER_BLOCK // (2 * len(keys))))
    phase = rng.integers(0, TICK_NS, len(keys))
    events, operations = np.empty((0, 3), np.int64), np.empty((0, 6), np.int64)
    last, written = -1, 0
    with path.open("wb") as file:
        file.write(MAGIC)
        for first in range(0, per_key, width):
            number = np.arange(first, min(first + width, per_key))
            fresh, more = _block(keys, number, phase, rng)
            fresh[:, 2] += len(operations)
            events = np.concatenate([events, fresh])
            operations = np.concatenate([operations, more])
            is_last = number[-1] + 1 == per_key
            is_now = events[:, 0] < (1 << 62 if is_last else (number[-1] + 1) * TICK_NS)
            now = events[is_now]
            now = now[np.argsort(now[:, 0], kind="stable")]
            out = np.empty(len(now) * FRAME_BYTES_MAX, np.uint8)
            end, last = _encode(now, operations, registers, WORDS, out, last)
            file.write(out[:end].data)
            written += int((now[:, 1] != 1).sum())
            # What is under way goes on in the next block.
            events = events[~is_now]
            still, events[:, 2] = np.unique(events[:, 2], return_inverse=True)
            operations = operations[still]
        head = struct.pack(">BI", 2, 8)
        payload = struct.pack(">Q", written)
        crc = zlib.crc32(payload, zlib.crc32(head))
        file.write(head + struct.pack(">I", crc) + payload)


def _block(keys: Any, number: Any, phase: Any, rng: Any) -> tuple[Any, Any]:
    """Draw the events and operations of these numbers of all keys."""
    size = len(keys) * len(number)
    call = (number * TICK_NS + phase[:, None]).ravel() + rng.integers(0, TICK_NS // 4, size)
    lasts = rng.integers(1000, int((LONGEST_TICKS - 0.25) * TICK_NS), size)
    effect = call + (lasts * rng.random(size)).astype(np.int64)
    operations = np.empty((size, 6), np.int64)
    operations[:, :2] = rng.integers(0, VALUES, (size, 2))
    operations[:, 2] = 0
    operations[:, 4] = np.repeat(keys, len(number))
    clients = np.tile(number % CLIENTS_PER_KEY, len(keys))
    operations[:, 3] = operations[:, 4] * CLIENTS_PER_KEY + clients
    operations[:, 5] = rng.choice(3, size, p=[0.5, 0.3, 0.2])
    events = np.empty((3 * size, 3), np.int64)
    events[:, 0] = np.concatenate([call, effect, call + lasts])
    events[:, 1] = np.repeat([0, 1, 2], size)
    events[:, 2] = np.tile(np.arange(size), 3)
    return events, operations
