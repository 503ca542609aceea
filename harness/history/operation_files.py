"""Write operations as Parquet files by key, as the check needs them, so nothing is sorted again.

Rows are partitioned as they come into parts, each a range of keys. Parts are held in memory, or on
disk if they grow too large; at the end each is sorted and written. Every file's footer states its
keys (`FileKeys`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.harness.history.order_kernels import distinct, gather, scatter
from shaketable.harness.history.schema import (
    NO_TEXT,
    OPERATION_NUMBERS,
    OPERATION_ROW,
    OPERATION_TEXTS,
    OPERATIONS,
)

OPERATIONS_PER_FILE_MAX = 250_000
"""Rows of an operations file; a key with more has files of its own."""
FILLED = 0.9
"""Target fill of a part's file, so that few parts need a second, small one."""
HELD_BYTES_MAX = 192 << 20
"""Rows of all parts held in memory, in bytes; more are spilled to disk."""
RANK_BITS = 22
"""Bits of the key's rank in a combined sort key: 4 million keys in a part."""
KEYS_IN_FOOTER = b"shaketable.keys"
COMPRESSION = "lz4"

Rows = npt.NDArray[Any]


class FileKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a file of operations. Rows are sorted by key, then by call_ns.

    Attributes:
        first: its first key; a null key sorts first.
        last: its last key.
        keys: the number of its keys.
        is_begun: the previous file has rows of `first` too.
        is_cut: the next file has rows of `last` too.
    """

    first: str | None
    last: str | None
    keys: int
    is_begun: bool
    is_cut: bool


def read_keys(metadata: Any) -> FileKeys | None:
    """Return the keys stated in a file's footer; None for a file of other origin.

    Args:
        metadata: pyarrow's FileMetaData.
    """
    text = (metadata.metadata or {}).get(KEYS_IN_FOOTER)
    return None if text is None else msgspec.json.decode(text, type=FileKeys)


class OperationParts:
    """Takes OPERATION_ROWs in any order and number, and writes them by key.

    Args:
        scratch: an existing folder for what does not fit into memory.
        rows_expected: estimated number of rows; decides on the number of parts.
    """

    def __init__(self, scratch: Path, rows_expected: int) -> None:
        self._scratch = scratch
        self._rows_expected = rows_expected
        self._firsts: list[str] = []  # the least key of each part but the first
        self._part_of_key = np.zeros(0, np.int32)
        self._blocks: list[tuple[Rows, npt.NDArray[np.int64]]] = []
        self._held_bytes = 0
        self._is_spilled = False

    def add(self, rows: Sequence[Rows], texts: Sequence[str]) -> None:
        """Add rows whose texts are numbers of `texts`."""
        for some in rows:
            if not len(some):
                continue
            if not len(self._part_of_key):
                self._firsts = _choose_parts(some, texts, self._rows_expected)
            self._know_keys(texts)
            out = np.empty(len(some), OPERATION_ROW)
            starts = np.empty(len(self._firsts) + 2, np.int64)
            scatter(some, self._part_of_key, starts, out)
            self._blocks.append((out, starts))
            self._held_bytes += out.nbytes
        if self._held_bytes > HELD_BYTES_MAX:
            self._spill()

    def write(self, folder: Path, texts: Sequence[str], pool: Executor) -> None:
        """Write all parts into `folder`, numbered in key order.

        Raises:
            OSError: a file cannot be written.
        """
        self._know_keys(texts)
        ranks = _key_ranks(texts)
        parts = range(len(self._firsts) + 1)
        jobs = [(number, folder, texts, ranks) for number in parts]
        written = pool.map(lambda job: self._write_part(*job), jobs)
        count = 0
        for names in written:
            for name in names:
                name.rename(folder / f"part-{count:05d}.parquet")
                count += 1
        if not count:  # so that the schema can be read
            pq.write_table(OPERATIONS.empty_table(), folder / "part-00000.parquet")

    def _know_keys(self, texts: Sequence[str]) -> None:
        """Assign each text, as a key, to a part; the null key comes first."""
        known = len(self._part_of_key)
        if not known:
            self._part_of_key = np.zeros(1, np.int32)
            known = 1
        fresh = [bisect.bisect_right(self._firsts, text) for text in texts[known - 1 :]]
        self._part_of_key = np.concatenate([self._part_of_key, np.array(fresh, np.int32)])

    def _spill(self) -> None:
        """Append the rows in memory to the parts' files."""
        codec = pa.Codec("lz4")
        for part in range(len(self._firsts) + 1):
            with self._spilled(part).open("ab") as file:
                for rows, starts in self._blocks:
                    some = rows[starts[part] : starts[part + 1]]
                    if len(some):
                        packed = codec.compress(some.view(np.uint8).data, asbytes=True)
                        file.write(np.array([len(packed), some.nbytes], np.int64).tobytes())
                        file.write(packed)
        self._blocks.clear()
        self._held_bytes = 0
        self._is_spilled = True

    def _spilled(self, part: int) -> Path:
        return self._scratch / f"rows-{part:05d}"

    def _rows_of(self, part: int) -> Rows:
        """Return all rows of a part, in the order they came."""
        found = list(self._read_spilled(part)) if self._is_spilled else []
        found += [rows[starts[part] : starts[part + 1]] for rows, starts in self._blocks]
        return np.concatenate([np.empty(0, OPERATION_ROW), *found])

    def _read_spilled(self, part: int) -> Iterator[Rows]:
        codec = pa.Codec("lz4")
        path = self._spilled(part)
        with path.open("rb") as file:
            while head := file.read(16):
                packed, size = np.frombuffer(head, np.int64).tolist()
                data = codec.decompress(file.read(packed), decompressed_size=size)
                yield np.frombuffer(data, OPERATION_ROW)
        path.unlink()

    def _write_part(
        self, part: int, folder: Path, texts: Sequence[str], ranks: npt.NDArray[np.int64]
    ) -> list[Path]:
        """Sort a part and write its files; return their temporary names."""
        rows = self._rows_of(part)
        if not len(rows):
            return []
        order = _order(ranks[rows["key"] + 1], rows["op"])
        ordered = np.empty_like(rows)
        gather(rows, order, ordered)
        del rows, order
        keys = ordered["key"]
        bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        paths: list[Path] = []
        for start, length in file_ranges(bounds):
            path = folder / f"unsorted-{part:05d}-{len(paths):05d}"
            stop = start + length
            is_begun = start > 0 and keys[start] == keys[start - 1]
            is_cut = stop < len(keys) and keys[stop] == keys[stop - 1]
            _write_file(path, ordered[start:stop], texts, (bool(is_begun), bool(is_cut)))
            paths.append(path)
        return paths


def _order(ranks: npt.NDArray[np.int64], ops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the order of rows by key, then by operation id, which is by call time."""
    relative = ranks - ranks.min()
    if relative.max() >> RANK_BITS or ops.max() >> (63 - RANK_BITS):
        return np.lexsort((ops, ranks))
    # sorting one combined number is three times as fast
    return np.argsort(relative << (63 - RANK_BITS) | ops)


def file_ranges(
    bounds: Sequence[int], rows_max: int = OPERATIONS_PER_FILE_MAX
) -> list[tuple[int, int]]:
    """Split sorted rows into (start, length) of files.

    A file holds whole keys as long as they fit; a key longer than a file fills several.

    Args:
        bounds: 0, the start of each key but the first, and the number of rows.
        rows_max: most rows in a file.
    """
    ranges: list[tuple[int, int]] = []
    start = 0
    for begin, end in pairwise(bounds):
        if begin > start and end - start > rows_max:
            ranges.append((start, begin - start))
            start = begin
        while end - start > rows_max:
            ranges.append((start, rows_max))
            start += rows_max
    return [*ranges, (start, bounds[-1] - start)]


def _choose_parts(rows: Rows, texts: Sequence[str], rows_expected: int) -> list[str]:
    """Choose key ranges of about a file's size each, extrapolating from the first rows."""
    parts = max(1, math.ceil(rows_expected / (OPERATIONS_PER_FILE_MAX * FILLED)))
    counts = np.bincount(rows["key"] + 1, minlength=len(texts) + 1)[1:]
    keys = sorted((texts[n], int(counts[n])) for n in np.flatnonzero(counts).tolist())
    total = sum(count for _, count in keys)
    firsts: list[str] = []
    done = 0
    for key, count in keys:
        # A key starts a new part once the keys before it have filled the current one.
        if done * parts >= (len(firsts) + 1) * total:
            firsts.append(key)
        done += count
    return firsts


def _key_ranks(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return each text's rank in sorted order, indexed by number plus one; no text ranks first."""
    ranks = np.zeros(len(texts) + 1, np.int64)
    order = sorted(range(len(texts)), key=texts.__getitem__)
    ranks[np.array(order, np.int64) + 1] = np.arange(1, len(texts) + 1)
    return ranks


def _write_file(path: Path, rows: Rows, texts: Sequence[str], cut: tuple[bool, bool]) -> None:
    table = operations_table(rows, texts)
    names = [None if code == NO_TEXT else texts[code] for code in rows["key"][[0, -1]].tolist()]
    keys = int((rows["key"][1:] != rows["key"][:-1]).sum()) + 1
    footer = FileKeys(first=names[0], last=names[1], keys=keys, is_begun=cut[0], is_cut=cut[1])
    with pq.ParquetWriter(
        path,
        table.schema,
        compression=COMPRESSION,
        use_dictionary=list(OPERATION_TEXTS),
        store_schema=False,  # so that texts are not read back as codes
        write_statistics=["key", "call_ns"],
    ) as writer:
        writer.write_table(table, len(rows))
        writer.add_key_value_metadata({KEYS_IN_FOOTER: msgspec.json.encode(footer)})


def operations_table(rows: Rows, texts: Sequence[str]) -> pa.Table:
    """Return the rows as a table of OPERATIONS_CODED."""
    seen = np.full(len(texts), NO_TEXT, np.int32)
    columns = [_column(rows, name, texts, seen) for name in OPERATIONS.names]
    return pa.table(dict(zip(OPERATIONS.names, columns, strict=True)))


def _column(rows: Rows, name: str, texts: Sequence[str], seen: npt.NDArray[np.int32]) -> pa.Array:
    values = np.ascontiguousarray(rows[name])
    if name in OPERATION_TEXTS:
        return text_column(values, texts, seen)
    if name in OPERATION_NUMBERS:
        return pa.array(values, mask=(rows["has"] & OPERATION_NUMBERS[name]) == 0)
    return pa.array(values)


def text_column(
    values: npt.NDArray[np.int32], texts: Sequence[str], seen: npt.NDArray[np.int32]
) -> pa.Array:
    """Return numbers of texts as a dictionary column of those that occur.

    Args:
        values: numbers of texts.
        texts: the texts.
        seen: scratch, one NO_TEXT for each text; restored on return.
    """
    local = np.empty(len(values), np.int32)
    count = distinct(values, seen, local)
    used = np.flatnonzero(seen != NO_TEXT)
    words = np.empty(count, object)
    words[seen[used]] = [texts[number] for number in used.tolist()]
    seen[used] = NO_TEXT
    indices = pa.array(local, mask=local == NO_TEXT)
    return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))
