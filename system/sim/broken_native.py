"""How a native commit log is broken so that no start, or no upgrade, may pass over it."""

from __future__ import annotations

import struct
from collections.abc import Callable

from shaketable.system.sim.disk import Platter
from shaketable.system.sim.folder_copy import Folder
from shaketable.system.store.message import BORN_HOST_V6, STORE_HOST_V6

Way = Callable[[Folder], bool]

_I32 = struct.Struct(">i")
_SYS_FLAG_AT = 36
_POSITION_AT = 28
_BODY_LENGTH_AT = 84
_V6_MORE_BYTES = 12
_CUT_OFF_BYTES = 20
_USED_BYTES_MIN = 1_000
"""In a file of which so much is written several messages stand."""


def not_named(folder: Folder) -> bool:
    """Start an upgraded log without the name of the native log's folder."""
    folder.native = None
    return True


def gone(folder: Folder) -> bool:
    """Lose the native log's last file."""
    native = folder.open().native
    assert native is not None
    start = native.end - folder.data_file_bytes
    folder.disk.platter.lose_file(f"{folder.native_folder}/{start:020}")
    return True


def of_other_size(folder: Folder) -> bool:
    """Have a native file of another size than the others."""
    path = folder.native_paths()[0]
    folder.disk.platter.cut_file(path, folder.data_file_bytes - 1)
    return True


def _damaging(damage: Callable[[Platter, str, int], None], *, is_new: bool) -> Way:
    """Return a way to damage a first message, and perhaps the second: `is_new`, before an upgrade.

    After it that is noticed where the messages' queues are to be built.
    """

    def way(folder: Folder) -> bool:
        path = folder.native_paths()[0]
        platter = folder.disk.platter
        if platter.written_size(path) < _USED_BYTES_MIN:
            return False
        second_at = _number(platter, path, 0)
        damage(platter, path, folder.data_file_bytes)
        if folder.draw.chance(0.5):
            platter.flip_bit(path, second_at + _body_at(platter, path, second_at))
        if is_new:
            folder.disk.create(f"{folder.native_folder}/lock", 0).close()  # no file of the log
            folder.name = "new"
        return True

    way.__name__ = f"{'before' if is_new else 'after'} its upgrade{damage.__name__}"
    return way


def _no_magic(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, 5)


def _no_size(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, 0)


def _too_small(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _CUT_OFF_BYTES)


def _too_large(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _number(platter, path, 0) + 1)


def _to_the_end(platter: Platter, path: str, file_bytes: int) -> None:
    _put(platter, path, 0, file_bytes)


def _elsewhere(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _POSITION_AT + 7)


def _other_body(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _body_at(platter, path, 0))


def _long_body(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, _body_at(platter, path, 0) - 4, 1 << 20)


_DAMAGES: tuple[Callable[[Platter, str, int], None], ...] = (
    _no_magic,
    _no_size,
    _too_small,
    _too_large,
    _to_the_end,
    _elsewhere,
    _other_body,
    _long_body,
)


def _number(platter: Platter, path: str, at: int) -> int:
    found: int = _I32.unpack_from(platter.inodes[path].view, at)[0]
    return found


def _put(platter: Platter, path: str, at: int, number: int) -> None:
    _I32.pack_into(platter.inodes[path].view, at, number)


def _body_at(platter: Platter, path: str, at: int) -> int:
    """Return where the body of the message at byte `at` begins, counted from there."""
    sys_flag = _number(platter, path, at + _SYS_FLAG_AT)
    hosts = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return _BODY_LENGTH_AT + 4 + hosts * _V6_MORE_BYTES


WAYS: tuple[Way, ...] = (
    not_named,
    gone,
    of_other_size,
    *[_damaging(damage, is_new=is_new) for damage in _DAMAGES for is_new in (True, False)],
)
"""Each returns False where it finds nothing to break. Raises StoreError on a damaged log."""
