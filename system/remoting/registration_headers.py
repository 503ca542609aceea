"""Typed headers of requests to name servers, and of their responses.

Source: RocketMQ's RegisterBrokerRequestHeader, UnRegisterBrokerRequestHeader,
GetRouteInfoRequestHeader and their responses; DLEDGER.md A.2.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from shaketable.system.remoting.command import I32, I64
from shaketable.system.remoting.register_bodies import NAME_LENGTH_MAX, Name
from shaketable.system.remoting.requests import Fields

_ADDRESS = re.compile(r"[^\s:;,]{1,255}:[0-9]{1,5}")
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BrokerHeader(Fields, gc=False, rename="camel"):
    """UNREGISTER_BROKER (104) and QUERY_DATA_VERSION (322): names one broker."""

    broker_name: Name
    broker_addr: str
    cluster_name: Name
    broker_id: BrokerId = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed address."""
        _check_address(self.broker_addr)


class RegisterBrokerHeader(Fields, gc=False, rename="camel"):
    """REGISTER_BROKER (103); the topics are in the body (`register_bodies`).

    A `body_crc32` of 0 is not checked. Only RocketMQ 5 sends `heartbeat_timeout_millis` and
    `enable_acting_master`.
    """

    broker_name: Name
    broker_addr: str
    cluster_name: Name
    broker_id: BrokerId
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed address."""
        _check_address(self.broker_addr)


class RegisterBrokerResponse(Fields, gc=False, rename="camel"):
    """The response to REGISTER_BROKER: for a slave, the addresses of its live master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class DataVersionAnswer(Fields, gc=False, rename="camel"):
    """The response to QUERY_DATA_VERSION."""

    changed: bool


class HeartbeatHeader(Fields, gc=False, rename="camel"):
    """BROKER_HEARTBEAT (904)."""

    broker_addr: str
    cluster_name: str = ""
    broker_name: str = ""


class RouteHeader(Fields, gc=False, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class TopicHeader(Fields, gc=False, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str


class ClusterHeader(Fields, gc=False, rename="camel"):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class KvHeader(Fields, gc=False, rename="camel"):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str
    value: str = ""


class NamespaceHeader(Fields, gc=False, rename="camel"):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class BrokerNameHeader(Fields, gc=False, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


def _check_address(address: str) -> None:
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"brokerAddr {address[:NAME_LENGTH_MAX]!r} is not of the form host:port")
