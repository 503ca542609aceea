"""Read a text line by line, for formats that are lines; damage is kept with its place."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.history.foreign.history import Damage

NOT_UTF8: Final = "bytes that are no UTF-8"


def read_lines(
    path: Path, take: Callable[[bytes, int], None]
) -> tuple[list[Damage], Damage | None]:
    """Pass each line and its number to `take`; return the unreadable places, and a torn last line.

    A last line is torn if it is no JSON, or if nothing ends it and `take` refuses it.

    Raises:
        OSError: the file cannot be read.
    """
    damage: list[Damage] = []
    last: Damage | None = None
    for number, at, line in _lines(path):
        if last is not None:
            damage.append(last)
            last = None
        try:
            take(line, number)
        except msgspec.ValidationError as error:
            damage.append(Damage(number, at, f"no event and no operation: {error}"))
        except RecursionError:
            damage.append(Damage(number, at, "nested too deeply"))
        except UnicodeDecodeError:
            damage.append(Damage(number, at, NOT_UTF8))
        except msgspec.DecodeError as error:
            last = Damage(number, at, f"no JSON: {error}")
        except ValueError as error:
            refused = Damage(number, at, str(error))
            if line.endswith(b"\n"):
                damage.append(refused)
            else:
                last = refused
    return damage, last


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            at = len(codecs.BOM_UTF8)
        file.seek(at)
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, at, line
            at += len(line)


def decoded(line: bytes) -> str:
    """Return a line as text, without its end.

    Raises:
        UnicodeDecodeError: it is no UTF-8.
    """
    return line.decode().rstrip("\r\n")


def number_or_text(text: str) -> int | str:
    """Return a word as a whole number if it is one."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(text) if is_number else text
