"""RocketMQ messages as stored and as pulled (DLEDGER.md B.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from system.store.disk import StoreError


class DamagedMessage(StoreError):
    """The bytes are no stored message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. Hosts are 8 bytes (IPv4 + i32 port) or 20 (IPv6 + i32 port)."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = bytes(8)
    store_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def encode_message(message: Message) -> bytes:
    """Return the stored form."""
    raise NotImplementedError


def decode_message(data: bytes | memoryview) -> Message:
    """Decode one message that fills `data`. Raises DamagedMessage."""
    raise NotImplementedError


def walk_messages(data: bytes | memoryview) -> Iterator[Message]:
    """Decode messages that stand one behind the other (the body of a pull response)."""
    raise NotImplementedError


def encode_properties(properties: dict[str, str]) -> bytes:
    """Return name, 0x01, value, 0x02 for each property."""
    raise NotImplementedError


def decode_properties(data: bytes) -> dict[str, str]:
    """Read properties; parts without a value are left out, as MessageDecoder does."""
    raise NotImplementedError


def host_bytes(ip: str, port: int) -> bytes:
    """Return an IPv4 address and port as the 8 bytes of a stored host."""
    raise NotImplementedError


def offset_message_id(store_host: bytes, physical_offset: int) -> bytes:
    """Return the offset message id: 32 upper-case hex digits for an IPv4 host."""
    raise NotImplementedError
