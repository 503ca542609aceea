"""Messages with keys and tags, and whether a node's key index and queues know them.

An append's keys and tags follow from its number. After each checkpoint and each start some keys are
looked up: the index must return every message that the checkpoint covers. So must the queues' units
of some messages have the hash of their tags, by which brokers filter what they deliver.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.fastjson import loads
from shaketable.system.remoting.requests import SendRequest, ViewMessage
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams
from shaketable.system.store.consume_queue_files import ConsumeQueueFiles
from shaketable.system.store.key_index import KeyIndex, has_key
from shaketable.system.store.message import decode_message

if TYPE_CHECKING:
    from shaketable.system.sim.rules.invariants import Queue


GROUPS = 13
"""Number of keys that many messages share."""
KEYS_PER_CHECK = 2
"""Keys looked up in one check: so many of single messages, and so many shared ones."""
TAGS_PER_CHECK = 20
"""Messages whose units are looked up in one check."""
_UNIT = struct.Struct(">qiq")
"""A unit of a consume queue: position, size, hash of the tags."""
_PARTS = 1_000
_MIXER = 2_654_435_761
_FOREVER_MS = 1 << 60
_TAGS = ("red", "green", "größer")
_UNIT_OF_GROUPS = "käse"


def properties_of(number: int, keyed: float) -> str:
    """Return the properties of append `number`: a share `keyed` of all has keys and tags."""
    if number * _MIXER // 65_536 % _PARTS >= keyed * _PARTS:
        return ""
    unique = f"UNIQ_KEY\x01{number:08}\x02"
    group = f"{_UNIT_OF_GROUPS}{number % GROUPS}" if number % 2 else f"group{number % GROUPS}"
    tags = f"TAGS\x01{_TAGS[number % len(_TAGS)]}\x02"
    how = number % 7
    if how == 0:
        return f"KEYS\x01{group}\x02"
    if how == 1:  # clients since RocketMQ 4.9.4 leave out the last separator
        return f"{unique}KEYS\x01{group} {number:08}\x02{tags}".rstrip("\x02")
    if how == 3:
        return f"{unique}KEYS\x01{group}\x02KEYS\x01\x02"
    if how == 2:
        return f"{unique}MYKEYS\x01nothing\x02TAGS\x01\x02{tags}NOTAGS\x01nothing"
    return f"{tags}KEYS\x01{group}  k{number}\x02{unique}"


def random_group_key(rng: RandomStream) -> bytes:
    """Return a random one of the keys that many messages share."""
    number = rng.randrange(GROUPS)
    return f"{_UNIT_OF_GROUPS}{number}".encode() if number % 2 else b"group%d" % number


class KeyQueries:
    """The keys of all committed messages, and lookups of them."""

    def __init__(self, rngs: RandomStreams, topic: bytes, queues: dict[Queue, list[bytes]]) -> None:
        self._rng = rngs.stream("key_queries")
        self._topic = topic
        self._queues = queues
        self._seen: dict[Queue, int] = {queue: len(held) for queue, held in queues.items()}
        self._older = dict(self._seen)
        """How many messages of each queue are from before the run: they are not kept here."""
        self._places: dict[bytes, list[tuple[int, int]]] = {}  # (position, store time)

    def check(self, index: KeyIndex, start_position: int, end_position: int) -> int:
        """Look up some keys of messages between two log positions; return how many.

        Raises Violated where a message is not found by its key, or results are out of order.
        """
        self._learn()
        keys = list(self._places)
        asked = [self._rng.choice(keys) for _ in range(KEYS_PER_CHECK) if keys]
        asked += [b"group%d" % self._rng.randrange(GROUPS) for _ in range(KEYS_PER_CHECK)]
        asked.append(f"{_UNIT_OF_GROUPS}{self._rng.randrange(GROUPS)}".encode())
        for key in asked:
            found = list(index.candidates(self._topic, key, 0, _FOREVER_MS))
            if found != sorted(set(found), reverse=True):
                raise Violated("keys-find-messages", f"{key!r} finds {found[:9]}, not newest first")
            lacking = {
                position
                for position, _ in self._places.get(key, ())
                if start_position <= position < end_position
            }.difference(found)
            if lacking:
                raise Violated(
                    "keys-find-messages", f"{key!r} does not find the message at {min(lacking)}"
                )
            for position, store_ms in self._draw_places(key, start_position, end_position):
                if position not in index.candidates(self._topic, key, store_ms, store_ms):
                    raise Violated(
                        "keys-find-messages", f"{key!r} does not find {position} by its time"
                    )
        return len(asked)

    def check_tags(self, units: ConsumeQueueFiles, start_position: int, end_position: int) -> None:
        """Compare the units of some messages between two log positions with their tags.

        Raises Violated.
        """
        queues = [
            queue
            for queue, held in self._queues.items()
            if queue[0] == self._topic and len(held) > self._older.get(queue, 0)
        ]
        for _ in range(TAGS_PER_CHECK if queues else 0):
            queue = self._rng.choice(queues)
            offset = self._rng.randrange(self._older.get(queue, 0), len(self._queues[queue]))
            message = decode_message(self._queues[queue][offset])
            if not start_position <= message.physical_offset < end_position:
                continue
            position, _, code = _UNIT.unpack(units.read_units(queue, offset, 1))
            expected = tags_code(message.properties)
            if (position, code) != (message.physical_offset, expected):
                raise Violated(
                    "units-are-the-messages",
                    f"offset {offset} of queue {queue[1]} leads to {position}, tags {code};"
                    f" its message is at {message.physical_offset}, tags {expected}",
                )

    def _draw_places(self, key: bytes, start: int, end: int) -> list[tuple[int, int]]:
        """Choose a random message with that key between two log positions, if any."""
        held = [place for place in self._places.get(key, ()) if start <= place[0] < end]
        return [self._rng.choice(held)] if held else []

    def _learn(self) -> None:
        for queue, messages in self._queues.items():
            seen = self._seen.get(queue, 0)
            self._seen[queue] = len(messages)
            if queue[0] != self._topic:
                continue
            for stored in messages[seen:]:
                message = decode_message(stored)
                for key in _keys_of(message.properties):
                    if has_key(self._topic, key, message.topic, message.properties):
                        place = (message.physical_offset, message.store_ms)
                        self._places.setdefault(key, []).append(place)


def tags_code(properties: bytes) -> int:
    """Return the hash of a message's tags, independently of the store's own code.

    Source: RocketMQ's tagsString2tagsCode, Java's String.hashCode.
    """
    tags = b""
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name == b"TAGS" and value:
            tags = value
    code, utf_16 = 0, tags.decode().encode("utf-16-be")
    for at in range(0, len(utf_16), 2):
        code = (31 * code + int.from_bytes(utf_16[at : at + 2], "big")) % (1 << 32)
    return code - (1 << 32) if code >= 1 << 31 else code


def _keys_of(properties: bytes) -> set[bytes]:
    """Parse a message's keys, independently of the index's own code."""
    keys: set[bytes] = set()
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name in (b"UNIQ_KEY", b"KEYS"):
            keys.update(key for key in value.split(b" ") if key)
    return keys


# Views of messages by positions that no client was told: of what is not committed yet.
#
# Ids of messages are positions in a broker's log, so a client can name one that is there and not
# committed. Any member answers a view, and none may return such a message.
# Source: RocketMQ's DefaultMessageStore.lookMessageByOffset, which trusts the position.

CONNECTION = -3
"""The connection for views at every node; their replies are checked."""
_applied_position = attrgetter("_reput.applied_position")


class ViewWorld(Protocol):
    """What the views need of the world they are in."""

    heap: EventHeap
    invariants: Invariants


class Viewed(Protocol):
    """What the views need of a member."""

    broker: Broker
    core: RaftCore

    def handle(self, connection: int, requests: Sequence[SendRequest | Command]) -> None:
        """Handle a client's requests that arrive in one read of the connection."""
        ...


class PositionViews:
    """Asks members for the first message after those that they have applied."""

    def __init__(self, world: ViewWorld) -> None:
        self._world = world
        self._opaque = 0

    def ask(self, member: Viewed) -> None:
        """Ask a member, if there is such a message in its log."""
        end_position = _applied_position(member.broker)
        if member.core.log.end_position <= end_position:
            return
        self._opaque += 1
        fields = ViewMessage(end_position + ENTRY_HEADER_BYTES)
        command = Command(RequestCode.VIEW_MESSAGE_BY_ID, self._opaque, ext=fields.to_ext())
        heap = self._world.heap
        heap.push(heap.now_ms, member.handle, CONNECTION, [command])

    def answered(self, replies: Sequence[bytes]) -> None:
        """Check that a message that is returned is committed. Raises Violated."""
        for reply in replies:
            body_at = 8 + int.from_bytes(reply[5:8], "big")
            if loads(reply[8:body_at])["code"] != ResponseCode.SUCCESS:
                continue
            message = decode_message(reply[body_at:])
            queue = message.topic, message.queue_id
            committed = self._world.invariants.queues.get(queue, [])
            if message.queue_offset >= len(committed):
                raise Violated(
                    "reads-are-committed",
                    f"a view by position returns offset {message.queue_offset} of"
                    f" {message.topic.decode()}/{message.queue_id}, committed up to"
                    f" {len(committed)}",
                )
