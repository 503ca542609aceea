"""Request handlers of a name server: requests from brokers and clients in, responses out.

Source: RocketMQ's DefaultRequestProcessor and ClientRequestProcessor; DLEDGER.md A.2.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shaketable.system.nameserver.registry import (
    HEARTBEAT_TIMEOUT_MS,
    Connection,
    Registration,
    RegistrationRefused,
    RouteRegistry,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import RESPONSE_FLAG, Command, CommandError
from shaketable.system.remoting.name_server_requests import (
    NAME_LENGTH_MAX,
    BrokerHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionAnswer,
    HeartbeatHeader,
    KvHeader,
    NamespaceHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    RouteHeader,
    TopicHeader,
    body_crc32,
    decode_data_version,
    decode_register_body,
    encode_cluster_info,
    encode_data_version,
    encode_route,
    encode_topic_list,
    reads_standard_json,
)

# Key-value configuration that operators store in a name server, by namespace and key.
#
# Its main use is ordered topics: `updateTopic -o true` stores "broker:queues;..." for the topic in
# the namespace ORDER_TOPIC_CONFIG.
# Source: RocketMQ's KVConfigManager, NamesrvUtil, KVConfigSerializeWrapper.

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


# The requests of brokers and clients.

SCAN_INTERVAL_MS = 5_000.0
"""How often to look for brokers whose heartbeats stopped (RocketMQ 5's scanNotActiveBroker)."""


class NameServer:
    """Handles requests against its own registry. Pure: time is an argument of each input.

    `order_message_enable`: whether the route of an ordered topic includes how many of its queues
    each broker has (RocketMQ's orderMessageEnable).
    """

    def __init__(
        self,
        *,
        order_message_enable: bool = False,
        registry_type: type[RouteRegistry] = RouteRegistry,
    ) -> None:
        self.registry = registry_type()
        self.kv = KvConfig()
        self._order_message_enable = order_message_enable
        self._answers: dict[int, Callable[[Connection, Command, float], Command]] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.PUT_KV_CONFIG: self._put_kv_config,
            RequestCode.GET_KV_CONFIG: self._get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv_config,
        }

    def handle(self, connection: Connection, request: Command, now_ms: float) -> Command | None:
        """Return the response, None for one-way requests. Never raises, whatever the request."""
        if request.is_response:
            return None
        answer = self._answers.get(request.code)
        if answer is None:
            response = _refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {request.code} is not supported by this name server",
            )
        else:
            try:
                response = answer(connection, request, now_ms)
            except (CommandError, RegistrationRefused) as error:
                response = _refusal(ResponseCode.SYSTEM_ERROR, str(error))
        if request.is_oneway:
            return None
        response.opaque = request.opaque
        response.flag = RESPONSE_FLAG
        response.serialize_type = request.serialize_type
        return response

    def connection_closed(self, connection: Connection) -> list[str]:
        """Remove the brokers that registered over a closed connection; return their addresses."""
        return self.registry.connection_closed(connection)

    def scan(self, now_ms: float) -> list[Connection]:
        """Remove brokers whose heartbeats stopped; return the connections to close."""
        return self.registry.expire(now_ms)

    # ---- brokers ----------------------------------------------------------------------

    def _register(self, connection: Connection, request: Command, now_ms: float) -> Command:
        header = RegisterBrokerHeader.from_ext(request.ext)
        if header.body_crc32 not in (0, body_crc32(request.body)):
            raise CommandError(
                "crc32 not match: the body is not what the broker sent; send it again"
            )
        body = decode_register_body(
            request.body, is_compressed=header.compressed, version=request.version
        )
        timeout_ms = header.heartbeat_timeout_millis
        result = self.registry.register(
            Registration(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                address=header.broker_addr,
                broker_id=header.broker_id,
                ha_address=header.ha_server_addr or "",
                version=body.version,
                topics=body.topics,
                timeout_ms=HEARTBEAT_TIMEOUT_MS if timeout_ms is None else float(timeout_ms),
                acts_as_master=header.enable_acting_master,
            ),
            connection,
            now_ms,
        )
        answer = RegisterBrokerResponse(result.ha_address, result.master_address)
        return _success(answer.to_ext(), self.kv.table(ORDER_NAMESPACE) or b"")

    def _unregister(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        header = BrokerHeader.from_ext(request.ext)
        self.registry.unregister(header.broker_name, header.broker_addr)
        return _success()

    def _query_data_version(
        self, connection: Connection, request: Command, now_ms: float
    ) -> Command:
        """Answer whether the broker has to register again; if not, count this as a heartbeat."""
        del connection
        header = BrokerHeader.from_ext(request.ext)
        known = self.registry.version_of(header.broker_addr)
        is_changed = known is None or known != decode_data_version(request.body)
        if not is_changed:
            self.registry.heartbeat(header.broker_addr, now_ms)
        body = b"" if known is None else encode_data_version(known)
        return _success(DataVersionAnswer(is_changed).to_ext(), body)

    def _heartbeat(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection
        self.registry.heartbeat(HeartbeatHeader.from_ext(request.ext).broker_addr, now_ms)
        return _success()

    # ---- clients ----------------------------------------------------------------------

    def _route(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        header = RouteHeader.from_ext(request.ext)
        route = self.registry.route(header.topic)
        if route is None:
            return _refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: "
                f"{header.topic[:NAME_LENGTH_MAX]!r}; create it, or look whether its brokers run "
                f"and know this name server",
            )
        if self._order_message_enable:
            order = self.kv.get(ORDER_NAMESPACE, header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        is_standard = reads_standard_json(request.version, bool(header.accept_standard_json_only))
        return _success(body=encode_route(route, is_standard=is_standard))

    def _cluster_info(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        is_standard = reads_standard_json(request.version)
        info = self.registry.cluster_info()
        return _success(body=encode_cluster_info(info, is_standard=is_standard))

    def _topic_list(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, request, now_ms
        return _success(body=encode_topic_list(self.registry.topics()))

    def _topics_by_cluster(
        self, connection: Connection, request: Command, now_ms: float
    ) -> Command:
        del connection, now_ms
        cluster = ClusterHeader.from_ext(request.ext).cluster
        return _success(body=encode_topic_list(self.registry.topics(cluster)))

    def _wipe_write_perm(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        name = BrokerNameHeader.from_ext(request.ext).broker_name
        count = self.registry.set_writable(name, is_writable=False)
        return _success({"wipeTopicCount": str(count)})

    def _add_write_perm(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        name = BrokerNameHeader.from_ext(request.ext).broker_name
        count = self.registry.set_writable(name, is_writable=True)
        return _success({"addTopicCount": str(count)})

    def _delete_topic(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        self.registry.delete_topic(TopicHeader.from_ext(request.ext).topic)
        return _success()

    # ---- key-value configuration ------------------------------------------------------

    def _put_kv_config(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        header = KvHeader.from_ext(request.ext)
        self.kv.put(header.namespace, header.key, header.value)
        return _success()

    def _get_kv_config(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        header = KvHeader.from_ext(request.ext)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return _refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace[:NAME_LENGTH_MAX]!r} "
                f"Key: {header.key[:NAME_LENGTH_MAX]!r}",
            )
        return _success({"value": value})

    def _delete_kv_config(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        header = KvHeader.from_ext(request.ext)
        self.kv.delete(header.namespace, header.key)
        return _success()

    def _list_kv_config(self, connection: Connection, request: Command, now_ms: float) -> Command:
        del connection, now_ms
        namespace = NamespaceHeader.from_ext(request.ext).namespace
        table = self.kv.table(namespace)
        if table is None:
            return _refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace[:NAME_LENGTH_MAX]!r}",
            )
        return _success(body=table)


def _success(ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    return Command(ResponseCode.SUCCESS, ext=ext or {}, body=body)


def _refusal(code: int, remark: str) -> Command:
    return Command(code, remark=remark)
