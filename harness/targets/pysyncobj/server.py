"""A node of the target pysyncobj: a replicated object, served by HTTP. It imports nothing of ours.

POST /write with [key, value] as JSON answers with what the replicated method returned; GET /status
says who leads. An error is 503 with PySyncObj's name of the reason (`FAIL_REASON`).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pysyncobj import SyncObjConf

APPLIED_WITHIN_S: Final = 10.0
"""A request whose command is not applied so late is answered as unknown: clients gave up before."""
NEVER: Final = 1_000_000_000
"""Entries, and seconds, after which the log is compacted if it is not to be."""
RECONNECT_S: Final = 0.5
"""PySyncObj's own is 5 s, longer than most faults."""
SEND_TICKS: Final = 2
"""Entries are sent every second tick, as by PySyncObj's own 50 and 100 ms. With each command sent
at once (`appendEntriesUseBatch` off) one of two groups did not catch up after the faults."""
OWN_TICK_MS: Final = 50
ELECTION_TIMEOUTS_S: Final = (0.4, 1.4)
"""PySyncObj's own, the shortest and the longest. They grow with ticks that are longer than its own,
since the shortest must be longer than three rounds of entries."""
CONNECTION_TIMEOUT_S: Final = 3.5
"""PySyncObj's own; it must not be shorter than an election's."""
REPLICATED: Final = (
    "read", "write", "cas", "append", "read_at", "end", "add", "elements", "increment", "count",
)  # fmt: skip
CHANGE_NOTHING: Final = frozenset({"read", "read_at", "end", "elements", "count"})


class Values:
    """The state: a register, a log, a set and a counter for each key. One thread at a time."""

    def __init__(self) -> None:
        self.registers: dict[str, int] = {}
        self.logs: dict[str, list[int]] = {}
        self.sets: dict[str, list[int]] = {}
        self.counters: dict[str, int] = {}

    def read(self, key: str) -> int | None:
        """Return a register's value."""
        return self.registers.get(key)

    def write(self, key: str, value: int) -> None:
        """Write a register."""
        self.registers[key] = value

    def cas(self, key: str, expected: int | None, value: int) -> bool:
        """Write a register if it holds `expected`."""
        if self.registers.get(key) != expected:
            return False
        self.registers[key] = value
        return True

    def append(self, key: str, value: int) -> int:
        """Append to a log; return the offset."""
        log = self.logs.setdefault(key, [])
        log.append(value)
        return len(log) - 1

    def read_at(self, key: str, offset: int) -> int | None:
        """Return a log's value at an offset."""
        log = self.logs.get(key, [])
        return log[offset] if offset < len(log) else None

    def end(self, key: str) -> int:
        """Return the offset of the next append."""
        return len(self.logs.get(key, []))

    def add(self, key: str, value: int) -> None:
        """Add to a set."""
        self.sets.setdefault(key, []).append(value)

    def elements(self, key: str) -> list[int]:
        """Return a set's elements."""
        return list(self.sets.get(key, []))

    def increment(self, key: str, amount: int) -> None:
        """Add to a counter."""
        self.counters[key] = self.counters.get(key, 0) + amount

    def count(self, key: str) -> int:
        """Return a counter's value."""
        return self.counters.get(key, 0)


def configuration(given: argparse.Namespace) -> SyncObjConf:
    """Return PySyncObj's configuration for a node."""
    from pysyncobj import SyncObjConf  # noqa: PLC0415 - its folder is an argument

    is_kept, compacted = given.journal == "on", given.compaction_entries
    slower = max(1.0, given.tick_ms / OWN_TICK_MS)
    shortest_s, longest_s = (each * slower for each in ELECTION_TIMEOUTS_S)
    conf = {
        "bindAddress": given.bind,
        "commandsWaitLeader": False,  # refused at once, rather than applied after the client left
        "autoTickPeriod": given.tick_ms / 1000,
        "appendEntriesPeriod": SEND_TICKS * given.tick_ms / 1000,
        "raftMinTimeout": shortest_s,
        "raftMaxTimeout": longest_s,
        "connectionTimeout": max(CONNECTION_TIMEOUT_S, longest_s),
        "connectionRetryTime": RECONNECT_S,
        "logCompactionMinEntries": NEVER if compacted == "off" else int(compacted),
    }
    if compacted == "off":
        conf["logCompactionMinTime"] = NEVER
    if is_kept:
        conf |= {
            "journalFile": str(given.data / "journal"),
            "fullDumpFile": str(given.data / "dump"),
        }
    return SyncObjConf(**conf)


def replicated_object(given: argparse.Namespace) -> Any:
    """Start the node's part of the replicated object: PySyncObj ticks in a thread of its own."""
    from pysyncobj import SyncObj, replicated  # noqa: PLC0415 - its folder is an argument

    class Store(SyncObj):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            others = [peer for peer in given.peers.split(",") if peer]
            super().__init__(given.self, others, configuration(given))
            self.values = Values()
            self.ballast = os.urandom(1000 * given.state_kb)

        @replicated  # type: ignore[untyped-decorator]
        def run(self, name: str, arguments: list[Any]) -> Any:
            return getattr(self.values, name)(*arguments)

    return Store()


class Handler(BaseHTTPRequestHandler):
    """Answers requests, each connection in a thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Any
    are_reads_local = False

    def do_GET(self) -> None:
        """Say who leads."""
        status = self.store.getStatus()
        leader = status["leader"]
        said = {
            "leader": None if leader is None else leader.id,
            "term": status["raft_term"],
            "committed": status["commit_idx"],
            "end": status["last_applied"],
        }
        self._answer(200, said)

    def do_POST(self) -> None:
        """Run a method through the log, or a read here."""
        name = self.path.removeprefix("/")
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if name not in REPLICATED:
            self._answer(404, name)
        elif self.are_reads_local and name in CHANGE_NOTHING:
            self._answer(200, getattr(self.store.values, name)(*arguments))
        else:
            self._answer(*self._replicated(name, arguments))

    def _replicated(self, name: str, arguments: list[Any]) -> tuple[int, Any]:
        from pysyncobj import FAIL_REASON  # noqa: PLC0415 - its folder is an argument

        applied = threading.Event()
        found: list[tuple[Any, int]] = []

        def tell(result: Any, error: int) -> None:
            found.append((result, error))
            applied.set()

        self.store.run(name, arguments, callback=tell)
        if not applied.wait(APPLIED_WITHIN_S):
            return 503, "no answer"
        result, error = found[0]
        reasons = {number: reason for reason, number in vars(FAIL_REASON).items()}
        return (200, result) if error == FAIL_REASON.SUCCESS else (503, reasons[error])

    def _answer(self, code: int, said: object) -> None:
        body = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log no request: there are thousands."""


class Server(ThreadingHTTPServer):
    """Serves many clients, some of which leave without waiting for their answer."""

    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless it is that a client has left."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Run a node until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True, help="folder of the library")
    parser.add_argument("--client", required=True)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--self", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--compaction-entries", required=True)
    parser.add_argument("--reads", required=True)
    parser.add_argument("--tick-ms", required=True, type=int)
    parser.add_argument("--state-kb", required=True, type=int)
    given = parser.parse_args()
    sys.path.insert(0, given.library)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    Handler.store = replicated_object(given)
    Handler.are_reads_local = given.reads == "local"
    host, _, port = given.client.rpartition(":")
    Server((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
