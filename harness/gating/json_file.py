"""Reads JSON that may be anybody's: bounded, and whatever is wrong with it is one kind of error."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from shaketable.harness.history.plain_files import NoPlainFileError, read_plain

FILE_BYTES_MAX: Final = 256 << 20

T = TypeVar("T")


class UnreadableError(Exception):
    """A file is not there, or none of ours; says why in one line."""


def read_json(path: Path, type_: type[T]) -> T:
    """Read a file as `type_`.

    Raises:
        UnreadableError: it cannot be read, or holds something else.
    """
    try:
        data = read_plain(path, FILE_BYTES_MAX)
    except NoPlainFileError as error:
        raise UnreadableError(str(error)) from error
    return decode_json(data, type_)


def decode_json(data: bytes, type_: type[T]) -> T:
    """Decode JSON as `type_`.

    Raises:
        UnreadableError: it is something else.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise UnreadableError(" ".join(str(error).split()) or "not JSON") from error
    except RecursionError as error:
        raise UnreadableError("nested too deeply") from error
