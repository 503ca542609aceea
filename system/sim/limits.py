"""Broker and Raft configuration of a simulated run, from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.broker.expiry import ExpiryConfig
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.protocol import RaftConfig

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.schedule import Settings


def broker_config(settings: Settings) -> BrokerConfig:
    """Return the brokers' configuration of a run."""
    return BrokerConfig(
        data_file_bytes=settings.data_file_bytes,
        pending_sends_max=settings.pending_sends_max,
        key_items_max=settings.key_items_max,
        ack_timeout_ms=settings.ack_timeout_ms,
        expiry=ExpiryConfig(reserved_ms=settings.reserved_ms),
    )


def raft_config(settings: Settings) -> RaftConfig:
    """Return the Raft configuration of a run."""
    return RaftConfig(
        election_timeout_min_ms=settings.election_timeout_min_ms,
        election_timeout_max_ms=settings.election_timeout_max_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        quorum_silence_max_ms=settings.quorum_silence_max_ms,
        retransmit_after_ms=settings.retransmit_after_ms,
        lease_ms=settings.lease_ms,
        reads_waiting_max=settings.reads_waiting_max,
        push_bytes_max=settings.push_bytes_max,
        in_flight_pushes_max=settings.in_flight_pushes_max,
        tail_bytes_max=settings.tail_bytes_max,
        preferred_leaders=settings.preferred_leaders,
    )
