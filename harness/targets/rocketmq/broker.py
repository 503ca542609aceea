"""Starts a node of a target rocketmq: writes its configuration, and becomes its JVM.

    broker.py FOLDER_OF_JARS FLUSH HEAP_MB NAME=VALUE ... [-- IS_SYNCED NAME=VALUE ...]

It is run in the node's folder, and imports nothing of ours. Settings after -- are of a name server
with a controller, which is started beside the broker in a JVM of its own (Controller mode);
IS_SYNCED is "true" if the file in which the broker keeps its id is to be synced once it is there.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
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
    # Until it is elected: it would answer reads as the master that it is by default.
    "brokerRole": "SLAVE",
    # A campaign is short. RocketMQ's own values: 10 s without a heartbeat, then a broker is gone;
    # 15 s behind, then a slave is not in sync; 5 to 10 s between two looks; and 30 s until name
    # servers are told and asked again, here the 10 s that are possible.
    "registerNameServerPeriod": "10000",
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
DATA: Final = "storePathRootDir="
IDENTITY: Final = "brokerIdentity"
WRITTEN_WITHIN_S: Final = 300.0
POLL_S: Final = 0.05
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
        is_synced, *of_name_server = settings[place + 1 :]
        start_name_server(jars, of_name_server)
        if is_synced == "true":
            [data] = (each.partition("=")[2] for each in settings if each.startswith(DATA))
            sync_once_written(Path(data) / IDENTITY)
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


def sync_once_written(file: Path) -> None:
    """Leave a process behind that syncs a file, and its folder, once it is there.

    A file system would do that by itself, some 30 s later.
    """
    if os.fork():
        return
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for _ in range(int(WRITTEN_WITHIN_S / POLL_S)):
        if file.exists() and file.stat().st_size:
            for path in (file, file.parent):
                opened = os.open(path, os.O_RDONLY)
                os.fsync(opened)
                os.close(opened)
            break
        time.sleep(POLL_S)
    os._exit(0)


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
