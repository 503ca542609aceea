"""What may stand in the page cache alone is read whole before any of it is written again."""

from __future__ import annotations

from pathlib import Path

from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.store.segment_files import SegmentFiles

CHUNK_BYTES = 1 << 20


def test_all_is_read_before_the_first_write(tmp_path: Path, monkeypatch) -> None:
    files = SegmentFiles(RealDisk(), str(tmp_path), 3 * CHUNK_BYTES, reserve=True)
    files.create(0)
    files.create(3 * CHUNK_BYTES)
    calls: list[str] = []
    for name in ("pread", "pwrite"):
        done = getattr(RealFile, name)

        def told(file: RealFile, *arguments, name=name, done=done):
            calls.append(name)
            return done(file, *arguments)

        monkeypatch.setattr(RealFile, name, told)
    files.rewrite(CHUNK_BYTES // 2, 5 * CHUNK_BYTES)
    assert calls == ["pread"] * 5 + ["pwrite"] * 5
    files.close()
