"""Read results.json, the verdict of a run, as written by `harness.judging.judge`.

A run's folder may come from a download or from another version: the file is of bounded size, and
what this version does not know is ignored. The report reads the file itself (`reports.run_page`),
since it shows even damaged ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, read_plain

FILE_BYTES_MAX: Final = 256 << 20

T = TypeVar("T")


class UnreadableError(Exception):
    """A file is missing or has another format; the message is one line."""


def read_json(path: Path, type_: type[T], *, follow_links: bool = True) -> T:
    """Read a file as `type_`.

    Raises:
        UnreadableError: it cannot be read, or has another format.
    """
    try:
        data = read_plain(path, FILE_BYTES_MAX, follow_links=follow_links)
    except NoPlainFileError as error:
        raise UnreadableError(str(error)) from error
    return decode_json(data, type_)


def decode_json(data: bytes, type_: type[T]) -> T:
    """Decode JSON as `type_`.

    Raises:
        UnreadableError: it has another format.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise UnreadableError(" ".join(str(error).split()) or "not JSON") from error
    except RecursionError as error:
        raise UnreadableError("nested too deeply") from error


Valid = bool | Literal["unknown"]
FOUND_UNKNOWN = "finding"
"""The kind of a finding that has none."""
COUNT_MAX = 1 << 62
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
SECONDS_MAX = 1e12
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]


class FindingFile(msgspec.Struct, frozen=True):
    """A finding."""

    kind: str = FOUND_UNKNOWN
    message: str = ""
    key: str | None = None
    offset: int | None = None
    operations: tuple[int, ...] = ()


class CheckerFile(msgspec.Struct, frozen=True):
    """A checker's verdict. Counts and data are as the checker wrote them."""

    valid: Valid
    summary: str = ""
    counts: dict[str, Any] = {}
    findings_total: Count = 0
    findings: tuple[FindingFile, ...] = ()
    observed: tuple[FindingFile, ...] = ()
    data: dict[str, Any] = {}


class CountFile(msgspec.Struct, frozen=True):
    """How often a fault was injected, and how often it took effect (`bit`)."""

    done: Count
    bit: Count


class FaultsFile(msgspec.Struct, frozen=True):
    """How often the faults took effect (`bit`)."""

    bit: Count | None = None
    by_name: dict[str, CountFile] = {}


class ResultsFile(msgspec.Struct, frozen=True):
    """The part of results.json that others than the report read."""

    valid: Valid
    checkers: dict[str, CheckerFile] = {}
    mutant: str | None = None
    faults_asked: tuple[str, ...] = ()
    faults: FaultsFile = FaultsFile()
    faults_unavailable: dict[str, str] = {}
    repeat: str = ""
    why: str = ""
    """The reason for the verdict, as the report's headline; runs of earlier versions lack it."""
    incomplete: str | None = None
    """What the recording is known to lack."""


def read_results(folder: RunFolder, *, follow_links: bool = True) -> ResultsFile:
    """Return the verdict of a run; without `follow_links` a symbolic link counts as no file.

    Raises:
        UnreadableError: the run was not judged, or the file is damaged.
    """
    return read_json(folder.results_json, ResultsFile, follow_links=follow_links)
