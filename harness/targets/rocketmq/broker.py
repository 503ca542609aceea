"""Starts a node of a target rocketmq: writes its configuration, and becomes its JVM.

    broker.py FOLDER_OF_JARS FLUSH HEAP_MB NAME=VALUE ... [-- NAME=VALUE ...]

It is run in the node's folder, and imports nothing of ours. Settings after -- are of a name server
with a controller, which is started beside the broker in a JVM of its own (Controller mode).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

CONFIG: Final = Path("broker.conf")
NAME_SERVER_CONFIG: Final = Path("namesrv.conf")
FLUSH: Final = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
"""RocketMQ's values of flushDiskType."""
SETTINGS: Final = {
    "brokerClusterName": "shaketable",
    "brokerName": "group",
    "sendMessageThreadPoolNums": "4",
    # Small files: several brokers share a machine. RocketMQ's own are 1 GiB and 6 MB.
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 6000),
    # The timer wheel of delayed messages, which no workload uses, writes a file of 37 MB.
    "timerWheelEnable": "false",
}
DLEDGER_MODE: Final = {"enableDLegerCommitLog": "true", "dLegerGroup": "group"}
CONTROLLER_MODE: Final = {
    "enableControllerMode": "true",
    # A campaign is short. RocketMQ's own values: 10 s without a heartbeat, then a broker is gone;
    # 15 s behind, then a slave is not in sync; 5 to 10 s between two looks.
    "controllerHeartBeatTimeoutMills": "3000",
    "haMaxTimeSlaveNotCatchup": "4000",
    "checkSyncStateSetPeriod": "1000",
    "syncBrokerMetadataPeriod": "1000",
    "syncControllerMetadataPeriod": "1000",
}
OF_NAMED: Final = ("namesrvAddr", "controllerAddr")
"""The settings whose addresses come as ID-HOST:PORT, as those of peers do, and are HOST:PORT."""
NAME_SERVER: Final = {
    "enableControllerInNamesrv": "true",
    "controllerDLegerGroup": "controllers",
    "mappedFileSize": str(16 << 20),
    "scanNotActiveBrokerInterval": "1000",
    "scanInactiveMasterInterval": "1000",
}
NAME_SERVER_HEAP_MB: Final = "64"
SET_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
OPENED: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What RocketMQ unmaps its files with on a Java above 8."""
BROKER_MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"
NAME_SERVER_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"


def main(jars: str, flush: str, heap_mb: str, *settings: str) -> None:
    """Write what Java is to read, and run it in place of this process."""
    os.environ["ROCKETMQ_HOME"] = str(Path.cwd())
    has_controller = "--" in settings
    place = settings.index("--") if has_controller else len(settings)
    mode = CONTROLLER_MODE if has_controller else DLEDGER_MODE
    if has_controller:
        start_name_server(jars, settings[place + 1 :])
    write(CONFIG, {**SETTINGS, **mode, "flushDiskType": FLUSH[flush]}, settings[:place])
    argv = command(jars, heap_mb, BROKER_MAIN, CONFIG)
    os.execv(java(), argv)  # noqa: S606 - the node is this process


def start_name_server(jars: str, settings: Sequence[str]) -> None:
    """Start a name server with a controller; it ends with this process."""
    write(NAME_SERVER_CONFIG, NAME_SERVER, settings)
    argv = command(jars, NAME_SERVER_HEAP_MB, NAME_SERVER_MAIN, NAME_SERVER_CONFIG)
    prctl = ctypes.CDLL(None).prctl
    subprocess.Popen(
        argv,
        executable=java(),
        preexec_fn=lambda: prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL),  # noqa: PLW1509 - one thread
    )


def write(file: Path, settings: Mapping[str, str], given: Sequence[str]) -> None:
    """Write a file of settings; those that were given replace others."""
    lines = {**settings, **dict(setting.partition("=")[::2] for setting in given)}
    for name in OF_NAMED:
        if name in lines:
            lines[name] = re.sub(r"(^|;)[^;]*?-", r"\1", lines[name])
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def command(jars: str, heap_mb: str, main_class: str, config: Path) -> list[str]:
    """Return the command of a JVM."""
    logging = Path(__file__).parent / "logback.xml"
    return [
        "java", f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m",
        # One of several JVMs on a machine of few cores, which has to start fast.
        "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        # Else each start makes two RSA keys: seconds of a processor.
        "-Dtls.server.mode=disabled",
        "-XX:+IgnoreUnrecognizedVMOptions",  # Java 8 knows no modules
        *OPENED, f"-Drmq.logback.configurationFile={logging}",
        f"-Duser.home={Path.cwd()}", "-cp", f"{jars}/*", main_class, "-c", str(config),
    ]  # fmt: skip


def java() -> str:
    """Return the program: of JAVA_HOME, or on PATH. Exits with one line if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        sys.exit(f"no java {f'in {home}/bin (JAVA_HOME)' if home else 'on PATH'}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
