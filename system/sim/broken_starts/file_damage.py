"""Which of a node's small files may be damaged, how, and what must follow.

Damage to the vote or the durable watermark must be detected: the node does not start. What can be
rebuilt from the log is rebuilt silently. Consume queue units and key index items have no checksum,
as in RocketMQ: whole files of them are lost, not single bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shaketable.system.store.keys.key_file import HEADER_BYTES

if TYPE_CHECKING:
    from shaketable.system.sim.disk import Platter

MUST_BE_DETECTED = ("currterm", "snapshot", "syncedto", "syncedto_slot", "data")
"""A start may be refused; for a damaged `data` file or a single slot it need not be."""
ALWAYS_DETECTED = ("currterm", "snapshot", "syncedto")
REBUILT = ("checkpoint", "appliedto", "log_index", "consumequeue", "key_index")
OF_A_BROKER = ("checkpoint", "appliedto", "consumequeue", "key_index")
"""What a broker without a group rebuilds."""
_ALL_WAYS = ("bit", "zeros", "short", "gone")
WAYS: Mapping[str, tuple[str, ...]] = {
    "currterm": _ALL_WAYS,
    "snapshot": ("bit", "zeros", "short"),  # without one an upgraded log may be as it should
    "syncedto": _ALL_WAYS,
    "syncedto_slot": ("bit",),
    "data": ("zeros", "short", "gone"),
    "checkpoint": _ALL_WAYS,
    "appliedto": _ALL_WAYS,
    "log_index": _ALL_WAYS,
    "consumequeue": ("zeros", "short", "gone"),
    "key_index": ("bit", "short", "gone"),
}
"""In which ways each file may be damaged."""
_SLOT_BYTES = 4096
_SLOT_USED_BYTES = 60


def damage_file(platter: Platter, root: str, node: str, file: str, way: str, place: float) -> bool:
    """Damage one file of a node whose process has ended; return False if there is none."""
    return _damage(
        platter, _path_of(platter, root, f"{root}/dledger-{node}", file, place), file, way, place
    )


def damage_broker_file(platter: Platter, root: str, file: str, way: str, place: float) -> bool:
    """Damage one of OF_A_BROKER at a broker without a group; return False if there is none."""
    return _damage(platter, _path_of(platter, root, root, file, place), file, way, place)


def _damage(platter: Platter, path: str | None, file: str, way: str, place: float) -> bool:
    if path is None or platter.written_size(path) < 2:
        return False
    size = platter.written_size(path)
    if way == "gone":
        platter.lose_file(path)
    elif way == "short":
        platter.truncate_file(path, size // 2 if file == "currterm" else int(place * size / 2))
    elif way == "zeros":
        platter.zero_file(path)
    elif file in ("syncedto", "syncedto_slot"):
        at = int(place * _SLOT_USED_BYTES)
        slots = (0, _SLOT_BYTES) if file == "syncedto" else (_SLOT_BYTES * (size % 2),)
        for slot in slots:
            if slot + at < size:
                platter.flip_bit(path, slot + at)
    elif file == "key_index":
        platter.flip_bit(path, int(place * HEADER_BYTES))
    else:
        platter.flip_bit(path, int(place * size), int(place * 1000) % 8)
    return True


def _path_of(platter: Platter, root: str, folder: str, file: str, place: float) -> str | None:
    fixed = {
        "currterm": f"{folder}/currterm",
        "snapshot": f"{folder}/snapshot",
        "syncedto": f"{folder}/syncedto",
        "syncedto_slot": f"{folder}/syncedto",
        "checkpoint": f"{folder}/checkpoint",
        "appliedto": f"{folder}/appliedto",
    }
    if file in fixed:
        return fixed[file]
    prefix = {
        "data": f"{folder}/data/",
        "log_index": f"{folder}/index/",
        "consumequeue": f"{root}/consumequeue/",
        "key_index": f"{root}/index/",
    }[file]
    paths = sorted(path for path in platter.inodes if path.startswith(prefix))
    return paths[int(place * len(paths))] if paths else None
