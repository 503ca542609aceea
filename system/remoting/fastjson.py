"""JSON bodies as fastjson writes them: integer keys of maps may stand unquoted, `{0:"ip:port"}`.

Clients that announce a version below 401 read routes in that dialect alone; everything else is
standard JSON. Enums are names, bytes are base64, null fields are left out.
Source: RocketMQ's RemotingSerializable; DLEDGER.md A.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec

from shaketable.system.remoting.command import CommandError

BODY_BYTES_MAX = 8 << 20
"""A register body of 40,000 topics fits."""
DEPTH_MAX = 64
"""How deep maps and lists may stand in each other."""

_STRING = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""A string, also one that never ends: so that no byte is looked at twice."""
_STRINGS = re.compile(_STRING, re.DOTALL)
_BARE_KEY = re.compile(_STRING + rb"|([{,][ \t\r\n]*+)(-?[0-9]++)(?=[ \t\r\n]*+:)", re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_ENCODER = msgspec.json.Encoder()


def loads(data: bytes | memoryview, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """Read a JSON value in either dialect; integer keys come as strings ("0"), quoted or not.

    Raises CommandError, and nothing else, for what is no JSON, too long or too deep.
    """
    if len(data) > bytes_max:
        raise CommandError(f"a JSON body of {len(data)} bytes, at most {bytes_max}")
    text = bytes(data)
    if _depth(text) > DEPTH_MAX:
        raise CommandError(f"a JSON body nests deeper than {DEPTH_MAX}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        pass  # perhaps keys without quotes: looked at only where they may be
    try:
        return msgspec.json.decode(_BARE_KEY.sub(_quoted, text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CommandError(f"bad JSON body: {error}") from None


def dumps(value: Any, *, unquoted_integer_keys: bool) -> bytes:
    """Write a value of maps, lists, strings, numbers, booleans and bytes (as base64).

    Fields of maps that are None are left out. Keys that are integers stand without quotes
    where `unquoted_integer_keys`, for clients below version 401, and with quotes elsewhere.
    Raises CommandError for what is no JSON value, or nests deeper than `DEPTH_MAX`.
    """
    parts: list[bytes] = []
    try:
        _write(value, unquoted_integer_keys, parts, 0)
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise CommandError(f"cannot be written as JSON: {error}") from None
    return b"".join(parts)


def _depth(text: bytes) -> int:
    """Return how deep brackets stand in each other, strings left out."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return 0  # no deeper than that, and counting is all it takes to see it
    brackets = _STRINGS.sub(b"", text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _quoted(match: re.Match[bytes]) -> bytes:
    before, number = match.groups()
    return match[0] if number is None else b'%b"%b"' % (before, number)


def _write(value: object, is_bare: bool, parts: list[bytes], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise CommandError(f"a JSON body nests deeper than {DEPTH_MAX}")
    if isinstance(value, Mapping):
        before = b"{"
        for key, item in value.items():
            if item is not None:
                parts += (before, _key(key, is_bare), b":")
                _write(item, is_bare, parts, depth + 1)
                before = b","
        parts.append(b"{}" if before == b"{" else b"}")
    elif isinstance(value, list | tuple):
        before = b"["
        for item in value:
            parts.append(before)
            _write(item, is_bare, parts, depth + 1)
            before = b","
        parts.append(b"[]" if before == b"[" else b"]")
    else:
        parts.append(_ENCODER.encode(value))


def _key(key: object, is_bare: bool) -> bytes:
    if isinstance(key, str):
        return _ENCODER.encode(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key if is_bare else b'"%d"' % key
    raise TypeError(f"a key of type {type(key).__name__}")
