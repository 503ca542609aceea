"""Programs that write with and without syncs, are killed, and what they must have left.

A program is a list of steps, drawn by a seed, which a child carries out on a volatile disk in any
language that it is written in: here Python's own calls, and a C program for the same steps. Then it
kills itself, the disk loses power, and the tree is compared with a model that knows nothing of
FUSE: two copies of everything, of which an fsync copies one to the other.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from shaketable.harness import guard
from shaketable.harness.volatile_disk.disk import VolatileDisk

STEPS_MIN, STEPS_MAX = 5, 40
PAGE = 4096
TIMEOUT_S = 60.0
WRITER = Path(__file__).with_name("unsynced_writer.c")
PYTHON_WRITER = Path(__file__).with_name("unsynced_writer.py")
NAMES = ("a", "b", "c")
FOLDERS = ("", "d/")
CHANGES = ("write", "write", "map", "sync", "sync-folder", "sync-folder", "rename", "unlink", "cut")
Step = tuple[str, ...]


@dataclass
class Expected:
    """What is there, and what would be left; files by number, folders' entries by name."""

    now: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    bytes_now: dict[int, bytearray] = field(default_factory=dict)
    bytes_synced: dict[int, bytes] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    is_tied: bool = False

    def sync_folder(self, folder: str) -> None:
        """Keep the entries of a folder; of both, if a rename ties them."""
        for name in {*self.now, *self.synced}:
            if self.is_tied or _folder(name) == folder:
                self._keep(name)
        self.is_tied = False

    def sync_file(self, file: int) -> None:
        """Keep a file's bytes, and what happened to its names."""
        self.bytes_synced[file] = bytes(self.bytes_now[file])
        self.dirty.discard(file)
        for name in {*self.now, *self.synced}:
            if file in (self.now.get(name), self.synced.get(name)):
                self._keep(name)

    def _keep(self, name: str) -> None:
        if name in self.now:
            self.synced[name] = self.now[name]
        else:
            self.synced.pop(name, None)

    @property
    def is_synced(self) -> bool:
        """True if nothing is there that could be lost."""
        return self.now == self.synced and not self.dirty & {*self.now.values()}

    def left(self) -> dict[str, bytes]:
        """Return the files after the power loss."""
        return {name: self.bytes_synced[file] for name, file in self.synced.items()}


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]


def draw(seed: str) -> tuple[list[Step], Expected]:
    """Return the steps of a program, and what it must leave. Folder d is there from the start."""
    rng, expected, steps = Random(seed), Expected(), list[Step]()
    for number in range(rng.randint(STEPS_MIN, STEPS_MAX)):
        name = rng.choice(FOLDERS) + rng.choice(NAMES)
        if name not in expected.now:
            expected.now[name] = number
            expected.bytes_now[number], expected.bytes_synced[number] = bytearray(), b""
            steps.append(("create", name))
            continue
        steps.append(_changed(expected, name, rng))
    return steps, expected


def _changed(expected: Expected, name: str, rng: Random) -> Step:
    """Draw what is done to a file that is there, and let the model do it."""
    file, what = expected.now[name], rng.choice(CHANGES)
    data = expected.bytes_now[file]
    if what in ("write", "map"):
        size, byte = rng.randint(1, 2 * PAGE), rng.randint(1, 255)
        at = rng.randint(0, len(data)) if what == "write" else 0
        is_synced = what == "map" and rng.random() < 0.5
        data.extend(bytes(max(0, at + size - len(data))))
        data[at : at + size] = bytes([byte]) * size
        expected.dirty.add(file)
        if is_synced:
            expected.sync_file(file)
        how = f"{what}-sync" if is_synced else what
        return how, name, str(at), str(size), str(byte)
    if what == "sync":
        expected.sync_file(file)
    elif what == "sync-folder":
        expected.sync_folder(_folder(name))
    elif what == "cut":
        size = rng.randint(0, len(data))
        del data[size:]
        expected.dirty.add(file)
        return what, name, str(size)
    elif what == "unlink":
        del expected.now[name]
    else:
        target = rng.choice(FOLDERS) + rng.choice(NAMES)
        if target != name:
            expected.is_tied |= _folder(target) != _folder(name)
            expected.now[target] = expected.now.pop(name)
        return what, name, target
    return what, name


def compiled(folder: Path) -> Path:
    """Compile the C program; return its path."""
    program = folder / "unsynced_writer"
    argv = ["cc", "-Wall", "-Werror", "-o", str(program), str(WRITER)]
    subprocess.run(argv, check=True, capture_output=True, timeout=TIMEOUT_S)
    return program


@dataclass(frozen=True)
class Try:
    """One try: what was left and what should have been, and what the disk told of it."""

    seed: str
    left: dict[str, bytes]
    expected: dict[str, bytes]
    lost: dict[str, int]
    is_same: bool
    is_synced: bool

    @property
    def is_right(self) -> bool:
        """True if exactly what was not synced is gone, and the disk told whether anything is."""
        is_told = any(self.lost.values())
        return self.left == self.expected and (
            is_told or self.is_same if not self.is_synced else not is_told
        )


def play(disk: VolatileDisk, folder: Path, argv: list[str], seed: str) -> Try:
    """Let a program write on an emptied disk and die, and cut its power."""
    tree = folder / "disk"
    with disk.detached():
        for path in sorted(tree.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tree / "d").mkdir()
    steps, expected = draw(seed)
    script = "".join(" ".join(step) + "\n" for step in steps)
    command = guard.command([*disk.enter_command(tree), *argv], os.getpid())
    done = subprocess.run(
        command, input=script.encode(), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == -9, done.stderr.decode()
    before = _files(tree)
    assert before == {name: bytes(expected.bytes_now[file]) for name, file in expected.now.items()}
    lost = dict(disk.lose())
    left = expected.left()
    return Try(seed, _files(tree), left, lost, before == left, expected.is_synced)


def _files(tree: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()
    }
