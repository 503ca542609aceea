"""The HTTP server of a store, on 127.0.0.1 only: answers a request by a page, a file, a zip.

A foreign page may resolve its name to 127.0.0.1 (DNS rebinding); its requests carry that name as
their Host and are refused. Why the standard library's server: docs/adr/0029.

Everything is read-only, and everything shown may be hostile: names, logs, reports. Our pages allow
only our own script and style. A report runs in a sandbox without an origin, so that its content
cannot read other pages. No other file is sent as HTML.
"""

from __future__ import annotations

import contextlib
import logging
import mimetypes
import os
import socket
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.serving import pages
from shaketable.harness.serving.live import Follower
from shaketable.harness.serving.pages import Trends, is_large
from shaketable.harness.serving.store import (
    Index,
    NotHereError,
    is_allowed_name,
    is_run,
    is_self_contained,
    open_regular,
    resolve_path,
)
from shaketable.reports.violation_page.violation_view import NAME as VIOLATION

log = logging.getLogger(__name__)

ADDRESS: Final = "127.0.0.1"
NAMES: Final = (ADDRESS, "localhost")
REQUESTS_MAX: Final = 16
"""Concurrent requests; one more is refused with 503."""
IDLE_S: Final = 20.0
"""How long a client may neither send nor receive anything."""
BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class StoreServer(ThreadingHTTPServer):
    """Serves one store, with a thread per request, at most `REQUESTS_MAX`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, store: Path, port: int) -> None:
        self.site = Site(store)
        self._free = threading.BoundedSemaphore(REQUESTS_MAX)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"--port {port}: {why}; --port 0 takes a free one") from error

    @property
    def address(self) -> str:
        """The URL to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def is_named(self, host: str | None) -> bool:
        """Return whether a Host header names this server."""
        return host in {f"{name}:{self.server_port}" for name in NAMES}

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any
    ) -> None:
        """Accept a request, or refuse it with 503 if there are too many."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                assert isinstance(request, socket.socket)
                request.settimeout(1.0)
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any
    ) -> None:
        """Serve one request and release its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error; a client that disconnects is not worth more than a debug line."""
        log.debug("event=request_failed why=%r", sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    server: StoreServer
    protocol_version = "HTTP/1.1"
    server_version = "shaketable"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Respond with a body."""
        self._send(self._respond(), with_body=True)

    def do_HEAD(self) -> None:
        """Respond without a body."""
        self._send(self._respond(), with_body=False)

    def _respond(self) -> Response:
        site = self.server.site
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.is_named(hosts[0]):
            return site.message(421, f"This is {self.server.address} and nothing else.")
        try:
            return site.respond(self.path)
        except Exception as error:
            log.error("a page failed: %r: %r", self.path, error)  # noqa: TRY400 - one line a page
            log.debug("event=request_failed", exc_info=True)
            return site.message(500, "This page could not be made; the terminal shows why.")

    def _send(self, response: Response, *, with_body: bool) -> None:
        self.close_connection = True
        is_chunked = not isinstance(response.body, bytes) and response.length is None
        if self.request_version == "HTTP/1.0":
            is_chunked = False  # the end of the connection ends the body
        self.send_response(response.status)
        for name, value in response.all_headers:
            self.send_header(name, value)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        pieces = [response.body] if isinstance(response.body, bytes) else response.body
        try:
            for piece in pieces if with_body else ():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            if is_chunked and with_body:
                self.wfile.write(b"0\r\n\r\n")
        finally:
            if (close := getattr(pieces, "close", None)) is not None:
                close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Log requests only at debug level."""
        log.debug("event=request %s", format % args)


# The response to a request. Needs no socket.

CHUNK_BYTES: Final = 256 << 10
QUERY_FIELDS_MAX: Final = 20
OWN: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The policy of our own pages."""
SELF_CONTAINED: Final = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The policy of a report or a comparison; its plot library compiles templates by eval."""
NOTHING: Final = "sandbox; default-src 'none'; frame-ancestors 'none'"
HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
TEXTS: Final = (".json", ".jsonl", ".log", ".toml", ".txt", ".xml", ".conf", ".md", ".csv")
REPORTS: Final = ("report.html", "matrix.html")
"""The only files of a store that are sent as HTML, besides the pages of violations."""
COMMON: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response: a status, a body (whole or in pieces) and headers."""

    status: int
    kind: str
    body: bytes | Iterator[bytes]
    policy: str = OWN
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        """All headers except those of the connection."""
        length = len(self.body) if isinstance(self.body, bytes) else self.length
        unique = [("Content-Type", self.kind), ("Content-Security-Policy", self.policy)]
        unique += [("Content-Length", str(length))] if length is not None else []
        return [*unique, *COMMON, *self.headers]


@dataclass(slots=True)
class Site:
    """The web site of a store."""

    store: Path
    index: Index = field(init=False)
    trends: Trends = field(init=False)
    follower: Follower = field(default_factory=Follower)

    def __post_init__(self) -> None:
        """Create the index and the trends; they read nothing before a request."""
        self.index = Index(self.store)
        self.trends = Trends(self.store)

    def respond(self, target: str) -> Response:
        """Respond to a GET of `target`, a path with a query. No request makes it raise."""
        try:
            path, query = _parsed(target)
            return self._route(path, query)
        except NotHereError:
            return self.message(404, "There is nothing here.")

    def message(self, status: int, text: str) -> Response:
        """Return a page with one message."""
        return self._page("message.html.j2", status=status, text=text)

    def _route(self, path: str, query: dict[str, str]) -> Response:
        first, _, rest = path.removeprefix("/").partition("/")
        if first == "" and not rest:
            return self._page(
                "list.html.j2", program=PROGRAM, **pages.listing(self.index.listing(), query)
            )
        if first == "static":
            return _static(rest)
        if first == "files":
            return self._files(rest)
        if first == "trends" and not rest:
            return self._page("trends.html.j2", **pages.trending(self.index, self.trends, query))
        if first == "compare" and not rest:
            return self._compare(query)
        if first in ("run", "live", "zip"):
            return self._of_run(first, rest)
        raise NotHereError

    def _of_run(self, what: str, named: str) -> Response:
        """Respond for one run: its page, the live part of the page, or its files as a zip."""
        found = resolve_path(self.store, named)
        entry = self.index.entry(found)
        if what == "zip":
            name = f"{pages.safe_name(entry.name)}-{pages.safe_name(found.name)}.zip"
            disposition = ("Content-Disposition", f'attachment; filename="{name}"')
            return Response(200, "application/zip", zipped(found), NOTHING, (disposition,))
        live = self.follower.read_new(RunFolder(found)) if entry.state == "RUNNING" else None
        if what == "live":
            if live is None:
                return Response(200, HTML, b'<div id="live" data-state="ended"></div>')
            return self._page("live.html.j2", entry=entry, live=live)
        shown = pages.run(entry, self.index, has_report=RunFolder(found).report_html.is_file())
        return self._page("run.html.j2", live=live, **shown)

    def _page(self, template: str, **what: object) -> Response:
        status = what.get("status")
        text = pages.rendered(template, store=str(self.store), **what)
        body = text.encode(errors="replace")
        return Response(status if isinstance(status, int) else 200, HTML, body)

    def _compare(self, query: dict[str, str]) -> Response:
        if not query.get("a") or not query.get("b"):
            return self.message(400, "Choose a run A and a run B to compare.")
        from shaketable.reports.comparing.page import (  # noqa: PLC0415 - half a second
            compare_folders,
            render_comparison,
        )

        names = [unquote(query[letter], errors="surrogateescape") for letter in "ab"]
        folders = [resolve_path(self.store, name) for name in names]
        if not all(map(is_run, folders)):
            raise NotHereError
        if not all(is_self_contained(RunFolder(folder)) for folder in folders):
            return self.message(422, "One of these runs holds links or files that are none.")
        if any(is_large(RunFolder(folder)) for folder in folders):
            return self.message(413, f"Too large for a page: {PROGRAM} compare A B --html FILE")
        text = render_comparison(compare_folders(folders[0], folders[1]))
        return Response(200, HTML, text.encode(errors="replace"), SELF_CONTAINED)

    def _files(self, named: str) -> Response:
        found = resolve_path(self.store, named.rstrip("/"))
        if found.is_dir():
            here = found.relative_to(self.store.resolve())
            return self._page("folder.html.j2", **pages.folder(found, here, is_run=is_run(found)))
        file, size = open_regular(found)
        kind, policy, headers = _kind(found)
        return Response(200, kind, _Pieces(file, size), policy, headers, length=size)


@dataclass(slots=True)
class _Pieces:
    """A file, read while it is sent; its length is fixed when it is opened."""

    file: BinaryIO
    left: int

    def __iter__(self) -> _Pieces:
        return self

    def __next__(self) -> bytes:
        data = self.file.read(min(CHUNK_BYTES, self.left)) if self.left > 0 else b""
        if not data:
            self.close()
            raise StopIteration
        self.left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self.left = 0
        self.file.close()


def _parsed(target: str) -> tuple[str, dict[str, str]]:
    """Split a request's target into its path and the fields of its query.

    Raises:
        NotHereError: it is not a path.
    """
    if not target.startswith("/") or target.startswith("//"):
        raise NotHereError
    try:
        split = urlsplit(target)
        path = unquote(split.path, errors="surrogateescape")
        query = dict(parse_qsl(split.query, max_num_fields=QUERY_FIELDS_MAX))
    except ValueError as error:
        raise NotHereError from error
    return path, query


def _static(name: str) -> Response:
    """Return our style or script."""
    if name == "store.css":
        return Response(200, "text/css; charset=utf-8", pages.style())
    if name == "store.js":
        return Response(200, "text/javascript; charset=utf-8", pages.script())
    raise NotHereError


def _kind(path: Path) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return how a file of the store is sent (HTML, text or a download): type, policy, headers."""
    if path.name in REPORTS and (is_run(path.parent) or path.name == "matrix.html"):
        return HTML, SELF_CONTAINED, ()
    if VIOLATION.fullmatch(path.name) and _is_of_violations(path.parent):
        return HTML, SELF_CONTAINED, ()
    guessed = mimetypes.guess_type(path.name)[0] or ""
    if path.suffix in TEXTS or guessed.startswith("text/"):
        return PLAIN, NOTHING, ()
    name = pages.safe_name(path.name)
    disposition = ("Content-Disposition", f'attachment; filename="{name}"')
    return "application/octet-stream", NOTHING, (disposition,)


def _is_of_violations(folder: Path) -> bool:
    """Return whether a folder holds the pages of a run's violations."""
    return folder.name == RunFolder(folder.parent).violations.name and is_run(folder.parent)


# A run's folder as a zip that is created while it is sent, not in memory or on disk.

ZIP_CHUNK_BYTES: Final = 256 << 10
ZIP_BYTES_MAX: Final = 8 << 30
"""Total size of the files; what exceeds it is left out and listed in a file of the zip."""
FILES_MAX: Final = 20_000
LEFT_OUT: Final = "LEFT-OUT.txt"


class _Pipe:
    """An unseekable file for `zipfile` to write to, whose content is taken piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Buffer the data until it is taken."""
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no underlying file."""

    def take(self) -> bytes:
        """Return and clear the data written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def zipped(folder: Path) -> Iterator[bytes]:
    """Yield the bytes of a zip of all regular files below `folder`, under the folder's name.

    Links are left out, since they may lead outside the store.
    """
    pipe = _Pipe()
    left_bytes, left_files = ZIP_BYTES_MAX, FILES_MAX
    left_out: list[str] = []
    names: set[str] = set()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:  # type: ignore[call-overload]
        for path in files_below(folder):
            name = _unique_name(f"{folder.name}/{path.relative_to(folder)}", names)
            try:
                file, size = open_regular(path)
            except NotHereError:
                left_out.append(f"{name}: cannot be read")
                continue
            with file:
                if size > left_bytes or not left_files:
                    left_out.append(f"{name}: {size:,} bytes, too much for one download")
                    continue
                left_bytes, left_files = left_bytes - size, left_files - 1
                info = zipfile.ZipInfo(name)
                info.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(info, "w", force_zip64=True) as member:
                    while size > 0 and (data := file.read(min(ZIP_CHUNK_BYTES, size))):
                        size -= len(data)
                        member.write(data)
                        if sent := pipe.take():
                            yield sent
        if left_out:
            archive.writestr(
                _unique_name(f"{folder.name}/{LEFT_OUT}", names), "\n".join(left_out) + "\n"
            )
    if sent := pipe.take():
        yield sent


def _unique_name(name: str, names: set[str]) -> str:
    """Return a name that is valid UTF-8 and unique in the zip; file names need not be UTF-8."""
    unique = name.encode(errors="surrogateescape").decode(errors="replace")
    number = 1
    while unique in names:
        number += 1
        unique = f"{name.encode(errors='surrogateescape').decode(errors='replace')}~{number}"
    names.add(unique)
    return unique


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder by name, without hidden (half-written) ones."""
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if is_allowed_name(name))
        for name in sorted(filter(is_allowed_name, names)):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path
