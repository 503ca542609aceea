"""A store that replaces its one file at each write, right or in one of the ways that lose it.

Each line of a connection is a request, `read KEY` or `write KEY VALUE`; it is answered by a line. A
write is answered when the file is durable. The ways, after "All File Systems Are Not Created Equal"
(OSDI 2014): the new file is written, synced, renamed over the old one, and the folder synced.

    right          all of that, in this order
    rename-first   the file is synced last: until then its name stands for an empty one
    no-file-sync   the file is never synced
    no-dir-sync    the folder is never synced: the old file comes back
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path

FILE, NEW = "values.json", "values.json.new"


class Store:
    """The values, in a file of a folder."""

    def __init__(self, folder: Path, way: str) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._way = way
        self._lock = threading.Lock()
        self.values: dict[str, str] = {}
        if (folder / FILE).exists():
            self.values = json.loads((folder / FILE).read_text())

    def write(self, key: str, value: str) -> None:
        """Set a value, and store all of them."""
        with self._lock:
            values = {**self.values, key: value}
            new = os.open(NEW, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, dir_fd=self._folder)
            os.write(new, json.dumps(values).encode())
            steps: dict[str, Callable[[], None]] = {
                "file": lambda: os.fsync(new),
                "rename": lambda: os.rename(
                    NEW, FILE, src_dir_fd=self._folder, dst_dir_fd=self._folder
                ),
                "dir": lambda: os.fsync(self._folder),
            }
            for step in {
                "right": ("file", "rename", "dir"),
                "rename-first": ("rename", "dir", "file"),
                "no-file-sync": ("rename", "dir"),
                "no-dir-sync": ("file", "rename"),
            }[self._way]:
                steps[step]()
            os.close(new)
            self.values = values  # only now: what was read must not be lost either


class Handler(socketserver.StreamRequestHandler):
    """Answers the requests of a connection."""

    store: Store

    def handle(self) -> None:
        """Answer until the client leaves."""
        for line in self.rfile:
            name, key, *value = line.decode().split()
            if name == "write":
                self.store.write(key, value[0])
                answer = "done"
            else:
                answer = self.store.values.get(key, "none")
            self.wfile.write(f"{answer}\n".encode())


class Server(socketserver.ThreadingTCPServer):
    """Each connection has a thread."""

    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    """Serve until ended."""
    address, folder, way = sys.argv[1:]
    Handler.store = Store(Path(folder), way)
    host, _, port = address.rpartition(":")
    with Server((host, int(port)), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
