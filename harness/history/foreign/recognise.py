"""Says by its content which format a history has.

| begins with | is |
|---|---|
| a folder with campaign.toml or history/operations | a run of ours |
| a folder with *.parquet, or the bytes PAR1 | Parquet of OPERATIONS |
| `{"` | JSON lines: operations where the line has "call_ns", else events |
| `{:`, `[{`, `({`, `#tag{` (behind comments) | EDN |
| among the first lines one like `3 :invoke :read nil` | a Jepsen console log |
"""

from __future__ import annotations

import enum
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign.jepsen import CONSOLE_LINE
from shaketable.harness.history.segments import MAGIC

LOOKED_AT_BYTES: Final = 1 << 18
"""How much of a file is looked at to recognise it."""


class Format(enum.Enum):
    """A format that `read_history` reads; the value is its name for a person."""

    RUN = "a run of shaketable"
    PARQUET = "Parquet of operations"
    EVENT_LINES = "JSON lines of events"
    OPERATION_LINES = "JSON lines of operations"
    EDN = "Jepsen EDN"
    CONSOLE = "Jepsen console log"
    EMPTY = "an empty file"


_EDN = re.compile(
    r"(?:[\s,]|;[^\n]*\n)*(?:[\[(][\s,]*(?:;[^\n]*\n[\s,]*)*)?(?:#[\w.]+\s*)?[\[({][\s:}\]){]"
)
_EMPTY_SEQUENCE = re.compile(r"(?:[\s,]|;[^\n]*(?:\n|$))*(?:\[[\s,]*\]|\([\s,]*\))?\s*")
_KNOWN: Final = (
    "known are: a run's folder, Parquet of operations, JSON lines of events or operations, Jepsen's"
    " history.edn, Jepsen's console log"
)
_OTHERS: Final = (
    (MAGIC, "a recording of one process: give the folder of its run"),
    (b"JEPSEN", "Jepsen's binary store: give the history.edn or the jepsen.log beside it"),
    (b"\x1f\x8b", "compressed: give it unpacked (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "compressed: give it unpacked (unzstd)"),
    (b"BZh", "compressed: give it unpacked (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed: give it unpacked (unxz)"),
    (b"\xff\xfe", "text in UTF-16: give it in UTF-8 (iconv -f utf-16 -t utf-8)"),
    (b"PK\x03\x04", "an archive: give it unpacked (unzip)"),
    (b"<?xml", "XML"),
    (b"<!DOCTYPE", "a web page"),
)


def recognise(path: Path) -> Format:
    """Say which format a file or folder has.

    Raises:
        UsageError: it is not there, cannot be read, or is none that is known; one line.
    """
    try:
        if path.is_dir():
            return _folder(path)
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe may take for ever
            raise UsageError(f"{path}: is no file but a pipe or device; write it to a file first")
        with path.open("rb") as file:
            begin = file.read(LOOKED_AT_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file or folder") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if begin.startswith(b"PAR1"):
        return Format.PARQUET
    for magic, what in _OTHERS:
        if begin.startswith(magic):
            raise UsageError(f"{path}: {what}")
    return _text(path, begin)


def _folder(path: Path) -> Format:
    if (path / "campaign.toml").exists() or (path / "history" / "operations").is_dir():
        return Format.RUN
    if any(path.glob("**/*.parquet")):
        return Format.PARQUET
    inside = sorted(each.name for each in path.iterdir())
    for name in ("history.edn", "history.jsonl"):
        if name in inside:
            raise UsageError(f"{path}: a folder; give {path / name}")
    names = ", ".join(inside[:3]) + (", ..." if len(inside) > 3 else "")
    raise UsageError(
        f"{path}: a folder that is neither a run nor holds *.parquet; give its files"
        f" ({names or 'it is empty'})"
    )


def _text(path: Path, begin: bytes) -> Format:
    text = begin.decode(errors="replace").removeprefix("\ufeff")
    stripped = text.lstrip()
    if _EMPTY_SEQUENCE.fullmatch(text):
        return Format.EMPTY
    if stripped.startswith("{") and stripped[1:].lstrip()[:1] == '"':
        return _json_lines(stripped)
    if stripped.startswith("[") and re.match(r'\[\s*\{\s*"', stripped):
        raise UsageError(f"{path}: a JSON array; give one object a line (jq -c '.[]')")
    if _EDN.match(text):
        return Format.EDN
    if any(CONSOLE_LINE.match(line) for line in text.splitlines()):
        return Format.CONSOLE
    first = " ".join(stripped.partition("\n")[0].split())
    shown = first if len(first) <= 60 else first[:59] + "…"
    if not shown.isprintable():
        shown = "no text"
    raise UsageError(f"{path}: no history that is known ({shown}); {_KNOWN}")


def _json_lines(text: str) -> Format:
    line = text.partition("\n")[0]
    try:
        given = msgspec.json.decode(line)
    except (
        msgspec.DecodeError,
        ValueError,
        RecursionError,
    ):  # damaged: which names it has is still to be seen
        is_operation = '"call_ns"' in line
    else:
        is_operation = "call_ns" in given
    return Format.OPERATION_LINES if is_operation else Format.EVENT_LINES
