"""Starts a node of the target rocketmq: writes its configuration, and becomes its JVM.

    broker.py FOLDER_OF_JARS FLUSH HEAP_MB NAME=VALUE ...

It is run in the node's folder, and imports nothing of ours. The broker finds no name server: it
is asked directly.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

CONFIG: Final = Path("broker.conf")
FLUSH: Final = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
"""RocketMQ's values of flushDiskType."""
SETTINGS: Final = {
    "brokerClusterName": "shaketable",
    "brokerName": "group",
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "group",
    "sendMessageThreadPoolNums": "4",
    # Small files: several brokers share a machine. RocketMQ's own are 1 GiB and 6 MB.
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 6000),
    # The timer wheel of delayed messages, which no workload uses, writes a file of 37 MB.
    "timerWheelEnable": "false",
}
OPENED: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What RocketMQ unmaps its files with on a Java above 8."""
MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"


def main(jars: str, flush: str, heap_mb: str, *settings: str) -> None:
    """Write broker.conf and run Java in place of this process."""
    given = dict(setting.partition("=")[::2] for setting in settings)
    lines = {**SETTINGS, "flushDiskType": FLUSH[flush], **given}
    CONFIG.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    here = Path(__file__).parent
    argv = [
        "java", f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m",
        # One of several JVMs on a machine of few cores, which has to start fast.
        "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        # Else each start makes two RSA keys: seconds of a processor.
        "-Dtls.server.mode=disabled",
        "-XX:+IgnoreUnrecognizedVMOptions",  # Java 8 knows no modules
        *OPENED, f"-Drmq.logback.configurationFile={here / 'logback.xml'}",
        f"-Duser.home={Path.cwd()}", "-cp", f"{jars}/*", MAIN, "-c", str(CONFIG),
    ]  # fmt: skip
    os.environ["ROCKETMQ_HOME"] = str(Path.cwd())
    os.execv(java(), argv)  # noqa: S606 - the node is this process


def java() -> str:
    """Return the program: of JAVA_HOME, or on PATH. Exits with one line if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        sys.exit(f"no java {f'in {home}/bin (JAVA_HOME)' if home else 'on PATH'}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
