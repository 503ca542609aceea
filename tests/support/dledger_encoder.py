"""Writes DLedger logs for tests of what reads them; shares no code with reader or store."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


def signed(crc: int) -> int:
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def message(
    topic: str,
    queue_id: int,
    offset: int,
    payload: bytes,
    physical: int,
    properties: bytes = b"",
    hosts_v6: bool = False,
) -> bytes:
    host = bytes(20 if hosts_v6 else 8)
    name = topic.encode()
    is_v2 = len(name) > 127
    body = struct.pack(
        ">iiiiqqi",
        struct.unpack(">i", b"\xda\xa3\x20\xab" if is_v2 else b"\xda\xa3\x20\xa7")[0],
        zlib.crc32(payload) & 0x7FFFFFFF, queue_id, 0, offset, physical,
        16 | 32 if hosts_v6 else 0,
    )  # fmt: skip
    body += struct.pack(">q", 1_700_000_000_000) + host
    body += struct.pack(">q", 1_700_000_000_001) + host
    body += struct.pack(">iqi", 0, 0, len(payload)) + payload
    body += struct.pack(">H" if is_v2 else ">B", len(name)) + name
    body += struct.pack(">H", len(properties)) + properties
    return struct.pack(">i", len(body) + 4) + body


@dataclass
class LogWriter:
    """Encodes entries into data files of `file_bytes` each; `chain` links them."""

    file_bytes: int = 4096
    files: list[bytearray] = field(default_factory=list)
    index: int = 0
    chain: int = 0
    places: list[int] = field(default_factory=list)  # position of each entry
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def append(self, key: str, payload: int | bytes | None, term: int = 1, **more: object) -> None:
        """Append one message; `payload` None is an entry of the internal topic."""
        topic, _, queue = key.rpartition("/")
        offset = more.pop("offset", None)
        if offset is None:
            offset = self.offsets.get((topic, int(queue)), 0)
        self.offsets[topic, int(queue)] = offset + 1
        content = b"%d" % payload if isinstance(payload, int) else payload or b""
        size = 48 + len(message(topic, int(queue), offset, content, 0, **more))
        room = self.file_bytes - len(self.files[-1]) if self.files else 0
        if room < size + 8:
            if self.files:
                self.files[-1] += struct.pack(">ii", -1, room) + bytes(room - 8)
            self.files.append(bytearray())
        pos = (len(self.files) - 1) * self.file_bytes + len(self.files[-1])
        body = message(topic, int(queue), offset, content, pos + 48, **more)
        head = struct.pack(">iiqqqi", 1, size, self.index, term, pos, 0)
        tail = struct.pack(">ii", signed(zlib.crc32(body)), len(body))
        self.chain = zlib.crc32(struct.pack(">I", self.chain) + head + tail)
        self.files[-1] += head + struct.pack(">i", signed(self.chain)) + tail + body
        self.places.append(pos)
        self.index += 1

    def event(self, term: int) -> None:
        self.append("RMQ_SYS_DLEDGER_EVENT/0", b"", term, properties=b"TAGS\x01TERM_START\x02")

    def write(self, directory: Path, node: str, spare_files: int = 0) -> Path:
        """Write all into the node's folder; return its data folder."""
        data = directory / "store" / f"dledger-{node}" / "data"
        data.mkdir(parents=True, exist_ok=True)
        contents = [bytes(f).ljust(self.file_bytes, b"\0") for f in self.files]
        contents += [bytes(self.file_bytes)] * spare_files
        for number, content in enumerate(contents):
            (data / f"{number * self.file_bytes:020d}").write_bytes(content)
        return data


def write_log(
    directory: Path, node: str, entries: Iterable[tuple], file_bytes: int = 4096
) -> LogWriter:
    """Write entries (key, payload[, term[, offset]]); key None is a term start."""
    log = LogWriter(file_bytes)
    for key, payload, *more in entries:
        term = more[0] if more else 1
        if key is None:
            log.event(term)
        elif len(more) > 1:
            log.append(key, payload, term, offset=more[1])
        else:
            log.append(key, payload, term)
    log.write(directory, node)
    return log
