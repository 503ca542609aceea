"""Responses: the send response from a template (THROUGHPUT.md rule 5), the others by encoder."""

from __future__ import annotations

from collections.abc import Sequence

from system.remoting.frame import SerializeType


def send_response(
    opaque: int,
    message_id: bytes,
    queue_id: int,
    queue_offset: int,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return the whole frame that acknowledges a send. `message_id` is 32 hex digits (ASCII)."""
    raise NotImplementedError


def response(
    opaque: int,
    code: int,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: bytes | Sequence[bytes | memoryview] = b"",
    *,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return the whole frame of any response; `serialize_type` must be the request's."""
    raise NotImplementedError
