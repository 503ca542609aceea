"""Configurations, and log files, that no node may start with, as an operator mistypes them.

The start's error names the key in one line. The node would otherwise be unsafe (a lease that is
longer than the election timeout), or fail only in service. Source: docs/deployments.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shaketable.system.invariants.violated import Violated
from shaketable.system.node.config import ConfigError, parse
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.disk import StoreError
from shaketable.system.store.plain_commit_log import PlainCommitLog

MEMBER: Final = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-10.0.0.1:40911;n1-10.0.0.2:40911",
    "listenPort": "30911",
    "storePathRootDir": "/store",
}
BROKEN: Final[tuple[tuple[str, str], ...]] = (
    ("messageDelayLevel", "1s 5x"),
    ("messageDelayLevel", "1s s"),
    ("messageDelayLevel", "1s 5"),
    ("messageDelayLevel", "1s -5s"),
    ("messageDelayLevel", " ".join(["1s"] * 200)),
    ("shaketableLeaseMs", "250"),
    ("shaketableLeaseMs", "60000"),
    ("shaketableLeaseMs", "-1"),
    ("shaketableClockDriftMax", "1"),
    ("shaketableClockDriftMax", "-0.1"),
    ("dLegerSelfId", "n7"),
    ("dLegerPeers", "n0-10.0.0.1"),
    ("dLegerPeers", "n0-10.0.0.1:65536"),
    ("dLegerPeers", "n0-10.0.0.1:40911;n0-10.0.0.2:40911"),
    ("preferredLeaderIds", "n0,n1"),
    ("namesrvAddr", "10.0.0.1"),
    ("namesrvAddr", "10.0.0.1:0"),
    ("namesrvAddr", "10.0.0.1:70000"),
    ("listenPort", "70000"),
    ("brokerIP1", "10.0.0.256"),
    ("mappedFileSizeCommitLog", "4095"),
    ("mappedFileSizeIndex", "8191"),
    ("fileReservedTime", "0"),
    ("deleteWhen", "24"),
    ("diskMaxUsedSpaceRatio", "99"),
    ("flushDiskType", "SYNC"),
    ("slaveReadEnable", "yes"),
    ("shaketableDisk", "floppy"),
    ("noSuchKey", "1"),
)
"""Keys, and values that they refuse."""
MASTER_SLAVE: Final = {
    "brokerRole": "SYNC_MASTER",
    "brokerName": "a",
    "brokerId": "0",
    "listenPort": "30911",
    "storePathRootDir": "/store",
}
BROKEN_MASTER_SLAVE: Final[tuple[tuple[str, str], ...]] = (
    ("brokerRole", "MASTER"),
    ("brokerRole", "SLAVE"),
    ("brokerId", "-1"),
    ("flushDiskType", "SYNC"),
    ("haListenPort", "70000"),
    ("messageDelayLevel", "1s 5x"),
    ("namesrvAddr", "10.0.0.1:0"),
)
"""The same of a broker without a group. A master's id is always 0 (BrokerStartup)."""
FILE_BYTES: Final = 8_192
BROKEN_FILES: Final = (
    ((0, 2 * FILE_BYTES),),
    ((FILE_BYTES // 2, FILE_BYTES),),
    ((0, FILE_BYTES), (2 * FILE_BYTES, FILE_BYTES)),
)
"""Start and size of each file of a log, with mappedFileSizeCommitLog=8192."""
REQUIRED: Final = tuple(MEMBER)[1:]
"""Keys that a member's configuration must have."""


def check_refused(node: str) -> int:
    """Try all of them; return how many there are. Raises Violated for one that is accepted."""
    tried = [(key, {**MEMBER, key: value}) for key, value in BROKEN]
    tried += [(key, {**MEMBER, key: ""}) for key in REQUIRED]
    tried += [(key, {**MASTER_SLAVE, key: value}) for key, value in BROKEN_MASTER_SLAVE]
    for values in (MEMBER, MASTER_SLAVE):
        _parsed(values)
    for key, values in tried:
        _check(partial(_parsed, values), f"{key}={values[key]!r}", node)
    for files in BROKEN_FILES:
        _check(partial(_opened, files), f"files {files} of {FILE_BYTES} bytes each", node)
    return len(tried) + len(BROKEN_FILES)


def _check(start: Callable[[], None], what: str, node: str) -> None:
    try:
        start()
    except (ConfigError, StoreError) as error:
        if "\n" in str(error):
            raise Violated("broken-is-refused", f"{error!r} is no clear line", node) from error
        return
    except Exception as error:
        raise Violated("broken-is-refused", f"{what}: {error!r} is no clear line", node) from error
    raise Violated("broken-is-refused", f"a node starts with {what}", node)


def _parsed(values: dict[str, str]) -> None:
    parse("".join(f"{key}={value}\n" for key, value in values.items()))


def _opened(files: tuple[tuple[int, int], ...]) -> None:
    disk = SimDisk()
    disk.make_dirs("/store/commitlog")
    for start, size in files:
        disk.create(f"/store/commitlog/{start:020}", size).close()
    PlainCommitLog.open(disk, "/store", "/store/commitlog", FILE_BYTES)
