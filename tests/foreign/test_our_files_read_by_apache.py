"""Apache's store opens what our nodes wrote in DLedger mode, and shows every message of it."""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import BrokerGroupClient
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import UpdateConsumerOffset
from tests.support.foreign_java import Program, java_in, needs_maven, servers
from tests.support.node_group import NodeGroup, until

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]

MEMBERS = ("n0", "n1", "n2")
QUEUES = (("orders", 0), ("orders", 3), ("bills", 1))
DATA_BYTES, QUEUE_BYTES, SLOTS, ITEMS = 65_536, 2_000, 100, 4_000
INDEX_BYTES = 5 * 1024 * 1024 * 32
"""DLedger's own; the broker has no key for it."""
COUNT = 90
READ_SECONDS_MAX = 120
EVENTS = "RMQ_SYS_DLEDGER_EVENT"
TERM_STARTS, TOPICS, OFFSETS = 0, 2, 3
ENTRY_HEAD = 48


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(
        tmp_path,
        *MEMBERS,
        mappedFileSizeCommitLog=str(DATA_BYTES),
        mappedFileSizeIndex=str(INDEX_BYTES),
        mappedFileSizeConsumeQueue=str(QUEUE_BYTES),
        maxHashSlotNum=str(SLOTS),
        maxIndexNum=str(ITEMS),
    )
    try:
        yield nodes
    finally:
        nodes.close()


@dataclass
class Sent:
    """What was acknowledged: digest and tags by (topic, queue, offset); digests in doubt."""

    by_place: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    keyed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    async def send(self, client: BrokerGroupClient, first: int) -> None:
        """Send messages of many sizes, and commit offsets between them."""
        for number in range(first, first + COUNT):
            (topic, queue_id), tags = QUEUES[number % 3], ("odd", "even", "")[number % 4 % 3]
            properties = f"KEYS\x01k{number % 10}\x02" + (f"TAGS\x01{tags}\x02" if tags else "")
            body = b"%d " % number + bytes(number * 17 % 1500)
            place = await self._send(client, topic, queue_id, body, properties)
            self.by_place[place] = (digest(body), tags or "null")
            if number % 10 == 7:
                self.keyed[topic].add(digest(body))
            if number % 8 == 0:
                await commit(client, topic, queue_id, number)

    async def _send(
        self, client: BrokerGroupClient, topic: str, queue_id: int, body: bytes, properties: str
    ) -> tuple[str, str, str]:
        while True:
            try:
                result = await client.send(topic, queue_id, body, properties=properties)
            except RefusedError:
                await trio.sleep(0.05)
            except OutcomeUnknownError:
                self.unknown.add(digest(body))
            else:
                return topic, str(queue_id), str(result.queue_offset)


async def commit(client: BrokerGroupClient, topic: str, queue_id: int, offset: int) -> None:
    fields = UpdateConsumerOffset("readers", topic, queue_id, offset).to_ext()
    await until(lambda: client.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, fields), "a commit")


def digest(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def test_apaches_store_shows_every_message_of_ours(tmp_path: Path, group: NodeGroup) -> None:
    sent = Sent()

    async def story() -> None:
        group.start(*MEMBERS)
        client = group.client()
        await group.leader()
        await sent.send(client, 0)
        for begin in (COUNT, 2 * COUNT):
            leader = await group.leader()
            group.kill(leader)
            await sent.send(client, begin)
            group.start(leader)
        for name in MEMBERS:
            await group.caught_up(name)

        nonlocal last
        last = await group.leader()

    last = ""
    group.tell(story)
    # The leader last: told to end, it would hand over, and the next term find nobody to join it.
    group.stop(*(name for name in MEMBERS if name != last))
    group.stop(last)
    copies = [copied(group.store(name), tmp_path / f"copy-{name}") for name in MEMBERS]
    peers = ";".join(f"{name}-{group.peer_address(name)}" for name in MEMBERS)
    with java_in(tmp_path) as java:
        limits = map(str, (DATA_BYTES, QUEUE_BYTES, SLOTS, ITEMS))
        stores = [f"{name}={copy}" for name, copy in zip(MEMBERS, copies, strict=True)]
        reader = java.start(
            servers(), "shaketable.StoreReader", "g", peers, *limits, "k7", *stores, heap_mb=512
        )
        assert reader.wait(READ_SECONDS_MAX) == 0, reader.lines[-20:]
    for name, lines in by_store(reader).items():
        try:
            assert_shows(lines, sent)
        except AssertionError as error:
            error.add_note(f"in the store of {name}")
            raise


def copied(store: Path, copy: Path) -> Path:
    """Copy a store, its holes as holes."""
    subprocess.run(["cp", "-r", "--sparse=always", str(store), str(copy)], check=True, timeout=60)
    return copy


def by_store(reader: Program) -> dict[str, dict[str, list[list[str]]]]:
    """Return the words of each store's lines, by their first word."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    for line in reader.lines:
        kind, *words = line.split(" ")
        if kind == "store":
            lines = found[words[0]] = defaultdict(list)
        elif found:
            lines[kind].append(words)
    assert tuple(found) == MEMBERS, reader.lines[-20:]
    return found


def assert_shows(lines: dict[str, list[list[str]]], sent: Sent) -> None:
    assert not lines["none"]
    ((begin, end, committed),) = lines["ledger"]
    assert (begin, committed) == ("0", end)
    entries = lines["entry"]
    assert [int(entry[0]) for entry in entries] == list(range(int(end) + 1))
    assert len({entry[1] for entry in entries}) >= 3
    assert_messages(lines["message"], {int(entry[2]) + ENTRY_HEAD for entry in entries}, sent)
    assert_units(lines["unit"], lines["message"])
    for topic, digests in sent.keyed.items():
        found = [words[1] for words in lines["keyed"] if words[0] == topic]
        assert digests <= set(found) <= digests | sent.unknown


def assert_messages(messages: list[list[str]], places: set[int], sent: Sent) -> None:
    """Each acknowledged one stands where it was said to be; beside them only ours and unknown."""
    assert {int(words[3]) for words in messages} == places
    shown = {
        (topic, queue, offset): (body, tags)
        for topic, queue, offset, _, _, body, tags, _ in messages
        if topic != EVENTS
    }
    assert {place: shown.get(place) for place in sent.by_place} == sent.by_place
    others = [body for place, (body, _) in shown.items() if place not in sent.by_place]
    assert sent.unknown.issuperset(others)
    assert len(others) == len(set(others))
    ours = [int(queue) for topic, queue, *_ in messages if topic == EVENTS]
    assert ours.count(TERM_STARTS) >= 3
    assert ours.count(TOPICS) >= 2
    assert ours.count(OFFSETS) >= COUNT // 8


def assert_units(units: list[list[str]], messages: list[list[str]]) -> None:
    """There is a unit of each message, with its place, size and the hash of its tags."""
    said = {(topic, queue, offset): rest for topic, queue, offset, *rest in units}
    assert len(said) == len(units) == len(messages)
    for topic, queue, offset, position, message_id, _, _, tags_hash in messages:
        at, size, code = said[topic, queue, offset]
        assert (at, code) == (position, tags_hash)
        assert int(message_id[16:], 16) == int(position)
        assert int(size) > 0
    by_queue: dict[tuple[str, str], list[int]] = defaultdict(list)
    for topic, queue, offset, *_ in units:
        by_queue[topic, queue].append(int(offset))
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
