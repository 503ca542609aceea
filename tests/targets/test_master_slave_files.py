"""The reader of plain commit logs, against bytes that are put together here by the format."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest

from shaketable.harness.targets.logs.master_slave_files import PLACE_FILE, Place, read_messages

BLANK = -875286124


def message(
    topic: str, queue_id: int, offset: int, position: int, body: bytes, **odd: int
) -> bytes:
    head = struct.pack(
        ">iiqqi", queue_id, 0, offset, odd.get("said", position), odd.get("flags", 0)
    )
    hosts = (
        bytes(20 if odd.get("flags", 0) & 16 else 8),
        bytes(20 if odd.get("flags", 0) & 32 else 8),
    )
    rest = (
        bytes(8) + hosts[0] + bytes(8) + hosts[1] + bytes(12)
        + struct.pack(">i", len(body)) + body
        + bytes([len(topic)]) + topic.encode() + struct.pack(">h", 0)
    )  # fmt: skip
    size = 12 + len(head) + len(rest)
    crc = odd.get("crc", crc32(body) & 0x7FFFFFFF)
    return struct.pack(">iii", size, -626843481, crc) + head + rest


def write(folder: Path, begin: int, data: bytes, size: int = 4096) -> None:
    log = folder / "store" / "commitlog"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{begin:020}").write_bytes(data.ljust(size, b"\0"))


def rows(folder: Path) -> list[dict]:
    return [row for batch in read_messages(folder, "n1") for row in batch.to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PLACE_FILE).write_text(Place(broker=1, masters=3).encoded())
    return tmp_path


def test_messages_come_with_their_queues_and_places_over_the_ends_of_files(folder: Path) -> None:
    first = message("shaketable", 0, 7, 4096, b"12")
    second = message("shaketable", 2, 0, 4096 + len(first), b"-5", flags=48)
    end = 4096 + len(first) + len(second)
    write(folder, 4096, first + second + struct.pack(">ii", 8192 - end, BLANK))
    third = message("%RETRY%group", 0, 0, 8192, b"13")
    write(folder, 8192, third + message("shaketable", 0, 8, 8192 + len(third), b"no number"))
    found = rows(folder)
    assert [(r["key"], r["offset"], r["value"], r["position"]) for r in found] == [
        ("shaketable/1", 7, 12, 4096),
        ("shaketable/7", 0, -5, 4096 + len(first)),
        (None, None, None, 8192),
        ("shaketable/1", 8, None, 8192 + len(third)),
    ]
    assert [r["problem"] for r in found] == [None] * 4
    assert {r["node"] for r in found} == {"n1"}
    assert sum(r["size"] for r in found[:2]) == end - 4096


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        ({"crc": 1}, "its body does not match its CRC"),
        ({"said": 99}, "it names its own position as 99"),
    ],
)
def test_what_is_wrong_with_a_message_is_said_and_the_next_one_is_read(
    folder: Path, odd: dict, problem: str
) -> None:
    bad = message("shaketable", 0, 0, 0, b"1", **odd)
    write(folder, 0, bad + message("shaketable", 0, 1, len(bad), b"2"))
    assert [(r["problem"], r["value"]) for r in rows(folder)] == [(problem, 1), (None, 2)]


def test_a_crc_of_zero_says_nothing(folder: Path) -> None:
    write(folder, 0, message("shaketable", 0, 0, 0, b"1", crc=0))
    assert [r["problem"] for r in rows(folder)] == [None]


def test_behind_what_is_no_message_nothing_more_is_known(folder: Path) -> None:
    good = message("shaketable", 0, 0, 0, b"1")
    write(folder, 0, good + b"\x00\x00\x10\x00garbage!" + good)
    found = rows(folder)
    assert [r["value"] for r in found] == [1, None]
    assert "neither a message nor the log's end" in found[1]["problem"]


def test_a_node_without_files_has_no_messages_and_one_without_a_folder_is_an_error(
    folder: Path,
) -> None:
    assert rows(folder) == []
    with pytest.raises(FileNotFoundError, match="no folder of node n1"):
        next(read_messages(folder / "nowhere", "n1"))
    (folder / "shaketable-place.json").write_text("{}")
    with pytest.raises(OSError, match=r"shaketable-place\.json"):
        next(read_messages(folder, "n1"))
