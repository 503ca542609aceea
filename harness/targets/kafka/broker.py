"""Formats the storage of a node of the target kafka, or becomes its JVM.

    broker.py format FOLDER_OF_JARS HEAP_MB NAME=VALUE ...
    broker.py run FOLDER_OF_JARS HEAP_MB

It is run in the node's folder, in which `format` writes server.properties, and imports nothing of
ours.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

CONFIG: Final = Path("server.properties")
MAIN: Final = {"format": "kafka.tools.StorageTool", "run": "kafka.Kafka"}
CLUSTER_ID: Final = "c2hha2V0YWJsZS0wMDAwMA"
"""A UUID in base64url, as Kafka wants it; the same for all nodes."""
FLUSH: Final = "log.flush.interval.messages"
NEVER: Final = "never"
"""A value of it that leaves it to Kafka."""
SETTINGS: Final = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,PEERS:PLAINTEXT,QUORUM:PLAINTEXT",
    "inter.broker.listener.name": "PEERS",
    "controller.listener.names": "QUORUM",
    # Topics are made by clients, with a partition that all brokers have.
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    # A campaign is short: a broker that is gone is fenced after 9 s, and one that lags leaves the
    # in-sync replicas after 30 s, by Kafka's own values.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    # Several brokers share a machine of few cores: small buffers, few threads.
    "log.cleaner.dedupe.buffer.size": str(2 << 20),
    "log.index.size.max.bytes": str(1 << 20),
    "num.io.threads": "4",
    "num.network.threads": "2",
    "background.threads": "2",
}
LOG_LEVELS: Final = {
    "defaultLogLevel": "warn",
    "log.kafka.cluster": "info",  # in-sync replicas
    "log.kafka.log": "info",  # what is recovered at a start
    "log.kafka.server.BrokerServer": "info",
    "log.kafka.server.KafkaRaftServer": "info",
    "log.org.apache.kafka.raft": "info",
    "log.org.apache.kafka.storage.internals.log": "info",
    "log.state.change.logger": "info",  # who leads the partitions
}
"""What a node says on its standard output; Kafka's own configuration has files."""
LOG_FORMAT: Final = {
    "logFile": "System.out",
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "showThreadName": "false",
}


def main(task: str, jars: str, heap_mb: str, *settings: str) -> None:
    """Write server.properties if it is given, and run Java in place of this process."""
    if task == "format":
        given = dict(setting.partition("=")[::2] for setting in settings)
        CONFIG.write_text("".join(f"{name}={value}\n" for name, value in _lines(given).items()))
    logging = {**LOG_LEVELS, **LOG_FORMAT}
    argv = [
        "java", f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m",
        # One of several JVMs on a machine of few cores, which has to start fast.
        "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        *(f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in logging.items()),
        "-cp", f"{jars}/*", MAIN[task],
        *(("format", "--cluster-id", CLUSTER_ID, "--config") if task == "format" else ()),
        str(CONFIG),
    ]  # fmt: skip
    os.execv(java(), argv)  # noqa: S606 - the node is this process


def _lines(given: dict[str, str]) -> dict[str, str]:
    lines = {**SETTINGS, **given}
    return {name: value for name, value in lines.items() if (name, value) != (FLUSH, NEVER)}


def java() -> str:
    """Return the program: of JAVA_HOME, or on PATH. Exits with one line if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        sys.exit(f"no java {f'in {home}/bin (JAVA_HOME)' if home else 'on PATH'}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
