"""The file names inside a run's folder; how folders are created, found and linked, files read.

So is results.json, the verdict of a run, as written by `harness.judging.judge`. A run's folder may
come from a download or from another version: the file is of bounded size, and what this version
does not know is ignored. The report reads the file itself (`reports.run_page`), since it shows even
damaged ones.

Layout: DESIGN.md section 3 ("Store"), Jepsen's store/<name>/<time>/ with `latest` links.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar

import msgspec

from shaketable.harness.contracts.errors import HarnessError, UsageError

LATEST = "latest"
CREATE_ATTEMPTS_MAX = 1000
"""Runs of one name that may start at the same instant: each takes the next millisecond."""
SUGGESTIONS_MAX = 3


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run's files; creates none of them."""

    path: Path

    @property
    def campaign_toml(self) -> Path:
        """The campaign as resolved, seed included."""
        return self.path / "campaign.toml"

    @property
    def schedule_json(self) -> Path:
        """The faults' plans and times."""
        return self.path / "schedule.json"

    @property
    def history(self) -> Path:
        """Folder of the recordings and the Parquet tables."""
        return self.path / "history"

    @property
    def segments(self) -> Path:
        """Folder of the crash-safe recordings, one for each worker and one for the nemesis."""
        return self.history / "segments"

    def segment(self, name: str) -> Path:
        """Return the segment of "nemesis" or "worker-0"."""
        return self.segments / f"{name}.seg"

    @property
    def events_parquet(self) -> Path:
        """schema.EVENTS."""
        return self.history / "events.parquet"

    @property
    def operations(self) -> Path:
        """Folder of schema.OPERATIONS as Parquet files, sorted by key and call_ns."""
        return self.history / "operations"

    @property
    def history_jsonl(self) -> Path:
        """The events, one per line."""
        return self.path / "history.jsonl"

    @property
    def faults_jsonl(self) -> Path:
        """Write-ahead ledger of faults."""
        return self.path / "faults.jsonl"

    @property
    def status_jsonl(self) -> Path:
        """Changes of the nodes' roles and terms, as polled."""
        return self.path / "status.jsonl"

    @property
    def samples_jsonl(self) -> Path:
        """Samples of the nodes' log ends and clocks."""
        return self.path / "samples.jsonl"

    @property
    def drain_json(self) -> Path:
        """Each node's answer while draining."""
        return self.path / "drain.json"

    @property
    def run_json(self) -> Path:
        """Facts of the run: phases, segment counts, versions, command line."""
        return self.path / "run.json"

    def facts(self) -> dict[str, Any]:
        """Read run.json; {} for a run that was killed before it was written.

        Raises:
            HarnessError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self.run_json.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise HarnessError(f"cannot read {self.run_json}: {error}") from error

    @property
    def hosts_json(self) -> Path:
        """What the run may have left on other machines; absent if nothing."""
        return self.path / "hosts.json"

    @property
    def memory_jsonl(self) -> Path:
        """Memory use of the harness and its workers, every few seconds."""
        return self.path / "memory.jsonl"

    @property
    def recorded_json(self) -> Path:
        """The segments' sizes in bytes, noted while the run is in progress."""
        return self.path / "history" / "recorded.json"

    @property
    def online_jsonl(self) -> Path:
        """What was found while the run went on; absent unless it was judged then."""
        return self.path / "online.jsonl"

    @property
    def online_html(self) -> Path:
        """The page of the first of these violations; absent if there was none."""
        return self.path / "online.html"

    @property
    def results_json(self) -> Path:
        """The verdicts."""
        return self.path / "results.json"

    @property
    def entries_json(self) -> Path:
        """The log entries around the findings, stored when the run was judged."""
        return self.path / "evidence" / "entries.json"

    @property
    def violations(self) -> Path:
        """Folder of the violations' pages."""
        return self.path / "violations"

    @property
    def report_html(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @property
    def junit_xml(self) -> Path:
        """The verdicts for CI."""
        return self.path / "junit.xml"

    @property
    def log(self) -> Path:
        """The harness' own log."""
        return self.path / "shaketable.log"

    @property
    def nodes(self) -> Path:
        """Folder of the nodes' folders."""
        return self.path / "nodes"

    def node(self, node: str) -> Path:
        """Return the folder of one node."""
        return self.nodes / node

    def node_log(self, node: str) -> Path:
        """Return the file with the output of the node's process."""
        return self.node(node) / "node.log"


def utc_name(now_utc: datetime) -> str:
    """Return a run's name from its start: 20261121T091104.000Z."""
    in_utc = now_utc.astimezone(UTC)
    return f"{in_utc:%Y%m%dT%H%M%S}.{in_utc.microsecond // 1000:03d}Z"


def create(store: Path, name: str, now_utc: datetime) -> RunFolder:
    """Create the folder of a new run and its sub-folders (history/segments, nodes).

    Raises:
        UsageError: the name cannot name a folder, or the store is not writable.
    """
    if not name or name in {".", "..", LATEST} or "/" in name or "\0" in name:
        raise UsageError(f"campaign name {name!r} cannot name a folder: use letters, digits and -")
    parent = store.resolve() / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(CREATE_ATTEMPTS_MAX):
            path = parent / utc_name(now_utc + timedelta(milliseconds=attempt))
            try:
                path.mkdir()
            except FileExistsError:
                continue
            folder = RunFolder(path)
            folder.segments.mkdir(parents=True)
            folder.nodes.mkdir()
            return folder
    except OSError as error:
        raise UsageError(f"store {store}: {error.strerror}: {error.filename}") from error
    raise HarnessError(f"{parent}: no free name for a run at {utc_name(now_utc)}")


def link_latest(folder: RunFolder) -> None:
    """Point store/latest and store/<name>/latest at this run, each replaced atomically."""
    named = folder.path.parent
    for link, target in (
        (named / LATEST, Path(folder.path.name)),
        (named.parent / LATEST, Path(named.name) / folder.path.name),
    ):
        fresh = link.with_name(f".{LATEST}-{os.getpid()}-{secrets.token_hex(4)}")
        fresh.symlink_to(target, target_is_directory=True)
        try:
            fresh.replace(link)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise HarnessError(f"cannot replace the link {link}: {error.strerror}") from error


def open_existing(path: Path) -> RunFolder:
    """Open a run's folder, given by its path or by a `latest` link.

    Raises:
        UsageError: it is not a run folder; tells what is missing and what to give instead.
    """
    if not path.exists():
        hint = "the link points nowhere" if path.is_symlink() else "there is no such folder"
        raise UsageError(f"{path}: {hint}; give the folder of a run, such as store/{LATEST}")
    if not path.is_dir():
        raise UsageError(f"{path}: a file; give the folder of the run that holds it")
    folder = RunFolder(path.resolve())
    missing = [
        str(needed.relative_to(folder.path))
        for needed in (folder.campaign_toml, folder.segments)
        if not needed.exists()
    ]
    if not missing:
        return folder
    instead = _runs_inside(path)
    advice = f"give {' or '.join(instead)}" if instead else f"give one such as store/{LATEST}"
    raise UsageError(f"{path}: not the folder of a run ({', '.join(missing)} missing); {advice}")


def _runs_inside(path: Path) -> list[str]:
    """Return the newest runs in a store or in a campaign's folder."""
    found = sorted(path.glob("*/campaign.toml")) or sorted(path.glob("*/*/campaign.toml"))
    runs = sorted({campaign.parent for campaign in found}, key=lambda run: run.name, reverse=True)
    return [str(run) for run in runs[:SUGGESTIONS_MAX]]


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file that appears complete or not at all: temp + rename, in the same folder.

    Raises:
        HarnessError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temp = temp_beside(path)
    try:
        temp.write_bytes(data)
        temp.replace(path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise HarnessError(f"cannot write {path}: {error.strerror}") from error


def temp_beside(path: Path) -> Path:
    """Return an unused path in the same folder, to be renamed to `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def replace_folder(fresh: Path, path: Path) -> None:
    """Replace the folder `path` by `fresh`; the old content is deleted."""
    old = temp_beside(path)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)


# ---- files of untrusted folders ----------------------------------------------------------
#
# A run's folder may have been unpacked from a download, or written by another harness: read regular
# files only, without blocking on pipes, and bounded in size.


class NoPlainFileError(Exception):
    """There is no regular file at that path, or it is too large; the message states which."""


def open_plain(path: Path, *, follow_links: bool = True) -> tuple[BinaryIO, int]:
    """Open a regular file; return it with its size in bytes.

    Raises:
        NoPlainFileError: it does not exist, is not a regular file, or is not readable.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise NoPlainFileError(getattr(error, "strerror", None) or str(error)) from error
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise NoPlainFileError("not a regular file")
    return os.fdopen(handle, "rb"), facts.st_size


def read_plain(path: Path, bytes_max: int, *, follow_links: bool = True) -> bytes:
    """Read a regular file of at most `bytes_max` bytes.

    Raises:
        NoPlainFileError: there is none, it cannot be read, or it is larger.
    """
    file, _ = open_plain(path, follow_links=follow_links)
    with file:
        try:
            data = file.read(bytes_max + 1)
        except OSError as error:
            raise NoPlainFileError(error.strerror or str(error)) from error
    if len(data) > bytes_max:
        raise NoPlainFileError(f"more than {bytes_max >> 20} MiB")
    return data


# The verdict: results.json.

RESULTS_BYTES_MAX: Final = 256 << 20

T = TypeVar("T")


class UnreadableError(Exception):
    """A file is missing or has another format; the message is one line."""


def read_json(path: Path, type_: type[T], *, follow_links: bool = True) -> T:
    """Read a file as `type_`.

    Raises:
        UnreadableError: it cannot be read, or has another format.
    """
    try:
        data = read_plain(path, RESULTS_BYTES_MAX, follow_links=follow_links)
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
    """How often a fault was injected, and how often it took effect (`took_effect`)."""

    done: Count
    took_effect: Count


class FaultsFile(msgspec.Struct, frozen=True):
    """How often the faults took effect (`took_effect`)."""

    took_effect: Count | None = None
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
