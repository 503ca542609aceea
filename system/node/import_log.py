"""Copies a log of DLedger's into the store of a broker.

`python -m shaketable.system.node.import_log -c broker.conf --from OLD/dledger-n0`

What a DLedger broker of Apache RocketMQ wrote is copied into the store of broker.conf, with the
CRCs that it lacks. Done for each node of the group, from its own files, while none of them runs;
config/ is to be copied into storePathRootDir beside it. What was there stays as it was.

Ends with 0, 2 for bad usage, 74 when a log cannot be taken over or the disk failed. Each of these
says why in one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shaketable.system.node.config import ConfigError, NodeConfig, load
from shaketable.system.node.disks.real_disk import RealDisk, StoreInUseError, lock_store
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import StoreError
from shaketable.system.store.foreign_log import ForeignLog, Imported

EXIT_USAGE = 2
EXIT_DISK = 74
_UNFINISHED = ".importing"


def main(argv: Sequence[str] | None = None) -> int:
    """Import a log; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m shaketable.system.node.import_log", description=__doc__
    )
    parser.add_argument("-c", "--config", type=Path, required=True, help="broker.conf of the node")
    parser.add_argument(
        "--from", dest="source", type=Path, required=True, help="its folder dledger-ID, of Apache"
    )
    arguments = parser.parse_args(argv)
    try:
        config = load(arguments.config)
        lock = lock_store(config.store_root)
        try:
            found = import_log(config, arguments.source)
        finally:
            os.close(lock)
    except (ConfigError, StoreInUseError) as error:
        return _fail(EXIT_USAGE, error)
    except (StoreError, OSError) as error:
        return _fail(EXIT_DISK, error)
    sys.stdout.write(
        f"imported {found.end.index + 1} entries, {found.committed_index + 1} known to be "
        f"committed, of terms up to {found.state.term}, into "
        f"{config.store_root}/dledger-{config.self_id}\n"
    )
    return 0


def import_log(config: NodeConfig, source: Path) -> Imported:
    """Copy a log into the node's store. Raises ConfigError, StoreError.

    The folder is renamed to its final name once it is durable, so a killed import starts over.
    """
    target = config.store_root / f"dledger-{config.self_id}"
    if config.master_slave is not None or config.is_joining:
        raise ConfigError("a log is imported by a member of a group: see enableDLegerCommitLog")
    if target.exists():
        raise ConfigError(f"{target} is there already: choose another storePathRootDir")
    disk = RealDisk()
    foreign = ForeignLog(disk, str(source))
    if foreign.file_bytes != config.data_file_bytes:
        raise ConfigError(
            f"{source} has data files of {foreign.file_bytes} bytes: set mappedFileSizeCommitLog "
            f"to that, not to {config.data_file_bytes}"
        )
    unfinished = target.with_name(target.name + _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    log = CommitLog.open(
        disk,
        str(config.store_root),
        f"{config.self_id}{_UNFINISHED}",
        config.data_file_bytes,
        config.index_file_bytes,
    )
    try:
        found = foreign.copy_into(log)
    finally:
        log.close()
    disk.rename(str(unfinished), str(target))
    disk.sync_dir(str(config.store_root))
    return found


def _fail(code: int, error: BaseException) -> int:
    sys.stderr.write(f"import_log: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
