"""What a campaign is: every choice of a run as data, read from TOML, written back as resolved.

The keys of the TOML are the long options of `shaketable run` with underscores
("time_limit" for --time-limit); fields carry units in their names.

Source: Jepsen's options (jepsen.cli); FoundationDB's tests/fast/*.toml.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Campaign(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "nemesis_interval_s": "nemesis_interval",
        "fault_duration_min_s": "fault_duration_min",
        "fault_duration_max_s": "fault_duration_max",
        "time_limit_s": "time_limit",
        "steady_s": "steady",
        "rate_hz": "rate",
        "op_timeout_s": "op_timeout",
        "data_file_bytes": "data_file_size",
        "index_file_bytes": "index_file_size",
    },
):
    """One campaign.

    Attributes:
        name: the folder under the store.
        target: the system under test.
        mutant: planted bug to run it with.
        nodes: size of the group; ids are n0, n1, ...
        world: where it runs.
        workload: what clients do.
        queues: queues that the workload uses.
        concurrency: clients in all: "10", or "3n" for three times the nodes.
        workers: processes that the clients are spread over.
        rate_hz: operations a second, all clients together; 0: as fast as they can.
        op_timeout_s: after this an operation without an answer is of unknown outcome.
        time_limit_s: how long clients work: steady and chaos phase, without setup,
            heal, drain and check (Jepsen's --time-limit).
        steady_s: how much of that passes before the first fault may begin.
        faults: names of the faults to draw from; () for none.
        nemesis_interval_s: mean quiet time between the end of one fault and the next.
        fault_duration_min_s, fault_duration_max_s: how long a fault holds.
        ack: when a node counts an entry as its own copy.
        disk: how nodes write their files.
        data_file_bytes, index_file_bytes: sizes of the log's files; small, so that a
            short run crosses many file ends.
        seed: what everything is drawn from; None: draw one and print it.
        store: where runs are kept.
        spark_master: which Spark checks the history.
    """

    name: str = "quick"
    target: str = "dledger"
    mutant: str | None = None
    nodes: int = 3
    world: Literal["process"] = "process"
    workload: str = "log"
    queues: int = 4
    concurrency: str = "4n"
    workers: int = 2
    rate_hz: float = 800.0
    op_timeout_s: float = 2.0
    time_limit_s: float = 40.0
    steady_s: float = 5.0
    faults: tuple[str, ...] = ("kill", "pause", "partition")
    nemesis_interval_s: float = 3.0
    fault_duration_min_s: float = 1.5
    fault_duration_max_s: float = 3.5
    ack: Literal["fsync", "page-cache"] = "fsync"
    disk: Literal["file"] = "file"
    data_file_bytes: int = 1 << 20
    index_file_bytes: int = 1 << 18
    seed: str | None = None
    store: str = "store"
    spark_master: str = "local[*]"
