"""A group of real node processes that tests start, kill, wipe and talk to.

Every wait has a limit, and `close` ends every process however the test went.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import AdminClient, BrokerGroupClient, Metadata

Result = TypeVar("Result")
Address = tuple[str, int]

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
STORY_TIMEOUT_S = 90.0
WAIT_TIMEOUT_S = 40.0
END_TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 10.0
POLL_S = 0.05
LOG_TAIL_LINES = 15


class NodeGroup:
    """Nodes by name, each with its ports, folder and log file; `names` may grow.

    `settings` are keys of each broker.conf; `program` is the module that runs a node, and
    `reach(a, b)` where node a finds node b, for a network between them.
    """

    def __init__(
        self, folder: Path, *names: str, program: str = "shaketable.system.node", **settings: str
    ):
        self.folder = folder
        self.settings = settings
        self.program = program
        self.client_ports: dict[str, int] = {}
        self.peer_ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.peers = names
        self.reach: Callable[[str, str], Address] = lambda _, name: (HOST, self.peer_ports[name])
        self.clients: list[BrokerGroupClient] = []
        self._add(names)

    # ---- processes --------------------------------------------------------------------

    def start(self, *names: str, **more: str) -> None:
        """Start nodes; those that are not of the group yet, as nodes that join."""
        for name in names:
            if name not in self.client_ports:
                self._add([name])
            conf = self._write_conf(name, more)
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", self.program, "-c", str(conf)],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )

    def join(self, name: str) -> None:
        """Start a new node on an empty store; the group has to be told of it."""
        self.start(name, shaketableJoin="true")

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes[name].wait(END_TIMEOUT_S)

    def stop(self, *names: str) -> None:
        """End nodes in order; each has to say that all was well."""
        for name in names:
            self.processes[name].terminate()
        for name in names:
            assert self.processes[name].wait(END_TIMEOUT_S) == 0, self.log(name)

    def wipe(self, name: str) -> None:
        """Remove all that a dead node had."""
        assert self.processes[name].poll() is not None
        shutil.rmtree(self.store(name))

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait(END_TIMEOUT_S)

    def store(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def peer_address(self, name: str) -> str:
        return f"{HOST}:{self.peer_ports[name]}"

    def client_address(self, name: str) -> Address:
        return (HOST, self.client_ports[name])

    # ---- stories ----------------------------------------------------------------------

    def tell(self, story: Callable[[], Awaitable[Result]]) -> Result:
        """Run an async story to its end, at most `STORY_TIMEOUT_S`; its clients are closed."""

        async def main() -> Result:
            try:
                with trio.fail_after(STORY_TIMEOUT_S):
                    return await story()
            finally:
                for client in self.clients:
                    client.close()

        try:
            return trio.run(main)
        except BaseException as error:
            for name in self.processes:
                tail = self.log(name).splitlines()[-LOG_TAIL_LINES:]
                error.add_note("\n  ".join([f"the log of {name} ends:", *tail]))
            raise

    def client(self, *names: str, timeout_s: float = CALL_TIMEOUT_S) -> BrokerGroupClient:
        """Return a client of these nodes, of all without names."""
        chosen = names or tuple(self.client_ports)
        addresses = {name: self.client_address(name) for name in chosen}
        client = BrokerGroupClient(addresses, timeout_s=timeout_s, rng=Random(len(self.clients)))
        self.clients.append(client)
        return client

    def admin(self, *names: str) -> AdminClient:
        return AdminClient(self.client(*names))

    async def leader(self, *names: str) -> str:
        """Wait until one of these nodes (all that run) leads and serves; return which."""
        running = [name for name, process in self.processes.items() if process.poll() is None]
        client = self.client(*(names or running))

        async def serving() -> str | None:
            await client.max_offset("t", 0)  # a leader that is ready answers
            return client.answered_by

        return await until(serving, "a leader serves")

    async def metadata(self, name: str) -> Metadata:
        """Ask a node for its state, until it answers."""
        client = self.client(name)
        return await until(lambda: client.metadata(name), f"{name} answers")

    async def caught_up(self, name: str) -> Metadata:
        """Wait until a node has applied all that the leader has committed by now."""
        leader = await self.metadata(await self.leader())
        client = self.client(name)

        async def state() -> Metadata | None:
            found = await client.metadata(name)
            return found if found.applied_index >= leader.committed_index else None

        return await until(state, f"{name} has applied entry {leader.committed_index}")

    async def role(self, name: str, *roles: str) -> Metadata:
        """Wait until a node has one of these roles."""
        client = self.client(name)

        async def state() -> Metadata | None:
            found = await client.metadata(name)
            return found if found.role in roles else None

        return await until(state, f"{name} is {' or '.join(roles)}")

    # ---- configuration ----------------------------------------------------------------

    def _add(self, names: Iterable[str]) -> None:
        new = list(names)
        ports = find_free(2 * len(new))
        self.client_ports.update(zip(new, ports[: len(new)], strict=True))
        self.peer_ports.update(zip(new, ports[len(new) :], strict=True))

    def _write_conf(self, name: str, more: dict[str, str]) -> Path:
        places = {peer: self.reach(name, peer) for peer in self.peers if peer != name}
        places[name] = (HOST, self.peer_ports[name])
        values = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "g",
            "dLegerSelfId": name,
            "dLegerPeers": ";".join(f"{n}-{host}:{port}" for n, (host, port) in places.items()),
            "listenPort": str(self.client_ports[name]),
            "storePathRootDir": str(self.store(name)),
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeIndex": "8192",
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            **self.settings,
            **more,
        }
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path


async def until(look: Callable[[], Awaitable[Result | None]], what: str) -> Result:
    """Look again and again until something is found; errors of the client are nothing found."""
    last: object = "nothing yet"
    with trio.move_on_after(WAIT_TIMEOUT_S):
        while True:
            try:
                found = await look()
            except (RefusedError, OutcomeUnknownError) as error:
                last = error
            else:
                if found is not None and found is not False:
                    return found
                last = found
            await trio.sleep(POLL_S)
    raise AssertionError(f"waited {WAIT_TIMEOUT_S:g} s for: {what}; last: {last}")


async def repeat_read(read: Callable[[], Awaitable[Result]]) -> Result:
    """Read until there is an answer: a read has no effect, so it may be asked for again."""

    async def boxed() -> tuple[Result]:
        return (await read(),)

    return (await until(boxed, "a read is answered"))[0]


class Writer:
    """Sends messages, and remembers what became of each.

    `acknowledged[topic, queue id]` has bodies by offset; what ended unknown may be there, once.
    """

    def __init__(self, client: BrokerGroupClient) -> None:
        self.client = client
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
        self.unknown: set[bytes] = set()
        self.refused = 0
        self._count = 0

    async def send(self, topic: str, queue_id: int = 0) -> int:
        """Send messages until one is acknowledged; return its offset."""
        with trio.fail_after(WAIT_TIMEOUT_S):
            while (offset := await self.try_send(topic, queue_id)) is None:
                await trio.sleep(POLL_S)
        return offset

    async def send_some(self, topic: str, count: int, queue_id: int = 0) -> list[int]:
        return [await self.send(topic, queue_id) for _ in range(count)]

    async def try_send(self, topic: str, queue_id: int = 0) -> int | None:
        """Send one message, each with a body of its own; None if it is not acknowledged."""
        body = b"%s/%d/%d" % (topic.encode(), queue_id, self._count)
        self._count += 1
        try:
            result = await self.client.send(topic, queue_id, body)
        except RefusedError:
            self.refused += 1
            return None
        except OutcomeUnknownError:
            self.unknown.add(body)
            return None
        held = self.acknowledged.setdefault((topic, queue_id), {})
        assert result.queue_offset not in held, f"offset {result.queue_offset} given twice"
        held[result.queue_offset] = body
        return result.queue_offset

    async def fill(self, topic: str, batches: int, queue_id: int = 0) -> None:
        """Send batches of 16 KiB, to fill data files."""
        with trio.fail_after(WAIT_TIMEOUT_S):
            for _ in range(batches):
                bodies = [b"%08d" % (self._count + n) + bytes(2040) for n in range(8)]
                self._count += len(bodies)
                try:
                    result = await self.client.send_batch(topic, queue_id, bodies)
                except RefusedError:
                    self.refused += 1
                    continue
                except OutcomeUnknownError:
                    self.unknown.update(bodies)
                    continue
                held = self.acknowledged.setdefault((topic, queue_id), {})
                held.update(enumerate(bodies, result.first_offset))

    async def keep_sending(
        self, topic: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send until cancelled between two messages."""
        await self.send(topic)
        task_status.started()
        while True:
            with trio.CancelScope(shield=True):
                await self.try_send(topic)
            await trio.sleep(0.002)

    def assert_held(self, topic: str, found: dict[int, bytes], queue_id: int = 0) -> None:
        """What was acknowledged stands at its offset, and beside it only what may be there.

        Below the first offset found messages may be gone: expiry is up to the caller.
        """
        begin = min(found, default=0)
        assert sorted(found) == list(range(begin, begin + len(found)))
        sent = self.acknowledged.get((topic, queue_id), {})
        retained = {offset: body for offset, body in sent.items() if offset >= begin}
        assert {offset: found.get(offset) for offset in retained} == retained
        others = [body for offset, body in found.items() if offset not in sent]
        assert self.unknown.issuperset(others)
        assert len(others) == len(set(others))


async def contents(
    client: BrokerGroupClient, topic: str, queue_id: int = 0, *, member: str | None = None
) -> dict[int, bytes]:
    """Return bodies by offset: all that the group has committed, or all that a member knows of."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:

        async def read(offset: int = offset):
            if member is None:
                return await client.pull(topic, queue_id, offset)
            return await client.pull_from(member, topic, queue_id, offset)

        result = await repeat_read(read)
        for message in result.messages:
            found[message.queue_offset] = message.body
        if result.next_offset <= offset and not result.messages:
            return found
        offset = result.next_offset


async def queue_range(client: BrokerGroupClient, member: str, topic: str) -> tuple[int, int]:
    """Return a member's min and max offset of a topic's queue 0."""
    result = await repeat_read(lambda: client.pull_from(member, topic, 0, 0))
    return result.min_offset, result.max_offset
