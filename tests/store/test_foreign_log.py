"""A log that DLedger wrote, with zeros for CRCs, becomes one of ours, or is refused in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from dledger_encoder import LogWriter

from shaketable.system.node.disks.real_disk import RealDisk
from shaketable.system.node.import_log import main
from shaketable.system.store.commit_log import CommitLog, LogDamaged
from shaketable.system.store.entry import iter_messages

FILE_BYTES = 4096
CRCS = slice(36, 44)
COUNT = 60


def foreign_log(folder: Path, *, committed: int = COUNT - 1, currterm: str = "2") -> LogWriter:
    """Write what DLedger 0.3.1.2 leaves: three files, two terms."""
    log = LogWriter(FILE_BYTES)
    for number in range(COUNT):
        queue = f"orders/{number % 3}"
        log.append(queue, b"%d" % number + bytes(number), 1 if number < COUNT // 2 else 2)
    for position in log.places:
        file = log.files[position // FILE_BYTES]
        at = position % FILE_BYTES
        file[at + 36 : at + 44] = bytes(8)
    assert len(log.files) > 2
    log.write(folder, "n0", spare_files=1)
    store = folder / "store" / "dledger-n0"
    if currterm:
        text = f"#java.util.Properties\n#Sun Nov 22\nvoteLeader=n1\ncurrTerm={currterm}\n"
        (store / "currterm").write_text(text)
    (store / "checkpoint").write_text(f"#\nendIndex={COUNT - 1}\ncommittedIndex={committed}\n")
    return log


def run_import(folder: Path, *, file_bytes: int = FILE_BYTES) -> int:
    conf = folder / "broker.conf"
    conf.write_text(
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\n"
        "dLegerPeers=n0-127.0.0.1:40911\nlistenPort=30911\nmappedFileSizeIndex=8192\n"
        f"storePathRootDir={folder / 'new'}\nmappedFileSizeCommitLog={file_bytes}\n"
    )
    return main(["-c", str(conf), "--from", str(folder / "store" / "dledger-n0")])


def imported(folder: Path) -> CommitLog:
    return CommitLog.open(RealDisk(), str(folder / "new"), "n0", FILE_BYTES, 8192)


def entries_of(log: CommitLog) -> list[bytes]:
    found, index = [], 0
    while index <= log.end.index:
        batch = log.read_entries(index, 1)
        found += [batch.data[:48], batch.data[48:]]
        index += batch.count
    return found


def test_it_becomes_one_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = foreign_log(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("0*")}
    assert run_import(tmp_path) == 0
    assert capsys.readouterr().out.startswith("imported 60 entries, 60 known to be committed")
    log = imported(tmp_path)
    assert (log.end.index, log.end.term, log.committed_index) == (COUNT - 1, 2, COUNT - 1)
    assert (log.state.term, log.state.voted_for) == (2, "n1")
    assert log.spans == ((0, 1), (COUNT // 2, 2))
    assert not log.torn_bytes
    places = []
    for index in range(COUNT):
        batch = log.read_entries(index, 1)
        ((_, _, position, _, topic, queue, offset),) = iter_messages(batch.data, batch.position)
        places.append(position - 48)
        assert (topic, queue, offset) == (b"orders", index % 3, index // 3)
        at = batch.position % FILE_BYTES
        theirs = written.files[batch.position // FILE_BYTES][at : at + len(batch.data)]
        ours = bytearray(batch.data)
        assert ours[CRCS] != bytes(8)
        ours[CRCS] = bytes(8)
        assert ours == theirs
    log.close()
    assert places == written.places
    assert before == {path: path.read_bytes() for path in (tmp_path / "store").rglob("0*")}
    assert run_import(tmp_path) == 2
    assert "is there already" in capsys.readouterr().err


def test_what_was_torn_behind_the_committed_is_left_out(tmp_path: Path) -> None:
    written = foreign_log(tmp_path, committed=COUNT - 3)
    poke(tmp_path, written.places[-2] + 4, struct.pack(">i", 1 << 20))
    assert run_import(tmp_path) == 0
    log = imported(tmp_path)
    assert log.end.index == COUNT - 3
    log.close()


@pytest.mark.parametrize("skipped", [0, 1])
def test_what_a_follower_removed_is_left_out(tmp_path: Path, skipped: int) -> None:
    """DLedger moves its end back and writes no zeros: an older entry stands behind the last."""
    written = foreign_log(tmp_path, committed=COUNT - 2)
    at = written.places[-1]
    poke(tmp_path, at + 8, struct.pack(">qq", COUNT - 1 + skipped, 1 + skipped))
    assert run_import(tmp_path) == 0
    log = imported(tmp_path)
    assert (log.end.index, log.end.term) == (COUNT - 2, 2)
    log.close()


def poke(folder: Path, position: int, data: bytes) -> None:
    start = position // FILE_BYTES * FILE_BYTES
    path = folder / "store" / "dledger-n0" / "data" / f"{start:020d}"
    content = bytearray(path.read_bytes())
    content[position - start : position - start + len(data)] = data
    path.write_bytes(content)


def crcs(folder: Path, log: LogWriter) -> None:
    poke(folder, log.places[5] + 36, b"\1\2\3\4")


def no_entry(folder: Path, log: LogWriter) -> None:
    poke(folder, log.places[5], b"\0\0\0\0")


def bad_body(folder: Path, log: LogWriter) -> None:
    poke(folder, log.places[5] + 48 + 88, b"x")


def other_index(folder: Path, log: LogWriter) -> None:
    poke(folder, log.places[5] + 8, struct.pack(">q", 6))


def other_offset(folder: Path, log: LogWriter) -> None:
    poke(folder, log.places[5] + 48 + 20, struct.pack(">q", 7))


def first_file(folder: Path, _: LogWriter) -> None:
    (folder / "store" / "dledger-n0" / "data" / f"{0:020d}").unlink()


def middle_file(folder: Path, _: LogWriter) -> None:
    (folder / "store" / "dledger-n0" / "data" / f"{FILE_BYTES:020d}").unlink()


def no_term(folder: Path, _: LogWriter) -> None:
    (folder / "store" / "dledger-n0" / "currterm").unlink()


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (crcs, "its CRCs are computed"),
        (no_entry, "entries up to 59 were committed: the files are damaged"),
        (bad_body, "BODYCRC"),
        (other_index, "entry 6 of term 1 after 4 of term 1"),
        (other_offset, "queue orders/2 goes on at 7, not 1"),
        (first_file, "starts at byte 4096"),
        (middle_file, "does not follow the file before it"),
        (no_term, "holds no term"),
    ],
)
def test_one_line_says_what_is_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path, LogWriter], None],
    finding: str,
) -> None:
    spoil(tmp_path, foreign_log(tmp_path))
    assert run_import(tmp_path) == 74
    (line,) = capsys.readouterr().err.splitlines()
    assert finding in line
    assert not (tmp_path / "new" / "dledger-n0").exists()


def test_a_log_of_another_file_size_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign_log(tmp_path)
    assert run_import(tmp_path, file_bytes=8192) == 2
    assert "set mappedFileSizeCommitLog to that" in capsys.readouterr().err


def test_a_node_takes_no_log_without_crcs_for_its_own(tmp_path: Path) -> None:
    """Zeros are taken at an import alone."""
    foreign_log(tmp_path)
    assert run_import(tmp_path) == 0
    path = tmp_path / "new" / "dledger-n0" / "data" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[CRCS] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(LogDamaged, match="chainCrc does not fit"):
        imported(tmp_path)
