"""Key-value configuration that operators store in a name server, by namespace and key.

Its main use is ordered topics: `updateTopic -o true` stores "broker:queues;..." for the topic in
the namespace ORDER_TOPIC_CONFIG.
Source: RocketMQ's KVConfigManager, NamesrvUtil, KVConfigSerializeWrapper.
"""

from __future__ import annotations

import msgspec

from shaketable.system.remoting.command import CommandError

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
VALUES_MAX = 20_000
VALUE_BYTES_MAX = 64 << 10
NAME_BYTES_MAX = 1024
BYTES_MAX = 8 << 20
"""Limit for all values as JSON: a response carries a whole namespace in one 16 MiB frame."""


class DamagedKvConfig(ValueError):  # noqa: N818 - a finding about the bytes
    """The stored configuration cannot be decoded."""


class _KvConfigFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """The key-value configuration of one name server; `version` increases with each change."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}
        self._count = 0
        self._bytes = 0
        self.version = 0

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises CommandError when it, or all values together, exceed a limit."""
        for name in (namespace, key):
            if not name or len(name.encode()) > NAME_BYTES_MAX:
                raise CommandError(f"a namespace and a key have 1..{NAME_BYTES_MAX} bytes")
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise CommandError(f"a value has at most {VALUE_BYTES_MAX} bytes")
        before = self.get(namespace, key)
        more = _bytes_of(namespace, key, value) - _bytes_of(namespace, key, before)
        if before is None and self._count >= VALUES_MAX:
            raise CommandError(f"{VALUES_MAX} values are kept: delete some")
        if more > 0 and self._bytes + more > BYTES_MAX:
            raise CommandError(f"values of {BYTES_MAX} bytes are kept: delete some")
        if namespace not in self._tables and len(self._tables) >= VALUES_MAX:
            self._tables = {name: table for name, table in self._tables.items() if table}
        self._tables.setdefault(namespace, {})[key] = value
        self._count += before is None
        self._bytes += more
        self.version += 1

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists."""
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._count -= 1
            self._bytes -= _bytes_of(namespace, key, value)
            self.version += 1

    def table(self, namespace: str) -> bytes | None:
        """Return a namespace as RocketMQ's KVTable, None if it never had a value."""
        if (table := self._tables.get(namespace)) is None:
            return None
        return msgspec.json.encode({"table": table}, order="sorted")

    def encode(self) -> bytes:
        """Return all values in the format of RocketMQ's kvConfig.json."""
        return msgspec.json.encode(_KvConfigFile(self._tables), order="sorted")

    def load(self, data: bytes) -> None:
        """Load what `encode` returned, or a file of RocketMQ's own. Raises DamagedKvConfig."""
        try:
            loaded = msgspec.json.decode(data, type=_KvConfigFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedKvConfig(str(error)) from None
        self._tables = loaded.config_table
        self._count = sum(map(len, self._tables.values()))
        self._bytes = sum(
            _bytes_of(namespace, key, value)
            for namespace, table in self._tables.items()
            for key, value in table.items()
        )


def _bytes_of(namespace: str, key: str, value: str | None) -> int:
    """Return the size that a value counts as: its JSON with namespace and key; 0 for None."""
    return 0 if value is None else len(msgspec.json.encode((namespace, key, value)))
