"""The independent reader of DLedger files, against logs that the test encodes itself."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pytest

from shaketable.harness.history.schema import ENTRIES
from shaketable.harness.targets.logs.dledger_files import log_segments, read_entries, read_segment
from shaketable.harness.targets.logs.dledger_kernels import crc32
from tests.support.dledger_bulk import Bulk
from tests.support.dledger_encoder import LogWriter, write_log


def read(directory, node="n0", **more):
    batches = list(read_entries(directory, node, **more))
    assert all(batch.schema == ENTRIES for batch in batches)
    return pa.Table.from_batches(batches, ENTRIES).to_pylist()


def problems(rows):
    return {row["index"]: row["problem"] for row in rows if row["problem"] is not None}


@pytest.fixture
def log():
    """Forty entries over several files: two queues, term starts, padding."""
    log = LogWriter(file_bytes=2048)
    log.event(1)
    for value in range(38):
        log.append(
            f"shaketable/{value % 2}", b"%d %s" % (value, b"x" * (value % 7)), 1 + value // 9
        )
    log.event(6)
    return log


def flip(data, position, file_bytes=2048, mask=0xFF):
    path = data / f"{position // file_bytes * file_bytes:020d}"
    content = bytearray(path.read_bytes())
    content[position % file_bytes] ^= mask
    path.write_bytes(content)


def flip_all(data, masks, file_bytes=2048):
    """Flip bits at many positions, each file written once."""
    for start in sorted({position // file_bytes * file_bytes for position in masks}):
        path = data / f"{start:020d}"
        content = bytearray(path.read_bytes())
        for position, mask in masks.items():
            if start <= position < start + file_bytes:
                content[position - start] ^= mask
        path.write_bytes(content)


def test_whole_log_comes_back_as_it_was_written(tmp_path, log):
    log.write(tmp_path, "n0", spare_files=1)
    rows = read(tmp_path)
    assert len(log.files) > 2
    assert problems(rows) == {}
    assert [row["index"] for row in rows] == list(range(40))
    assert [row["position"] for row in rows] == log.places
    assert [row["value"] for row in rows] == [None, *range(38), None]
    assert [row["key"] for row in rows][:4] == [
        None,
        "shaketable/0",
        "shaketable/1",
        "shaketable/0",
    ]
    assert [row["offset"] for row in rows] == [None, *(value // 2 for value in range(38)), None]
    assert [row["term"] for row in rows] == [1, *(1 + value // 9 for value in range(38)), 6]
    first = log.files[0]
    assert rows[1]["crc"] == zlib.crc32(first[log.places[1] + 48 : log.places[2]])
    assert rows[1]["size"] == log.places[2] - log.places[1]


def test_memory_is_bounded_by_the_batch(tmp_path, log):
    log.write(tmp_path, "n0")
    assert [batch.num_rows for batch in read_entries(tmp_path, "n0", 16)] == [16, 16, 8]


def test_values_are_decimals_at_the_start(tmp_path):
    payloads = [b"7", b"-12 xx", b"7x", b"", b"9223372036854775807", b"9223372036854775808", b" 7"]
    write_log(tmp_path, "n0", [("t/0", payload) for payload in payloads])
    rows = read(tmp_path)
    assert [row["value"] for row in rows] == [7, -12, None, None, 2**63 - 1, None, None]
    assert problems(rows) == {}


def test_long_topics_and_ipv6_hosts(tmp_path):
    log = LogWriter()
    log.append("t" * 200 + "/3", 1)
    log.append("short/9", 2, hosts_v6=True, properties=b"KEYS\x01k\x02")
    log.write(tmp_path, "n0")
    rows = read(tmp_path)
    assert [(row["key"], row["value"]) for row in rows] == [("t" * 200 + "/3", 1), ("short/9", 2)]
    assert problems(rows) == {}


def test_node_that_never_wrote_has_no_entries(tmp_path):
    assert read(tmp_path) == []


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OSError, match="no folder of node n7"):
        list(read_entries(tmp_path / "gone", "n7"))


@pytest.mark.parametrize("at", range(48 + 91 + 12))
def test_every_flipped_byte_of_an_entry_is_noticed(tmp_path, log, at):
    """And the reading goes on: all entries behind the damage are there and whole."""
    data = log.write(tmp_path, "n0")
    flip(data, log.places[20] + at, mask=0x01)
    rows = read(tmp_path)
    assert list(problems(rows)) == [20]
    intact = [row["index"] for row in rows if row["problem"] is None]
    assert intact == [*range(20), *range(21, 40)]


def test_random_damage_never_ends_the_reading_or_passes_unseen(tmp_path, log):
    data = log.write(tmp_path / "whole", "n0")
    whole = {row["index"]: row for row in read(tmp_path / "whole")}
    rng = random.Random(7)
    damaged = 0
    for turn in range(150):
        directory = tmp_path / str(turn)
        data = directory / "store" / "dledger-n0" / "data"
        shutil.copytree(tmp_path / "whole", directory)
        end = log.places[39]
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(end)
            behind = min(end, start + rng.choice((1, 8, 300)))
            flip_all(data, {at: rng.randint(1, 255) for at in range(start, behind)})
        rows = read(directory)
        assert problems(rows) or rows == list(whole.values())  # damage behind a blank is none
        damaged += bool(problems(rows))
        for before, row in zip([None, *rows], rows, strict=False):
            # Right behind a hole nothing vouches for the header: the chain begins anew.
            if row["problem"] is None and (before is None or before["size"] is not None):
                assert row == whole[row["index"]]
    assert damaged > 140


def test_file_that_was_cut(tmp_path, log):
    data = log.write(tmp_path, "n0")
    path = data / f"{2048:020d}"
    path.write_bytes(path.read_bytes()[:700])
    rows = read(tmp_path)
    damage = [row["problem"] for row in rows if row["problem"]]
    assert "does not fit" in damage[0]
    assert damage[1] == f"the data files end at 2748, the next one is {4096:020d}"
    assert rows[-1]["index"] == 39
    assert rows[-1]["problem"] is None


def test_file_that_is_missing(tmp_path, log):
    data = log.write(tmp_path, "n0")
    (data / f"{2048:020d}").unlink()
    rows = read(tmp_path)
    assert list(problems(rows).values()) == [
        f"the data files end at 2048, the next one is {4096:020d}"
    ]
    assert rows[-1]["index"] == 39


def test_zeros_in_the_middle_are_a_hole(tmp_path, log):
    data = log.write(tmp_path, "n0")
    for position in range(log.places[3], log.places[6]):
        path = data / f"{0:020d}"
        content = bytearray(path.read_bytes())
        content[position] = 0
        path.write_bytes(content)
    rows = read(tmp_path)
    assert problems(rows) == {3: "zeros, and data after them"}
    assert [row["index"] for row in rows] == [0, 1, 2, 3, *range(6, 40)]


def test_zeroed_file_with_data_behind_it(tmp_path, log):
    data = log.write(tmp_path, "n0")
    (data / f"{2048:020d}").write_bytes(bytes(2048))
    rows = read(tmp_path)
    assert list(problems(rows).values()) == [f"the log ends here, but file {4096:020d} holds data"]


def test_garbage_file(tmp_path):
    data = tmp_path / "store" / "dledger-n0" / "data"
    data.mkdir(parents=True)
    (data / f"{0:020d}").write_bytes(random.Random(1).randbytes(5000))
    (data / f"{5000:020d}").write_bytes(b"")
    (data / "notes.txt").write_text("not a data file")
    rows = read(tmp_path)
    assert len(rows) == 1
    assert rows[0]["problem"].startswith("no entry: the magic is")


def test_entries_left_out_leave_a_named_gap(tmp_path):
    """A log whose index jumps, all CRCs right: the writer itself skipped an index."""
    log = LogWriter()
    log.append("t/0", 1)
    log.index = 5
    log.append("t/0", 2)
    log.append("t/0", 3)
    log.write(tmp_path, "n0")
    rows = read(tmp_path)
    assert problems(rows) == {5: "index is 5, not 1"}
    assert [row["index"] for row in rows] == [0, 5, 6]


def test_body_that_lies_about_its_place(tmp_path):
    """The entry's own CRCs hold, but PHYSICALOFFSET was taken from another log."""
    log = LogWriter()
    log.append("t/0", 1)
    body = bytearray(log.files[0][48:])
    body[28:36] = struct.pack(">q", 4711)
    head = bytes(log.files[0][:36])
    tail = struct.pack(">Ii", zlib.crc32(body), len(body))
    chain = struct.pack(">I", zlib.crc32(bytes(4) + head + tail))
    log.files[0][:] = head + chain + tail + body
    log.write(tmp_path, "n0")
    assert problems(read(tmp_path)) == {0: "PHYSICALOFFSET is 4711, not 48"}


def apart(directory, node="n0", batch_rows=7):
    """Read the files one by one, each by itself, the last one first."""
    parts = {
        name: list(read_segment(directory, node, name, batch_rows))
        for name in reversed(log_segments(directory, node))
    }
    batches = [batch for name in sorted(parts) for batch in parts[name]]
    return pa.Table.from_batches(batches, ENTRIES).to_pylist()


def test_files_read_apart_give_the_same_rows(tmp_path, log):
    log.write(tmp_path, "n0", spare_files=2)
    assert len(log_segments(tmp_path, "n0")) == len(log.files) + 2
    assert apart(tmp_path) == read(tmp_path)
    assert log_segments(tmp_path, "n1") == ()
    with pytest.raises(OSError, match="node n0 has no data file 7"):
        list(read_segment(tmp_path, "n0", "7"))


@pytest.mark.parametrize("file_bytes", [400, 2048])
def test_damaged_files_read_apart_give_the_same_rows(tmp_path, file_bytes):
    """How a file's entries are judged hangs on files before it, whatever is wrong there."""
    log = LogWriter(file_bytes=file_bytes)
    for value in range(40):
        log.append(f"shaketable/{value % 2}", b"%d %s" % (value, b"x" * (value % 7)))
        if value == 20:
            log.index += 3
    log.write(tmp_path / "whole", "n0", spare_files=1)
    rng = random.Random(11)
    differ = 0
    for turn in range(120):
        directory = tmp_path / str(turn)
        data = directory / "store" / "dledger-n0" / "data"
        shutil.copytree(tmp_path / "whole", directory)
        for _ in range(rng.randint(1, 6)):
            place = rng.choice(log.places)
            start = place + rng.choice((0, 4, 8, 16, 24, 36, 40, 44, 60))
            behind = min(start + rng.choice((1, 4, 300)), place // file_bytes * file_bytes + 200)
            flip_all(data, {n: rng.randint(1, 255) for n in range(start, behind)}, file_bytes)
        names = log_segments(directory, "n0")
        if turn % 3 == 1:
            (data / rng.choice(names)).unlink()
        if turn % 3 == 2:
            path = data / rng.choice(names)
            path.write_bytes(bytes(len(path.read_bytes())))
        rows = read(directory)
        assert apart(directory) == rows
        differ += bool(problems(rows))
    assert differ > 100


def test_thousand_queues_are_told_apart(tmp_path):
    log = LogWriter(file_bytes=1 << 20)
    keys = [f"topic-{n % 7}-{'x' * (n % 5)}/{n}" for n in range(1000)]
    for key in (*keys, *reversed(keys)):
        log.append(key, 1)
    log.write(tmp_path, "n0")
    assert [row["key"] for row in read(tmp_path)] == [*keys, *reversed(keys)]


@pytest.mark.parametrize("size", [*range(40), 255, 1024])
def test_compiled_crc_is_zlibs(size):
    data = np.frombuffer(random.Random(size).randbytes(size + 3), np.uint8)
    assert crc32(data, 3, size + 3, 0) == zlib.crc32(data[3:].tobytes())
    assert crc32(data, 0, size, 77) == zlib.crc32(data[:size].tobytes(), 77)


def test_bulk_logs_of_the_benchmarks_are_sound(tmp_path):
    bulk = Bulk(5000, queues=3, body_bytes=30, file_bytes=1 << 18, term_every=1000)
    bulk.write(tmp_path, "n0", {70: 123456})
    rows = read(tmp_path)
    assert problems(rows) == {}
    assert [row["value"] for row in rows] == [123456 if n == 70 else n for n in range(5000)]
    assert rows[-1]["key"] == f"bench/{4999 % 3}"
    assert rows[-1]["offset"] == 4999 // 3
    assert rows[-1]["term"] == 5
    assert len(log_segments(tmp_path, "n0")) > 2


def test_reader_works_where_no_cache_can_be_written(tmp_path, log):
    log.write(tmp_path, "n0")
    program = (
        "import sys, numba, pathlib\n"
        "from shaketable.harness.targets.logs import dledger_files\n"
        "read = dledger_files.read_entries(pathlib.Path(sys.argv[1]), 'n0')\n"
        "print(sum(batch.num_rows for batch in read))"
    )
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(blocked / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "40", done.stderr
