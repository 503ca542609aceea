"""Values that operators leave with a name server, by namespace and key: orders of topics above all.

`updateTopic -o true` leaves "broker:queues;..." of a topic in the namespace ORDER_TOPIC_CONFIG.
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
"""All of it as JSON: a namespace, which answers bring whole, fits a frame of 16 MiB."""


class DamagedKvConfig(ValueError):  # noqa: N818 - a finding about the bytes
    """What was kept cannot be read."""


class _Kept(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """The values of one name server; `version` rises with each change."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}
        self._count = 0
        self._bytes = 0
        self.version = 0

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises CommandError for too large a one, or where there are too many."""
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
        """Remove a value, if it is there."""
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._count -= 1
            self._bytes -= _bytes_of(namespace, key, value)
            self.version += 1

    def table(self, namespace: str) -> bytes | None:
        """Return all of a namespace as a KVTable, None where there was never anything."""
        if (table := self._tables.get(namespace)) is None:
            return None
        return msgspec.json.encode({"table": table}, order="sorted")

    def kept(self) -> bytes:
        """Return everything as it stands in RocketMQ's kvConfig.json."""
        return msgspec.json.encode(_Kept(self._tables), order="sorted")

    def load(self, data: bytes) -> None:
        """Take what `kept` returned, or RocketMQ's own file. Raises DamagedKvConfig."""
        try:
            kept = msgspec.json.decode(data, type=_Kept)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedKvConfig(str(error)) from None
        self._tables = kept.config_table
        self._count = sum(map(len, self._tables.values()))
        self._bytes = sum(
            _bytes_of(namespace, key, value)
            for namespace, table in self._tables.items()
            for key, value in table.items()
        )


def _bytes_of(namespace: str, key: str, value: str | None) -> int:
    """Return what a value counts: as long as it is in JSON, with its names; 0 for none."""
    return 0 if value is None else len(msgspec.json.encode((namespace, key, value)))
