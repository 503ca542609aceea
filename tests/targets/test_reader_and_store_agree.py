"""The independent reader reads what the node's store writes, also behind a truncation."""

from __future__ import annotations

import pyarrow as pa

from shaketable.harness.history.schema import ENTRIES
from shaketable.harness.targets.logs.dledger_files import read_entries
from shaketable.system.node.disks.real_disk import RealDisk
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.entry import EntryBuilder

FILE_BYTES = 4096


def append(log, term, messages):
    builder = EntryBuilder(log.end, term, FILE_BYTES, bytes(8))
    for topic, queue_id, offset, body in messages:
        builder.add(topic, queue_id, offset, body, b"TAGS\x01x\x02", store_ms=1_700_000_000_000)
    for batch in builder.take():
        log.append(batch)
    log.sync()


def read(directory):
    return pa.Table.from_batches(read_entries(directory, "n1"), ENTRIES).to_pylist()


def test_reader_reads_what_the_store_writes(tmp_path):
    log = CommitLog.open(RealDisk(), str(tmp_path / "store"), "n1", FILE_BYTES, 3200)
    try:
        append(log, 1, [(b"RMQ_SYS_DLEDGER_EVENT", 0, 0, b"")])
        append(log, 1, [(b"shaketable", n % 3, n // 3, b"%d pad" % n) for n in range(90)])
        rows = read(tmp_path)
        assert [row["problem"] for row in rows] == [None] * 91
        assert [row["value"] for row in rows] == [None, *range(90)]
        assert rows[90]["key"] == "shaketable/2"
        assert rows[90]["offset"] == 29
        assert rows[90]["position"] + rows[90]["size"] == log.end.position
        assert log.end.position > 3 * FILE_BYTES

        log.truncate(20)  # several files back
        assert [row["index"] for row in read(tmp_path)] == list(range(21))
        append(log, 2, [(b"shaketable", 0, 100 + n, b"%d" % n) for n in range(60)])
        rows = read(tmp_path)
        assert [row["problem"] for row in rows] == [None] * 81
        assert [row["term"] for row in rows] == [1] * 21 + [2] * 60
    finally:
        log.close()
