"""The numbers that a campaign may give: their ranges, and how they hang together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shaketable.harness.contracts.errors import UsageError

NODES_MAX = 9
CLIENTS_MAX = 1000
WORKERS_MAX = 64
QUEUES_MAX = 1000
RATE_MAX_HZ = 1e6
THINK_TIME_MAX_S = 600
SKEW_MAX = 10
TIME_LIMIT_MAX_S = 7 * 86_400.0
FILE_BYTES_MAX = 1 << 30
INDEX_UNIT_BYTES = 32
FAULT_DURATION_MIN_S = 0.2
"""No fault is shorter, squeezed or not: not even a process that was killed would be back."""
FILE_BYTES_MIN = 4096
LANES_MAX = 8
LEASES_MAX_MS = 60_000

RANGES: Mapping[str, tuple[float, float]] = {
    "nodes": (0, NODES_MAX),
    "queues": (1, QUEUES_MAX),
    "workers": (1, WORKERS_MAX),
    "key_skew": (0, SKEW_MAX),
    "clients_per_key": (0, CLIENTS_MAX),
    "rate": (0, RATE_MAX_HZ),
    "think_time": (0, THINK_TIME_MAX_S),
    "op_timeout": (0.05, 600),
    "time_limit": (1, TIME_LIMIT_MAX_S),
    "steady": (0, TIME_LIMIT_MAX_S),
    "faults_at_once": (1, LANES_MAX),
    "leases_ms": (0, LEASES_MAX_MS),
    "nemesis_interval": (0, TIME_LIMIT_MAX_S),
    "fault_duration_min": (FAULT_DURATION_MIN_S, TIME_LIMIT_MAX_S),
    "fault_duration_max": (FAULT_DURATION_MIN_S, TIME_LIMIT_MAX_S),
    "data_file_size": (FILE_BYTES_MIN, FILE_BYTES_MAX),
    "index_file_size": (FILE_BYTES_MIN, FILE_BYTES_MAX),
}


def check_numbers(values: Mapping[str, Any]) -> None:
    """See to it that the numbers of a campaign, by their keys in its file, can be.

    Raises:
        UsageError: one cannot.
    """
    for key, (least, most) in RANGES.items():
        if not least <= values[key] <= most:  # also refuses NaN
            raise UsageError(f"{key} {values[key]:g}: expected {least:g} to {most:g}")
    least, most = values["fault_duration_min"], values["fault_duration_max"]
    if least > most:
        raise UsageError(f"fault_duration_min {least:g} is more than fault_duration_max {most:g}")
    steady, limit = values["steady"], values["time_limit"]
    if steady > limit:
        raise UsageError(f"steady {steady:g} is more than time_limit {limit:g}")
    if values["index_file_size"] % INDEX_UNIT_BYTES:
        raise UsageError(
            f"index_file_size {values['index_file_size']}: not a multiple of {INDEX_UNIT_BYTES}"
        )
