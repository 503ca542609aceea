"""The HTTP server of a store: listens on 127.0.0.1 only, and checks the Host header.

A foreign page may resolve its name to 127.0.0.1 (DNS rebinding); its requests carry that name as
their Host and are refused. Why the standard library's server: docs/adr/0029.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.serving.responses import Response, Site

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
