"""The server itself: who it listens to, and for whom it answers."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shaketable.harness import cli
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.serving.server import StoreServer

Write = Callable[..., Path]


@pytest.fixture
def server(store: Path) -> Iterator[StoreServer]:
    with StoreServer(store, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(
    server: StoreServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = (answer.status, dict(answer.getheaders()), answer.read())
    connection.close()
    return found


def test_it_listens_on_this_machine_alone(server: StoreServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_pages_files_and_zips_arrive(server: StoreServer, write_run: Write) -> None:
    write_run()
    id_ = "quick/20261122T101500.000Z"
    status, headers, body = get(server, "/")
    assert (status, b"1 of 1 run<" in body) == (200, True)
    assert "'unsafe-inline'" not in headers["Content-Security-Policy"]
    assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert get(server, f"/files/{id_}/report.html")[2].endswith(b"a report</title>")
    status, headers, body = get(server, f"/zip/{id_}")
    assert headers["Transfer-Encoding"] == "chunked"
    assert zipfile.ZipFile(io.BytesIO(body)).testzip() is None
    status, headers, body = get(server, f"/files/{id_}/report.html", method="HEAD")
    assert (status, body, int(headers["Content-Length"]) > 0) == (200, b"", True)
    assert get(server, "/static/store.js")[1]["Content-Type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}"]
)
def test_requests_for_other_names_are_refused(
    server: StoreServer, write_run: Write, host: str
) -> None:
    write_run()
    status, _, body = get(server, "/", host=host.format(port=server.server_port))
    assert status == 421
    assert b"quick" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server: StoreServer, method: str) -> None:
    assert get(server, "/", method=method)[0] == 501


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    ],
    ids=["no host", "two hosts", "long", "nonsense", "dots"],
)
def test_odd_requests_get_a_refusal(server: StoreServer, request_bytes: bytes) -> None:
    port = server.server_port
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(request_bytes.replace(b"{port}", str(port).encode()))
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert b" 4" in answer.split(b"\r\n")[0] or b"Error code: 4" in answer
    assert b"root:" not in answer


def test_a_page_that_fails_is_told_and_the_next_one_is_made(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr("shaketable.harness.serving.pages.listing", fail)
        assert get(server, "/")[0] == 500
    assert get(server, "/")[0] == 200


def test_too_many_at_a_time_are_refused_and_later_ones_served(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [
        socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(16)
    ]
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as one_more:
        assert one_more.recv(100).startswith(b"HTTP/1.1 503")
    for client in waiting:
        client.close()
    while True:  # until the threads have seen that their clients are gone
        try:
            if get(server, "/")[0] == 200:
                break
        except (ConnectionError, http.client.HTTPException):
            continue


def test_a_port_in_use_and_a_store_that_is_none_are_told_in_a_line(
    server: StoreServer, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="--port 0 takes a free one"):
        StoreServer(store, server.server_port)
    for arguments in (
        ["serve", "--store", str(tmp_path / "nowhere")],
        ["serve", "--store", str(store), "--port", "99999"],
    ):
        assert cli.run(arguments) == 254
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert "Traceback" not in told
