"""One remoting command, generic: any request or response in both header serialisations.

Source: RocketMQ's RemotingCommand, RocketMQSerializable, LanguageCode; DLEDGER.md A.1.
"""

from __future__ import annotations

import msgspec

from system.remoting.frame import Frame, SerializeType

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
VERSION = 409
"""V4_9_8 in MQVersion: what we announce."""


class CommandError(Exception):
    """The frame is whole but its header, or a field that the request needs, is not right."""


class Command(msgspec.Struct, gc=False):
    """A request or a response. `body` of a decoded one lives as long as its frame."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes | memoryview = b""
    serialize_type: int = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours with the same `opaque`."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONEWAY_FLAG)


def decode_command(frame: Frame) -> Command:
    """Decode any frame's header. Raises CommandError, and nothing else."""
    raise NotImplementedError


def encode_command(command: Command) -> bytes:
    """Return the whole frame, header in `command.serialize_type`.

    Raises CommandError if a field does not fit its place on the wire.
    """
    raise NotImplementedError
