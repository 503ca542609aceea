"""The key index's hashes, computed for many messages at once.

A checkpoint has tens of thousands of keys; one by one they would take a third of a follower's
time, and the interpreter lock from the node's own thread (measured with tests/benchmarks).
Source: RocketMQ's IndexService.buildKey and IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shaketable.system.store.message import UNIQ_KEY, find_property, java_hash, keys_in

KeyItem = tuple[bytes, bytes, int, int]
"""A message that may have keys: topic, properties, position in the log, store time in ms."""

_KEYS_NAME = b"KEYS"
_BYTES_AT_ONCE = 1 << 18
"""Bytes of keys that are hashed in one step, which takes about ten times as much memory."""


class HashedKeys(NamedTuple):
    """Keys of messages in log order: hash (not negative), position, store time in ms."""

    hashes: NDArray[np.int32]
    positions: NDArray[np.int64]
    store_ms: NDArray[np.int64]

    def part(self, start: int, stop: int) -> HashedKeys:
        """Return keys `start` to `stop` (exclusive)."""
        hashes, positions, store_ms = self
        return HashedKeys(hashes[start:stop], positions[start:stop], store_ms[start:stop])


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the hash of an item: of "topic#key", not negative (IndexService)."""
    code = abs(java_hash(key, java_hash(topic + b"#")))
    return code if code < 1 << 31 else 0  # Math.abs(Integer.MIN_VALUE) is negative: 0


def hashed_keys(items: Sequence[KeyItem]) -> HashedKeys:
    """Return each message's UNIQ_KEY and each of its KEYS, hashed with its topic."""
    keys: list[bytes] = []
    owners: list[KeyItem] = []
    for item in items:
        properties = item[1]
        if _KEYS_NAME in properties:
            for key in keys_in(properties):
                keys.append(key)
                owners.append(item)
        elif unique := find_property(properties, UNIQ_KEY):
            keys.append(unique)
            owners.append(item)
    topics = [item[0] for item in owners]
    count = len(owners)
    return HashedKeys(
        _hashes(topics, keys),
        np.fromiter((item[2] for item in owners), np.int64, count),
        np.fromiter((item[3] for item in owners), np.int64, count),
    )


def _hashes(topics: list[bytes], keys: list[bytes]) -> NDArray[np.int32]:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    fronts = {topic: java_hash(topic + b"#") & 0xFFFFFFFF for topic in set(topics)}
    codes = np.fromiter((fronts[topic] for topic in topics), np.uint32, len(keys))
    for length in np.unique(lengths).tolist():
        of_length = np.flatnonzero(lengths == length)
        powers = _powers(length)
        at_once = max(1, _BYTES_AT_ONCE // length)
        for first in range(0, len(of_length), at_once):
            part = of_length[first : first + at_once]
            text = b"".join([keys[number] for number in part.tolist()])
            units = np.frombuffer(text, np.uint8).reshape(-1, length).astype(np.uint32)
            codes[part] = codes[part] * powers[0] + units @ powers[1:]
    hashes = np.abs(codes.view(np.int32))
    hashes[hashes < 0] = 0  # as Math.abs(Integer.MIN_VALUE)
    for number, key in enumerate(keys):
        if not key.isascii():  # Java hashes UTF-16 code units
            hashes[number] = key_hash(topics[number], key)
    return hashes


def _powers(length: int) -> NDArray[np.uint32]:
    """Return 31**length down to 31**0, modulo 2**32."""
    powers = [1]
    for _ in range(length):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return np.array(powers[::-1], np.uint32)
