"""Carries out the steps on stdin (tests/support/unsynced_writers.py), and kills itself."""

import mmap
import os
import signal
import sys
from pathlib import Path

PAGE = 4096


def map_and_write(name, size, byte, *, is_synced):
    file = os.open(name, os.O_RDWR)
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    mapped = mmap.mmap(file, 0)
    mapped[:size] = bytes([byte]) * size
    if is_synced:
        mapped.flush()
    os.close(file)  # it stays mapped until the end
    return mapped


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def main():
    mapped = []
    for line in sys.stdin:
        match line.split():
            case ["create", name]:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            case ["write", name, at, size, byte]:
                file = os.open(name, os.O_WRONLY)
                os.pwrite(file, bytes([int(byte)]) * int(size), int(at))
                os.close(file)
            case ["map" | "map-sync" as how, name, _, size, byte]:
                is_synced = how == "map-sync"
                mapped.append(map_and_write(name, int(size), int(byte), is_synced=is_synced))
            case ["sync", name]:
                sync(name)
            case ["sync-folder", name]:
                sync(Path(name).parent)
            case ["cut", name, size]:
                os.truncate(name, int(size))
            case ["unlink", name]:
                Path(name).unlink()
            case ["rename", name, target]:
                Path(name).rename(target)
    os.kill(os.getpid(), signal.SIGKILL)


main()
