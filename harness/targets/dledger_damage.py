"""Which bytes of a member's log have reached its disk for certain: what damage it must notice.

The file `syncedto` says so, in the newer of its two slots that is whole (docs/adr/0002); this
reader shares no code with the node.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shaketable.harness.abilities import Vital

SLOT_BYTES: Final = 4096
_MAGIC: Final = b"syncedto"
_SLOT = struct.Struct(">8sQ?QqqqIqqqIqq")
"""magic, sequence, is complete, file bytes, begin and end (index, term, position, CRC), cut, old
log's end."""
_CRC = struct.Struct(">I")


def synced_parts(store: Path) -> Sequence[Vital]:
    """Return the synced parts of the data files of the member whose store that is.

    Raises:
        OSError: the store cannot be read.
    """
    found: list[Vital] = []
    for mark in sorted(store.glob("dledger-*/syncedto")):
        file_bytes, begin, end = _newest(mark.read_bytes())
        for path in sorted((mark.parent / "data").iterdir()):
            if not path.name.isdecimal():
                continue
            first = int(path.name)
            start, behind = max(begin, first), min(end, first + file_bytes)
            if start < behind:
                found.append(Vital(path, start - first, behind - first))
    return found


def _newest(data: bytes) -> tuple[int, int, int]:
    """Return (file bytes, position of the begin, position of the end) that a mark says."""
    slots = []
    for at in (0, SLOT_BYTES):
        slot = data[at : at + _SLOT.size]
        crc = data[at + _SLOT.size : at + _SLOT.size + _CRC.size]
        if len(slot) == _SLOT.size and crc == _CRC.pack(zlib.crc32(slot)):
            fields = _SLOT.unpack(slot)
            if fields[0] == _MAGIC:
                slots.append(fields)
    if not slots:
        return 0, 0, 0
    newest = max(slots, key=lambda fields: int(fields[1]))
    return int(newest[3]), int(newest[6]), int(newest[10])
