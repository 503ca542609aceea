"""A small key-value server to be shaken: one node stores, the others forward to it.

    server.py --id n1 --client 127.0.0.1:7001 --peer 127.0.0.1:8001 --data FOLDER \
        --members n0=127.0.0.1:8000,n1=127.0.0.1:8001 [--lazy | --unsynced]

A request is a line, and so is its answer: "GET key", "SET key value", "CAS key expected value". The
first of the members stores; each write is in its file, and synced, before it is answered. With
`--lazy` the file is written once in five seconds: what a kill loses then had been acknowledged.
With `--unsynced` it is written at once and synced once in five seconds: a kill loses nothing, and a
power loss does.
"""

import argparse
import asyncio
import os
from pathlib import Path

SYNC_EVERY_S = 5


class Store:
    """The values, and the file that they are read from at the start."""

    def __init__(self, file: Path, *, is_lazy: bool, is_unsynced: bool) -> None:
        self._is_lazy = is_lazy
        self._is_unsynced = is_unsynced
        self._values: dict[str, str] = {}
        self._unwritten: list[str] = []
        if file.exists():
            for line in file.read_text().splitlines():
                key, _, value = line.partition(" ")
                self._values[key] = value
        self._file = file.open("a")
        folder = os.open(file.parent, os.O_RDONLY)
        os.fsync(folder)  # by POSIX an fsync of the file keeps its bytes, and not its name
        os.close(folder)

    def answer(self, request: list[str]) -> str:
        """Answer a request."""
        match request:
            case ["GET", key]:
                return self._values.get(key, "nil")
            case ["SET", key, value]:
                self._set(key, value)
                return "OK"
            case ["CAS", key, expected, value]:
                if self._values.get(key, "nil") != expected:
                    return "0"
                self._set(key, value)
                return "1"
        return "ERR what?"

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        self._unwritten.append(f"{key} {value}\n")
        if self._is_unsynced:
            self._write()
        elif not self._is_lazy:
            self.sync()

    def sync(self) -> None:
        """Write what is not written, and sync it."""
        self._write()
        os.fsync(self._file.fileno())

    def _write(self) -> None:
        self._file.writelines(self._unwritten)
        self._unwritten.clear()
        self._file.flush()


class Server:
    """A node: it answers from its store, or asks the first of the members."""

    def __init__(self, store: Store | None, first: str) -> None:
        self._store = store
        self._first = first.split(":")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        onward = None
        try:
            while line := await reader.readline():
                if self._store is not None:
                    answer = f"{self._store.answer(line.decode().split())}\n".encode()
                else:
                    onward = onward or await asyncio.open_connection(*self._first)
                    onward[1].write(line)
                    answer = await onward[0].readline()
                    if not answer:
                        return  # the first node is gone; whether it did it is unknown
                writer.write(answer)
        except OSError:
            return
        finally:
            for end in (writer, onward and onward[1]):
                if end:
                    end.close()


async def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    for option in ("--id", "--client", "--peer", "--members", "--data"):
        parser.add_argument(option, required=True)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--unsynced", action="store_true")
    given = parser.parse_args()
    members = dict(each.split("=") for each in given.members.split(","))
    first = min(members)
    store = None
    if given.id == first:
        file = Path(given.data) / "values"
        store = Store(file, is_lazy=given.lazy, is_unsynced=given.unsynced)
    server = Server(store, members[first])
    for address in (given.client, given.peer):
        host, port = address.split(":")
        await asyncio.start_server(server.serve, host, int(port))
    print(f"{given.id} is ready", flush=True)
    while True:
        await asyncio.sleep(SYNC_EVERY_S)
        if store is not None:
            store.sync()


if __name__ == "__main__":
    asyncio.run(main())
