"""JSON bodies as fastjson writes them: maps may have unquoted integer keys, `{0:"ip:port"}`.

Clients that announce a version below 401 read routes in that dialect only; everything else is
standard JSON. Enums are names, bytes are base64, null fields are omitted.
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
"""Nesting limit of maps and lists."""

_STRING = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""A string, or an unterminated one, so that the scan never backtracks (linear time)."""
_STRINGS = re.compile(_STRING, re.DOTALL)
_BARE_KEY = re.compile(_STRING + rb"|([{,][ \t\r\n]*+)(-?[0-9]++)(?=[ \t\r\n]*+:)", re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_ENCODER = msgspec.json.Encoder()


def loads(data: bytes | memoryview, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """Decode a JSON value in either dialect; integer keys become strings ("0"), quoted or not.

    Raises only CommandError: for a body that is not JSON, too long or nested too deep.
    """
    if len(data) > bytes_max:
        raise CommandError(f"a JSON body of {len(data)} bytes, at most {bytes_max}")
    text = bytes(data)
    if _depth(text) > DEPTH_MAX:
        raise CommandError(f"a JSON body nests deeper than {DEPTH_MAX}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        pass  # perhaps it has unquoted keys: try the slow path
    try:
        return msgspec.json.decode(_BARE_KEY.sub(_quoted, text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CommandError(f"bad JSON body: {error}") from None


def dumps(value: Any, *, unquoted_integer_keys: bool) -> bytes:
    """Encode a value of maps, lists, strings, numbers, booleans and bytes (as base64).

    Map fields that are None are omitted. Integer keys are unquoted with `unquoted_integer_keys`,
    for clients below version 401, else quoted. Raises CommandError for a value that is not JSON
    or is nested deeper than `DEPTH_MAX`.
    """
    parts: list[bytes] = []
    try:
        _write(value, unquoted_integer_keys, parts, 0)
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise CommandError(f"cannot be written as JSON: {error}") from None
    return b"".join(parts)


def _depth(text: bytes) -> int:
    """Return the nesting depth of brackets outside strings; 0 if it cannot exceed the limit."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return 0  # too few brackets to exceed the limit, and counting them is cheap
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
