"""What survives a power loss: the volatile file system against a model that keeps two copies."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shaketable.harness.volatile_disk.files import StoredFiles
from shaketable.harness.volatile_disk.surviving import ROOT, Ranges, UnsyncedContents

SIZE_MAX = 40
positions = st.integers(0, SIZE_MAX)
Span = tuple[int, int]


@given(st.lists(st.tuples(st.sampled_from(["add", "missing", "cut"]), positions, positions)))
def test_ranges_are_sets_of_positions(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for what, start, end in steps:
        if what == "add":
            ranges.add(start, end)
            model |= set(range(start, end))
        elif what == "cut":
            ranges.cut(start)
            model = {position for position in model if position < start}
        else:
            missing = [at for low, high in ranges.missing(start, end) for at in range(low, high)]
            assert missing == sorted(set(range(start, end)) - model)
        assert ranges.total == len(model)


writes = st.tuples(st.just("write"), positions, st.binary(min_size=1, max_size=12))
cuts = st.tuples(st.just("resize"), positions, st.just(b""))
others = st.tuples(st.sampled_from(["sync", "lose"]), st.just(0), st.just(b""))


@given(st.lists(st.one_of(writes, cuts, others), max_size=30))
def test_a_file_becomes_what_was_synced(steps: list[tuple[str, int, bytes]]) -> None:
    file, contents = bytearray(), UnsyncedContents(0)
    synced = b""

    def save(start: int, end: int) -> None:
        for low, high in contents.to_save(start, end):
            contents.save(low, bytes(file[low:high]))

    for what, at, data in steps:
        if what == "write":
            end = at + len(data)
            save(at, end)
            file.extend(bytes(max(0, end - len(file))))
            file[at:end] = data
            contents.wrote(at, end)
        elif what == "resize":
            save(at, len(file))
            file[:] = file[:at] + bytes(max(0, at - len(file)))
            contents.resized(at)
        elif what == "sync":
            contents.sync()
            synced = bytes(file)
        else:
            lost = contents.lose()
            file[:] = file[: lost.size] + bytes(max(0, lost.size - len(file)))
            for start, old in lost.pieces:
                file[start : start + len(old)] = old
            assert bytes(file) == synced
        assert contents.size == len(file)
        assert contents.unsynced_bytes <= len(file)
        if contents.is_synced:
            assert bytes(file) == synced


@dataclass(eq=False)
class File:
    now: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    now: dict[str, Any] = field(default_factory=dict)
    synced: dict[str, Any] = field(default_factory=dict)
    tied: list[Folder] = field(default_factory=list)


Tree = dict[PurePosixPath, bytes | None]


class Model:
    """The same file system, with everything in two copies: as it is, and as it is on the disk."""

    def __init__(self) -> None:
        self.root = Folder()

    def at(self, path: PurePosixPath) -> Any:
        found: Any = self.root
        for name in path.parts:
            found = found.now.get(name) if isinstance(found, Folder) else None
        return found

    def folders(self) -> list[Folder]:
        found, waiting = list[Folder](), list[Any]([self.root])
        while waiting:
            each = waiting.pop()
            if isinstance(each, Folder) and each not in found:
                found.append(each)
                waiting += [*each.now.values(), *each.synced.values()]
        return found

    def sync_names(self, of: Any) -> None:
        for folder in self.folders():
            for name in {*folder.now, *folder.synced}:
                now, old = folder.now.get(name), folder.synced.get(name)
                if now is old or of not in (now, old):
                    continue
                folder.synced[name] = now
                if now is None:
                    del folder.synced[name]
                if now is of:
                    self.sync_names(folder)

    def sync(self, path: PurePosixPath) -> None:
        found = self.at(path)
        if isinstance(found, File):
            found.synced = found.now
            self.sync_names(found)
            return
        waiting, seen = [found], list[Folder]()
        while waiting:
            folder = waiting.pop()
            if folder in seen:
                continue
            seen.append(folder)
            folder.synced = dict(folder.now)
            waiting += folder.tied
            folder.tied = []
        for folder in seen:
            self.sync_names(folder)

    def rename(self, source: PurePosixPath, target: PurePosixPath, *, swaps: bool) -> None:
        old, new = self.at(source.parent), self.at(target.parent)
        moved, other = old.now[source.name], new.now.get(target.name)
        if moved is other:
            return
        if old is not new:
            old.tied.append(new)
            new.tied.append(old)
        del old.now[source.name]
        if swaps:
            old.now[source.name] = other
        new.now[target.name] = moved

    def lose(self) -> None:
        everything = list[Any]()
        waiting: list[Any] = [self.root]
        while waiting:
            each = waiting.pop()
            if each in everything:
                continue
            everything.append(each)
            each.now = dict(each.synced) if isinstance(each, Folder) else each.synced
            if isinstance(each, Folder):
                each.tied = []
                waiting += each.synced.values()

    def tree(self) -> Tree:
        found: Tree = {}
        waiting = [(PurePosixPath(), self.root)]
        while waiting:
            path, folder = waiting.pop()
            for name, each in folder.now.items():
                found[path / name] = each.now if isinstance(each, File) else None
                if isinstance(each, Folder):
                    waiting.append((path / name, each))
        return found


@contextmanager
def stored() -> Iterator[tuple[Path, StoredFiles]]:
    with tempfile.TemporaryDirectory() as name:
        tree, kept = Path(name, "tree"), Path(name, "kept")
        tree.mkdir()
        kept.mkdir()
        descriptors = [os.open(folder, os.O_RDONLY) for folder in (tree, kept)]
        files = StoredFiles(*descriptors)
        try:
            yield tree, files
        finally:
            files.close()
            for descriptor in descriptors:
                os.close(descriptor)


class Subject:
    """The file system itself, by paths."""

    def __init__(self, tree: Path, files: StoredFiles) -> None:
        self.files = files
        self.real = tree

    def at(self, path: PurePosixPath) -> int:
        inode = ROOT
        for name in path.parts:
            inode = self.files.look_up(inode, name)
        return inode

    def tree(self) -> Tree:
        return {
            PurePosixPath(path.relative_to(self.real)): path.read_bytes()
            if path.is_file()
            else None
            for path in self.real.rglob("*")
        }


NAMES = ("a", "b", "c")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda it: PurePosixPath(*it))
file_system_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["make", "folder", "remove", "sync", "sync"]), paths),
        st.tuples(st.sampled_from(["rename", "swap", "link"]), paths, paths),
        st.tuples(st.just("write"), paths, positions, st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("resize"), paths, positions),
        st.tuples(st.sampled_from(["lose", "sync-all", "sync-root", "read-tree"])),
    ),
    max_size=40,
)


def is_possible(model: Model, what: str, path: PurePosixPath, target: PurePosixPath | None) -> bool:
    """Whether the kernel would let a call come this far."""
    there, parent = model.at(path), model.at(path.parent)
    if what in ("make", "folder"):
        return isinstance(parent, Folder) and there is None
    if there is None or (what in ("write", "resize") and not isinstance(there, File)):
        return False
    if target is None:
        return what != "remove" or isinstance(there, File) or not there.now
    other, new_parent = model.at(target), model.at(target.parent)
    if not isinstance(new_parent, Folder) or path in (target, *target.parents):
        return False
    if what == "link":
        return isinstance(there, File) and other is None
    if what == "swap":
        return other is not None and target not in path.parents
    is_emptied = type(other) is type(there) and not (isinstance(other, Folder) and other.now)
    return other is None or is_emptied


def do(model: Model, subject: Subject, step: tuple[Any, ...]) -> None:
    what, path, *more = step
    target = more[0] if more and isinstance(more[0], PurePosixPath) else None
    if not is_possible(model, what, path, target):
        return
    files, parent, owner = subject.files, model.at(path.parent), (os.geteuid(), os.getegid())
    folder = subject.at(path.parent)
    if what == "make":
        files.make(folder, path.name, stat.S_IFREG | 0o644, 0, owner)
        parent.now[path.name] = File()
    elif what == "folder":
        files.make_folder(folder, path.name, 0o755, owner)
        parent.now[path.name] = Folder()
    elif what == "remove":
        is_file = isinstance(model.at(path), File)
        (files.unlink if is_file else files.remove_folder)(folder, path.name)
        del parent.now[path.name]
    elif what == "sync":
        is_file = isinstance(model.at(path), File)
        (files.sync if is_file else files.sync_folder)(subject.at(path))
        model.sync(path)
    elif what == "write":
        at, data = more
        file = model.at(path)
        files.write(subject.at(path), at, memoryview(data))
        file.now = file.now.ljust(at, b"\0")[:at] + data + file.now[at + len(data) :]
    elif what == "resize":
        file = model.at(path)
        files.resize(subject.at(path), more[0])
        file.now = file.now[: more[0]].ljust(more[0], b"\0")
    elif what == "link":
        assert target is not None
        files.link(subject.at(path), subject.at(target.parent), target.name)
        model.at(target.parent).now[target.name] = model.at(path)
    else:
        assert target is not None
        flags = 2 if what == "swap" else 0
        files.rename(folder, path.name, subject.at(target.parent), target.name, flags)
        model.rename(path, target, swaps=what == "swap")


def sync_everything(model: Model) -> None:
    for path in (PurePosixPath(), *model.tree()):
        model.sync(path)


A, B, C = map(PurePosixPath, ("a", "b", "c"))
AB, CB = A / "b", C / "b"
SAME_FILE_IN_ANOTHER_FOLDER = [
    ("folder", A), ("make", AB), ("sync-all",), ("rename", A, C), ("folder", A), ("link", CB, AB),
]  # fmt: skip


@settings(max_examples=300)
@given(file_system_steps)
@example([("make", A), ("write", A, 0, b"x"), ("sync", A), ("lose",)])
@example([("make", A), ("sync-all",), ("write", A, 0, b"x"), ("remove", A), ("make", A), ("lose",)])
@example([("folder", A), ("make", AB), ("sync", A), ("rename", AB, B), ("sync", A), ("lose",)])
@example([("folder", A), ("make", AB), ("sync", A), ("lose",)])
@example([("folder", A), ("folder", AB), ("make", AB / "c"), ("sync", AB / "c"), ("lose",)])
@example(
    [
        ("folder", A),
        ("folder", B),
        ("make", AB),
        ("sync-all",),
        ("folder", C),
        ("rename", AB, CB),
        ("sync", A),
        ("lose",),
    ]
)
@example([*SAME_FILE_IN_ANOTHER_FOLDER, ("lose",)])
@example([("make", A), ("sync-root",), ("link", A, B), ("remove", A), ("sync-root",), ("lose",)])
def test_a_power_loss_leaves_what_was_synced_and_nothing_else(steps: list[tuple[Any, ...]]) -> None:
    with stored() as (tree, files):
        model, subject = Model(), Subject(tree, files)
        for step in (*steps, ("lose",)):
            if step == ("lose",):
                unsynced = files.unsynced()
                before = model.tree()
                lost = files.lose()
                model.lose()
                changed = before != model.tree()
                assert (lost.bytes_ > 0 or lost.entries > 0 or lost.sizes > 0) >= changed
                assert lost.entries == unsynced[1]
                assert files.unsynced() == (0, 0)
            elif step == ("sync-all",):
                files.sync_all()
                sync_everything(model)
            elif step == ("sync-root",):
                files.sync_folder(ROOT)
                model.sync(PurePosixPath())
            elif step == ("read-tree",):
                files.sync_all()
                files.read_tree()
                sync_everything(model)
            else:
                do(model, subject, step)
            assert subject.tree() == model.tree(), step
            walked = dict(files.names.walk())
            assert walked.keys() == model.tree().keys()
            kept = {path.name for path in tree.with_name("kept").iterdir()}
            held = {str(inode) for inode in walked.values() if not files.names.is_folder(inode)}
            assert held <= kept
            if step in (("lose",), ("sync-all",)):
                assert held == kept, "what nothing leads to is deleted"
