"""A node that is to join a group brings no plain commit log of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from plain_log_encoder import PlainLogWriter

from shaketable.system.node import __main__ as node_main
from shaketable.system.node.assembly import assemble
from shaketable.system.node.config import ConfigError, NodeConfig, load
from shaketable.system.node.disks.real_disk import DiskThreads, RealDisk
from shaketable.system.node.machine import Machine, SystemClock

FILE_BYTES = 65_536


def write_conf(folder: Path) -> Path:
    lines = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": "n3",
        "dLegerPeers": "n0-127.0.0.1:1;n3-127.0.0.1:2",
        "listenPort": "3",
        "storePathRootDir": str(folder / "store"),
        "storePathCommitLog": str(folder / "commitlog"),
        "mappedFileSizeCommitLog": str(FILE_BYTES),
        "mappedFileSizeIndex": "8192",
        "shaketableJoin": "true",
    }
    path = folder / "n3.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def write_plain_log(folder: Path) -> None:
    log = PlainLogWriter(FILE_BYTES, 0, {})
    log.append("t", 0, b"old", b"")
    log.write(folder / "commitlog")


def start(config: NodeConfig) -> None:
    """Assemble a node and put it away again."""
    node = assemble(config, Machine(RealDisk(), SystemClock(), Random, DiskThreads()))
    node._close_files()


def test_a_plain_log_is_refused_and_left_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = write_conf(tmp_path)
    write_plain_log(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    assert node_main.main(["-c", str(conf)]) == node_main.EXIT_USAGE
    (line,) = [record.message for record in caplog.records if "event=stopped" in record.message]
    assert "shaketableJoin" in line
    assert "storePathCommitLog" in line
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    start(replace(load(conf), is_joining=False))  # as a first member it is upgraded still
    with pytest.raises(ConfigError, match="shaketableJoin"):
        start(load(conf))


def test_an_empty_folder_and_one_that_a_member_passes_over_are_no_plain_log(
    tmp_path: Path,
) -> None:
    conf = write_conf(tmp_path)
    (tmp_path / "commitlog").mkdir()
    start(load(conf))
    (tmp_path / "commitlog").rmdir()
    write_plain_log(tmp_path)
    start(load(conf))  # its log was made without one
