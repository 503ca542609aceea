"""The process of one node's volatile disk: between the kernel, the files, and the harness.

`python -m shaketable.harness.volatile_disk.server DESCRIPTOR FOLDER KEPT` mounts the file system on
FOLDER, reports that over the socket of that descriptor, and serves until the other end is closed.
Orders over the socket are one JSON message each, and are carried out at once. A call that has to
wait is answered later: it holds up no other, and a killed process that waits for it ends.

The mount is in a namespace of the server's own: as root in a plain one, else in a new user
namespace, in which the user is the same. So it is seen by the processes that enter there, and ends
with the last of them, whatever happens.

Source: fuse(4); ADR 0047 (why not libfuse); mount_namespaces(7), user_namespaces(7), mount(2),
Documentation/filesystems/fuse.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from shaketable.harness import guard
from shaketable.harness.controlled_process import MESSAGE_BYTES_MAX
from shaketable.harness.namespaces import CLONE_NEWUSER, unshare
from shaketable.harness.volatile_disk import messages, orders
from shaketable.harness.volatile_disk.files import StoredFiles
from shaketable.harness.volatile_disk.messages import Op, Request
from shaketable.harness.volatile_disk.orders import Call, Orders, Verdict
from shaketable.harness.volatile_disk.requests import Requests, call_of, path_of

CLONE_NEWNS: Final = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
MNT_DETACH: Final = 2
DEVICE: Final = "/dev/fuse"


def move_into_own_namespace() -> None:
    """Move this process into a mount namespace of its own. It must have one thread.

    Raises:
        OSError: the kernel refuses; its text says what.
    """
    try:
        unshare(CLONE_NEWNS)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        try:
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
        except OSError as error:
            raise OSError(error.errno, f"no user namespace: {error.strerror}") from error
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, MS_REC | MS_PRIVATE, None)


def open_device() -> int:
    """Open the kernel's FUSE device.

    Raises:
        OSError: it is missing, or may not be opened; its text says what.
    """
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, f"cannot open {DEVICE}: {error.strerror}") from error


def mount(device: int, folder: Path) -> None:
    """Mount a new FUSE file system on a folder. Raises OSError: the kernel refuses."""
    options = (
        f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},"
        "default_permissions,allow_other"
    )
    try:
        _mount("shaketable", str(folder), "fuse.shaketable", MS_NOSUID | MS_NODEV, options)
    except OSError as error:
        raise OSError(error.errno, f"cannot mount a FUSE file system: {error.strerror}") from error


def unmount(device: int, folder: Path) -> None:
    """Unmount it at once; calls that still wait for it fail (idempotent)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.umount2(os.fsencode(folder), MNT_DETACH)
    with suppress(OSError):
        os.close(device)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


REQUESTS_AT_ONCE_MAX: Final = 64
"""So many requests of the kernel in a row, before an order is looked for."""
LOOK_EVERY_S: Final = 0.02
"""How often processes that wait are looked at: a killed one gets its answer."""
FORGETS: Final = (Op.FORGET, Op.BATCH_FORGET)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits: until `due_s` on the monotonic clock, and for the end of its faults."""

    request: Request
    verdict: Verdict
    began_s: float
    due_s: float


class Server:
    """Serves one file system; see the module."""

    def __init__(self, control: socket.socket, folder: Path, kept: Path) -> None:
        self._control = control
        self._folder = folder
        tree = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # not what is mounted there later
        self._files = StoredFiles(tree, os.open(kept, os.O_RDONLY | os.O_DIRECTORY))
        self._orders = Orders()
        self._requests = Requests(self._files)
        self._requests.is_full = lambda: self._orders.is_full
        self._device = -1
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._buffer = bytearray(messages.REQUEST_BYTES_MAX)
        self._waiting: dict[int, _Waiting] = {}
        self._due: list[tuple[float, int]] = []
        self._looked_s = 0.0
        self._lost = {"lost_bytes": 0, "losses": 0}
        self._caller = 0
        """The last thread that called: writes of mapped memory come from the kernel itself."""
        self._off: Verdict | None = None
        self._tripped: Mapping[str, Any] | None = None
        self._answers: Mapping[str, Callable[[Any], Any]] = {
            "order": self._order,
            "effects": lambda _: self._effects(),
            "disk_fault": lambda asked: self._orders.by_fault.get(asked["fault"], {}),
            "calls": lambda _: {"counts": self._orders.calls, "tripped": self._tripped},
            "lose": lambda _: self._lose(),
            "detach": lambda _: self._detach(),
            "attach": lambda _: self._attach(),
        }
        self.attach()

    def run(self) -> None:
        """Serve until the other end of the control socket is closed; then sync and unmount."""
        while True:
            ready = dict(self._poll.poll(self._timeout_ms()))
            if self._control.fileno() in ready and not self._obey():
                break
            if self._device in ready:
                self._serve()
            if self._waiting:
                self._look_at_waiting()
        self._detach()
        self._files.close()

    def attach(self) -> None:
        """Mount the file system. Raises OSError."""
        self._device = open_device()
        mount(self._device, self._folder)
        self._poll.register(self._device, select.POLLIN)

    # ---- requests of the kernel -------------------------------------------------------------

    def _serve(self) -> None:
        view = memoryview(self._buffer)
        for _ in range(REQUESTS_AT_ONCE_MAX):
            try:
                size = os.readv(self._device, [self._buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it was interrupted meanwhile
                    continue
                if error.errno != errno.EAGAIN:
                    raise
                return
            self._take(messages.request(view[:size]))

    def _take(self, request: Request) -> None:
        """Answer a request, or let it wait."""
        if request.op in FORGETS:
            self._requests.forget(request)
            return
        self._caller = request.thread or self._caller
        call = call_of(request, self._files)
        if call is None:
            self._carry_out(request)
            return
        if self._off is not None and call.kind != orders.READ:
            # Other threads of a process that is being killed: the power is off for them, too.
            if call.may_wait:
                self._wait(request, self._off, float("inf"))
            else:  # mapped memory, written back as the process ends, which would wait for it
                self._carry_out(request)
            return
        verdict = self._orders.judge(call)
        if verdict.kills and _lives(verdict.kills):
            self._kill_at(request, verdict, call)
        elif verdict.delay_s or verdict.stalled_by:
            self._wait(request, verdict, verdict.delay_s)
        else:
            self._end(request, verdict)

    def _kill_at(self, request: Request, verdict: Verdict, call: Call) -> None:
        """End a process at its call, which never returns: a write is in no cache but this."""
        self._off = verdict
        self._tripped = {"call": call.name, "path": path_of(request, self._files)}
        answer = self._requests.carry_out(request) if request.op == Op.WRITE else b""
        process = _process_of(self._caller) if verdict.kills == orders.THE_CALLER else verdict.kills
        if process:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if call.may_wait:
            self._wait(request, verdict, float("inf"))
        else:
            self._reply(answer)  # no thread of the process waits for it, but its end does

    def _end(self, request: Request, verdict: Verdict) -> None:
        if verdict.error:
            self._reply(messages.answer(request.number, error=verdict.error))
        else:
            self._carry_out(request)

    def _carry_out(self, request: Request) -> None:
        self._reply(self._requests.carry_out(request))

    def _reply(self, answer: bytes) -> None:
        with suppress(FileNotFoundError):  # who asked is gone
            os.write(self._device, answer)

    # ---- calls that wait ------------------------------------------------------------------------

    def _wait(self, request: Request, verdict: Verdict, delay_s: float) -> None:
        now = monotonic()
        request = request._replace(body=memoryview(bytes(request.body)))
        self._waiting[request.number] = _Waiting(request, verdict, now, now + delay_s)
        if not verdict.kills:
            self._orders.begins_to_wait(verdict)
            heapq.heappush(self._due, (now + delay_s, request.number))

    def _timeout_ms(self) -> float | None:
        if not self._waiting:
            return None
        wait_s = LOOK_EVERY_S
        if self._due:
            wait_s = min(wait_s, max(0.0, self._due[0][0] - monotonic()))
        return wait_s * 1000

    def _look_at_waiting(self) -> None:
        """End the waits that are over, and those of killed processes."""
        now = monotonic()
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            waiting = self._waiting.get(number)
            if waiting is not None and not self._is_stalled(waiting):
                self._end_wait(waiting)
        if now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            for waiting in list(self._waiting.values()):
                if _is_being_killed(waiting.request.thread):
                    self._end_wait(waiting, errno.EINTR)

    def _is_stalled(self, waiting: _Waiting) -> bool:
        return any(map(self._orders.in_force, waiting.verdict.stalled_by))

    def _end_wait(self, waiting: _Waiting, error: int = 0) -> None:
        del self._waiting[waiting.request.number]
        self._orders.waited(waiting.verdict, monotonic() - waiting.began_s)
        if error:
            self._reply(messages.answer(waiting.request.number, error=error))
        else:
            self._end(waiting.request, waiting.verdict)

    # ---- orders of the harness ------------------------------------------------------------------

    def _obey(self) -> bool:
        """Carry out one order; False if the harness has closed its end."""
        message = self._control.recv(MESSAGE_BYTES_MAX)
        if not message:
            return False
        asked = json.loads(message)
        answer: dict[str, Any] = {"number": asked["number"]}
        try:
            answer["answer"] = self._answers[asked["ask"]](asked)
        except OSError as error:
            answer["error"] = error.strerror
        self._control.send(json.dumps(answer).encode())
        return True

    def _order(self, asked: Mapping[str, Any]) -> None:
        self._orders.replace(asked["disk_faults"], asked["trips"])
        self._tripped = None
        self._requests.keeps_cache = not self._orders.strikes_reads
        for waiting in list(self._waiting.values()):
            is_over = waiting.verdict.stalled_by and not self._is_stalled(waiting)
            if is_over and waiting.due_s <= monotonic():
                self._end_wait(waiting)

    def _effects(self) -> dict[str, int]:
        unsynced_bytes, unsynced_entries = self._files.unsynced()
        return {
            **dict.fromkeys(("read", "write", "sync", "name", "errors", "slowed", "waited_us"), 0),
            **self._orders.counts,
            **self._lost,
            "unsynced_bytes": unsynced_bytes,
            "unsynced_entries": unsynced_entries,
            "written_back_bytes": self._files.written_back_bytes,
        }

    def _lose(self) -> dict[str, int]:
        """Lose power: unmount, forget what was not synced, and mount what is left."""
        self._unmount()
        lost = self._files.lose()
        self._lost["lost_bytes"] += lost.bytes_
        self._lost["losses"] += 1
        self.attach()
        return {"bytes": lost.bytes_, "entries": lost.entries, "sizes": lost.sizes}

    def _detach(self) -> None:
        """Sync everything, and unmount; the tree may then be changed from outside."""
        if self._device >= 0:
            self._unmount()
            self._files.sync_all()

    def _attach(self) -> None:
        """Mount the tree as it is now."""
        if self._device < 0:
            self._files.read_tree()
            self.attach()

    def _unmount(self) -> None:
        self._poll.unregister(self._device)
        unmount(self._device, self._folder)
        self._device = -1
        self._off = None
        self._waiting.clear()
        self._due.clear()
        self._files.unmounted()


def _lives(process: int) -> bool:
    """Whether a trip's process is still there; another one of its node may call by now."""
    if process == orders.THE_CALLER:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and another user's
        return True
    return True


def _process_of(thread: int) -> int:
    """Return the process of a thread; 0 if it is gone."""
    try:
        text = Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return 0
    return next((int(line[5:]) for line in text.splitlines() if line.startswith("Tgid:")), 0)


def _is_being_killed(thread: int) -> bool:
    """True if a thread has got SIGKILL, which a call in the kernel delays, or is gone.

    0 is no thread, but the kernel itself.
    """
    if not thread:
        return False
    try:
        text = Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return True
    pending = next((line for line in text.splitlines() if line.startswith("SigPnd:")), "SigPnd: 0")
    return bool(int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)


def main(arguments: Sequence[str]) -> int:
    """Serve; see the module. Returns 1 if the file system cannot be mounted."""
    descriptor, folder, kept = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness handles Ctrl-C
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parent = os.getppid()
    with socket.socket(fileno=int(descriptor)) as control:
        try:
            move_into_own_namespace()
            guard.die_with_parent(parent)  # a new user namespace has cleared it
            server = Server(control, Path(folder), Path(kept))
        except OSError as error:
            control.send(json.dumps({"error": error.strerror}).encode())
            return 1
        control.send(json.dumps({"answer": None}).encode())
        server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
