"""Files written past the page cache hold what files written through it hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.system.node.disks.real_disk import BLOCK_BYTES, BUFFER_BYTES, DirectFile, RealDisk
from shaketable.system.store.disk import DiskFailed

FILE_BYTES = 5 * BLOCK_BYTES + 700

writes = st.lists(
    st.tuples(
        st.integers(0, FILE_BYTES), st.lists(st.binary(max_size=3 * BLOCK_BYTES), max_size=3)
    ),
    max_size=8,
)


def direct_disk(folder: Path) -> RealDisk:
    """A disk that writes this folder's files directly; no test of it where that cannot be."""
    disk = RealDisk(str(folder))
    file = disk.create(f"{folder}/probe", BLOCK_BYTES)
    assert isinstance(file, DirectFile)
    file.pwrite([b"x"], 0)
    assert file.is_direct, "the tests' folder must be able to write directly"
    file.close()
    disk.unlink(f"{folder}/probe")
    return disk


@settings(deadline=None, max_examples=150)
@given(writes, st.integers(0, 8), st.booleans())
def test_any_writes_leave_what_buffered_writes_leave(tmp_path_factory, steps, reopened_at, goes_on):
    folder = tmp_path_factory.mktemp("direct")
    disk = direct_disk(folder)
    file = disk.create(f"{folder}/file", FILE_BYTES)
    expected = bytearray(FILE_BYTES)
    end = 0
    for number, (position, buffers) in enumerate(steps):
        if number == reopened_at:
            file.close()
            file = disk.open(f"{folder}/file")
        place = min(end if goes_on else position, FILE_BYTES)
        data = b"".join(buffers)[: FILE_BYTES - place]
        file.pwrite([data[:10], data[10:]], place)
        expected[place : place + len(data)] = data
        end = place + len(data)
        assert file.pread(FILE_BYTES, 0) == expected
    file.sync()
    file.close()
    assert (folder / "file").read_bytes() == expected


def test_a_write_larger_than_the_buffer(tmp_path: Path) -> None:
    disk = direct_disk(tmp_path)
    data = os.urandom(2 * BUFFER_BYTES + 5)
    file = disk.create(f"{tmp_path}/file", 3 * BUFFER_BYTES)
    file.pwrite([b"begin", data], 100)
    file.pwrite([b"next"], 105 + len(data))
    assert file.pread(len(data) + 9, 100) == b"begin" + data + b"next"
    assert file.size == 3 * BUFFER_BYTES
    file.close()


def test_a_file_system_that_cannot_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real_open(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    disk = RealDisk(str(tmp_path))
    file = disk.create(f"{tmp_path}/file", BLOCK_BYTES)
    file.pwrite([b"x"], 7)
    assert isinstance(file, DirectFile)
    assert not file.is_direct
    assert file.pread(2, 6) == b"\0x"
    file.close()


def test_a_disk_with_larger_blocks_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    file = direct_disk(tmp_path).create(f"{tmp_path}/file", 2 * BLOCK_BYTES)
    file.pwrite([b"one"], 0)
    monkeypatch.setattr(os, "pwrite", refuse)
    file.pwrite([b"two"], 3)
    monkeypatch.undo()
    file.pwrite([b"three"], 6)
    assert file.pread(12, 0) == b"onetwothree\0"
    file.close()


def test_a_failed_write_is_the_disk_s_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    file = direct_disk(tmp_path).create(f"{tmp_path}/file", 2 * BLOCK_BYTES)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DiskFailed, match=r"cannot write .*/file: Input/output error"):
        file.pwrite([b"one"], 0)
    monkeypatch.undo()
    file.close()


def test_a_write_of_nothing_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make, call in ((direct_disk, "pwrite"), (lambda _: RealDisk(), "pwritev")):
        file = make(tmp_path).create(f"{tmp_path}/{call}", 2 * BLOCK_BYTES)
        written = iter([1, 0])  # a third write fails the test
        monkeypatch.setattr(os, call, lambda *_, written=written: next(written))
        with pytest.raises(DiskFailed, match=rf"cannot write .*/{call}: nothing was written"):
            file.pwrite([b"one"], 0)
        monkeypatch.undo()
        file.close()


def test_only_the_log_s_folder_is_written_directly(tmp_path: Path) -> None:
    disk = direct_disk(tmp_path)
    (tmp_path / "index").mkdir()
    file = disk.create(f"{tmp_path}/index/file", BLOCK_BYTES)
    assert not isinstance(file, DirectFile)
    file.close()


def test_only_a_file_that_is_being_written_has_a_second_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    disk = direct_disk(tmp_path)
    before = descriptors()
    file = disk.create(f"{tmp_path}/file", 2 * BLOCK_BYTES)
    assert descriptors() == before + 1
    file.pwrite([b"x"], 0)
    assert descriptors() == before + 2
    file.pwrite([bytes(2 * BLOCK_BYTES - 1)], 1)
    assert descriptors() == before + 1
    file.close()
    assert descriptors() == before


def test_a_file_may_be_renamed_before_it_is_written(tmp_path: Path) -> None:
    disk = direct_disk(tmp_path)
    file = disk.create(f"{tmp_path}/new", BLOCK_BYTES)
    disk.rename(f"{tmp_path}/new", f"{tmp_path}/file")
    file.pwrite([b"x"], 1)
    assert isinstance(file, DirectFile)
    assert file.is_direct
    file.close()
    assert (tmp_path / "file").read_bytes()[:3] == b"\0x\0"
